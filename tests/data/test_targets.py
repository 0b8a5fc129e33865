"""Which kind of task targets are, and the sentences for those that are not clear."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from coterie.core.errors import CoterieError
from coterie.core.targets import TargetScale
from coterie.data import from_arrays


def arrays(*targets: Any) -> dict[str, Any]:
    """Clients a, b, ... with these targets, all of them in training and in test."""
    return {name: (np.zeros((len(y), 2)), y, np.zeros((len(y), 2)), y) for name, y in zip("abc", targets, strict=False)}


@pytest.mark.parametrize(
    ("targets", "kind", "classes"),
    [
        (np.array([0, 2, 1]), "classification", 3),
        (np.array([0, 1, 1]), "binary", 2),
        (np.array([False, True]), "binary", 2),
        (np.array([[0, 1, 0], [1, 1, 0]]), "multilabel", 3),
        (np.array([[0.0, 1.0], [1.0, 1.0]]), "multilabel", 2),
        (np.array([0.5, 3.0]), "regression", 1),
        (np.array([[0.5], [3.0]]), "regression", 1),
        (np.array([[0.5, 1.0], [3.0, 2.0]]), "regression", 2),
    ],
)
def test_the_kind_is_inferred(targets: Any, kind: str, classes: int) -> None:
    population = from_arrays(arrays(targets))
    assert (population.kind, population.classes) == (kind, classes)


def test_all_clients_together_say_what_the_targets_are() -> None:
    """Client a alone has whole floats; client b's fractions make both regression."""
    population = from_arrays(arrays(np.array([1.0, 2.0]), np.array([1.5, 2.0])))
    assert population.kind == "regression"
    assert population.client("a").train.y.tolist() == [1.0, 2.0]


def test_whole_numbers_can_be_predicted_as_numbers() -> None:
    population = from_arrays(arrays(np.array([-3, 250_000])), task="regression")
    assert (population.kind, population.classes) == ("regression", 1)
    assert population.client("a").train.y.dtype == torch.float64


@pytest.mark.parametrize(
    ("targets", "task", "sentence"),
    [
        ([np.array([0.5, 1.0])], "classification", "with fractions; give integers from 0 up for classes"),
        ([np.array([0, 1, 2])], "binary", "A binary task has the classes 0 and 1, and there is a label 2"),
        ([np.array([0, 1])], "multilabel", "give a matrix of 0 and 1"),
        ([np.array([0, 1])], "clustering", "no task 'clustering'"),
        ([np.array([[0.5, 1.0]]), np.array([0.5])], "auto", "bring all to one"),
    ],
)
def test_targets_that_do_not_fit(targets: list[Any], task: Any, sentence: str) -> None:
    with pytest.raises(CoterieError, match=sentence):
        from_arrays(arrays(*targets), task=task)


def test_the_scale_of_targets_by_hand() -> None:
    """1, 3 and 5 have the mean 3 and the variance (4 + 0 + 4) / 3; the constant second column keeps its size."""
    scale = TargetScale.measured([torch.tensor([[1.0, 7.0], [3.0, 7.0]]), torch.tensor([[5.0, 7.0]])])
    assert scale.mean == (3.0, 7.0)
    assert scale.std == pytest.approx(((8 / 3) ** 0.5, 1.0))
    y = torch.tensor([[1.0, 7.0]], dtype=torch.float64)
    standard = scale.standardised(y, torch.float64)
    assert standard.tolist() == [pytest.approx([-2 / (8 / 3) ** 0.5, 0.0])]
    assert scale.restored(standard).tolist() == [pytest.approx([1.0, 7.0])]


def test_large_targets_close_together_keep_their_digits() -> None:
    scale = TargetScale.measured([torch.tensor([1e9, 1e9 + 2], dtype=torch.float64)])
    assert scale.std == (1.0,)


def test_classes_that_the_user_says() -> None:
    x, words = np.zeros((4, 2)), np.array(["ill", "well", "ill", "well"])
    both = from_arrays({"a": (x, words)}, classes=["well", "ill", "dead"])
    assert (both.classes, both.schema and both.schema.class_names) == (3, ("dead", "ill", "well"))
    whole = from_arrays({"a": (x, np.array(["1", "2", "1", "2"]))}, classes=3)
    assert (whole.classes, whole.schema and whole.schema.class_names) == (3, ())
    assert set(whole.client("a").train.y.tolist()) <= {1, 2}
    for y, classes, message in (
        (words, ["well", "dead"], "has the label 'ill', which is none of the 2 classes"),
        (words, "2.5", "classes is '2.5'; give their number, or the names of all"),
        (words, 2, "labels are words, such as 'ill'; name all classes, not their number"),
        (np.array([0, 1, 0, 1]), ["a", "b"], "labels are numbers and classes names 'a'; give their number"),
        (np.array([0, 1, 0, 3]), 3, "label 3 and only 3 classes"),
        (words, 0, "There are 0 classes; give a number from 1 to 65536"),
        (words, [], "give their number, or the names"),
        (words, [1, 2], "give their number, or the names"),
    ):
        with pytest.raises(CoterieError, match=message):
            from_arrays({"a": (x, y)}, classes=classes)  # type: ignore[arg-type]

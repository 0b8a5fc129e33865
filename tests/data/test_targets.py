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

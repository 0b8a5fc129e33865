"""Metrics by hand, and beside scikit-learn's on random predictions."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as theirs
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.measures import MEASURES, Measure, measure_of
from coterie.core.metrics import METRICS, Metric, chosen_metric, constant, metrics_of

NUMBERS = st.integers(0, 2**32 - 1)


def value(name: str, prediction: Any, target: Any) -> float:
    return METRICS[name](torch.tensor(prediction, dtype=torch.float64), torch.tensor(target))


def test_classes_by_hand() -> None:
    """Answers 0 0 1 2 for classes 0 1 1 2.

    Right are 3 of 4. Recalls are 1, 1/2 and 1. F1 is 2/3 for class 0 (one hit, one false alarm), 2/3 for class 1 (one
    hit, one miss) and 1 for class 2. Minus the mean logarithm of the true class's probabilities .6 .3 .5 .8.
    """
    p = [[0.6, 0.3, 0.1], [0.6, 0.3, 0.1], [0.3, 0.5, 0.2], [0.1, 0.1, 0.8]]
    y = [0, 1, 1, 2]
    assert value("accuracy", p, y) == 0.75
    assert value("balanced_accuracy", p, y) == pytest.approx((1 + 0.5 + 1) / 3)
    assert value("f1", p, y) == pytest.approx((2 / 3 + 2 / 3 + 1) / 3)
    assert value("log_loss", p, y) == pytest.approx(-np.mean(np.log([0.6, 0.3, 0.5, 0.8])))


def test_the_auroc_by_hand() -> None:
    """Positives have .8 and .4, negatives .6 and .4. Of four pairs .8 wins two; .4 loses one and ties one: 2.5 / 4."""
    p = np.array([0.8, 0.4, 0.6, 0.4])
    assert value("auroc", np.stack([1 - p, p], 1), [1, 1, 0, 0]) == pytest.approx(2.5 / 4)


def test_scores_that_are_no_numbers_leave_an_auroc_between_0_and_1() -> None:
    """They count as larger than all numbers and equal to each other: 1 of 2 pairs is won and 1 is tied."""
    p = np.array([math.nan, 0.4, math.nan])
    assert value("auroc", np.stack([1 - p, p], 1), [1, 0, 0]) == pytest.approx(1.5 / 2)


def test_the_calibration_error_by_hand() -> None:
    """Of 15 bins, .9 is in (13/15, 14/15] and .6 in (8/15, 9/15].

    Two samples are .9 sure and one of them is right: gap .4. Two are .6 sure and both right: gap .4. So .4 in all.
    """
    p = np.array([0.9, 0.9, 0.6, 0.6])
    assert value("ece", np.stack([p, 1 - p], 1), [0, 1, 0, 0]) == pytest.approx(0.4)


def test_labels_by_hand() -> None:
    """Two labels, three samples. The first label is found 1 0 0 for 1 1 0, the second never occurs and never is found.

    Accuracy 5 of 6. F1 of the first label is 2/3; the second has none and is left out. So it is for the AUROC.
    """
    p, y = [[0.9, 0.1], [0.4, 0.1], [0.3, 0.2]], [[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]
    assert value("accuracy", p, y) == pytest.approx(5 / 6)
    assert value("f1", p, y) == pytest.approx(2 / 3)
    assert value("auroc", p, y) == 1.0
    assert value("balanced_accuracy", p, y) == pytest.approx((0.75 + 1) / 2)


def test_numbers_by_hand() -> None:
    """Errors 1 and -3 around the targets 0 and 4: MAE 2, RMSE the root of 5, R² 1 - 10 / 8."""
    p, y = [1.0, 1.0], [0.0, 4.0]
    assert value("mae", p, y) == 2.0
    assert value("rmse", p, y) == pytest.approx(5**0.5)
    assert value("r2", p, y) == pytest.approx(1 - 10 / 8)


def test_what_is_not_defined_is_not_a_number() -> None:
    assert math.isnan(value("auroc", [[0.5, 0.5]], [1]))
    assert math.isnan(value("r2", [1.0, 2.0], [3.0, 3.0]))


def drawn(seed: int) -> tuple[np.random.Generator, int]:
    g = np.random.default_rng(seed)
    return g, int(g.integers(8, 60))


@settings(max_examples=40, deadline=None)
@given(NUMBERS)
def test_classes_as_scikit_learn_has_them(seed: int) -> None:
    g, n = drawn(seed)
    classes = int(g.integers(2, 5))
    p = np.round(g.dirichlet(np.ones(classes), n) + 1e-6, 2 if seed % 2 else 6)  # rounded ones have ties
    p /= p.sum(1, keepdims=True)
    y = g.permutation(np.concatenate([np.arange(classes), g.integers(0, classes, n - classes)]))
    answers = p.argmax(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert value("accuracy", p, y) == pytest.approx(theirs.accuracy_score(y, answers))
        assert value("balanced_accuracy", p, y) == pytest.approx(theirs.balanced_accuracy_score(y, answers))
        assert value("f1", p, y) == pytest.approx(theirs.f1_score(y, answers, average="macro"))
        assert value("log_loss", p, y) == pytest.approx(theirs.log_loss(y, p, labels=range(classes)), abs=1e-9)
        area = theirs.roc_auc_score(y, p[:, 1] if classes == 2 else p, multi_class="ovr")
    assert value("auroc", p, y) == pytest.approx(area)


@settings(max_examples=30, deadline=None)
@given(NUMBERS)
def test_labels_as_scikit_learn_has_them(seed: int) -> None:
    g, n = drawn(seed)
    p, y = g.random((n, 3)), g.integers(0, 2, (n, 3)).astype(float)
    y[0], y[1] = 0, 1  # both kinds of every label
    assert value("accuracy", p, y) == pytest.approx(1 - theirs.hamming_loss(y, p > 0.5))
    assert value("f1", p, y) == pytest.approx(theirs.f1_score(y, p > 0.5, average="macro", zero_division=np.nan))
    assert value("auroc", p, y) == pytest.approx(theirs.roc_auc_score(y, p, average="macro"))


@settings(max_examples=30, deadline=None)
@given(NUMBERS)
def test_numbers_as_scikit_learn_has_them(seed: int) -> None:
    g, n = drawn(seed)
    shape = (n,) if seed % 2 else (n, 2)
    p, y = 10 * g.normal(size=shape), 10 * g.normal(size=shape)
    assert value("mae", p, y) == pytest.approx(theirs.mean_absolute_error(y, p))
    assert value("rmse", p, y) == pytest.approx(theirs.root_mean_squared_error(y, p))
    assert value("r2", p, y) == pytest.approx(theirs.r2_score(y, p))


def test_the_metric_of_a_run() -> None:
    assert [chosen_metric("auto", kind).name for kind in ("classification", "binary", "multilabel", "regression")] == [
        *("accuracy", "accuracy", "accuracy", "rmse")
    ]
    assert chosen_metric("r2", "regression").lower_is_better is False
    assert list(metrics_of("regression")) == ["mae", "rmse", "r2"]
    assert set(metrics_of("binary")) | set(metrics_of("regression")) == set(MEASURES)
    with pytest.raises(CoterieError, match="no metric of a task of regression 'accuracy'"):
        chosen_metric("accuracy", "regression")
    with pytest.raises(CoterieError, match="of type int; give a name"):
        chosen_metric(3, "regression")  # type: ignore[arg-type]


def test_a_metric_of_the_users_that_fails_is_one_sentence() -> None:
    def wrong(prediction: Tensor, target: Tensor) -> float:
        raise ValueError("no such thing")

    with pytest.raises(CoterieError, match=r"The metric wrong fails on predictions of shape \(2,\).*no such thing"):
        Metric("wrong", wrong)(torch.zeros(2), torch.zeros(2))


def test_a_constant_answer_knows_the_training_part_alone() -> None:
    assert constant("classification", torch.tensor([2, 2, 0]), torch.tensor([1]), 3).tolist() == [
        pytest.approx([1 / 3, 0, 2 / 3])
    ]
    assert constant("regression", torch.tensor([1.0, 3.0]), torch.zeros(2), 1).tolist() == [2.0, 2.0]
    assert constant("multilabel", torch.tensor([[1.0, 0.0], [1.0, 1.0]]), torch.zeros(1, 2), 2).tolist() == [[1.0, 0.5]]


def test_how_values_are_compared_and_shown() -> None:
    share, error = Measure("f1"), measure_of({"metric": "rmse"})
    assert (share.text(0.5), error.text(1234.5), error.text(None)) == ("50.0 %", "1234", "–")
    assert (share.worst([0.1, 0.9]), error.worst([0.1, 0.9]), error.best([0.1, 0.9])) == (0.1, 0.9, 0.1)
    assert error.at_least(1.0, 2.0)
    assert error.ahead(1.0, 3.0) == 2.0
    assert measure_of({}) == Measure("accuracy")

"""How good predictions are. Every metric is a function of (prediction, target), as the user's own may be, too.

`prediction` is float64: probabilities [n, classes], probabilities of each label [n, labels], or numbers in the user's
units and in the form of the targets. `target` is [n] whole numbers, [n, labels] of 0 and 1, or [n] or [n, d] numbers.
Where a metric is not defined (the AUROC of one class alone) the value is NaN, and it is left out of all means.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core import user_code
from coterie.core.errors import CoterieError, unknown
from coterie.core.measures import LOWER_IS_BETTER, MEASURES, Measure
from coterie.core.targets import TaskKind

MetricFn = Callable[[Tensor, Tensor], float]
_BINS = 15
_NUMBERS = ("mae", "rmse", "r2")


@dataclass(frozen=True)
class Metric:
    """A named function (prediction, target) -> number, and whether less of it is better."""

    name: str
    function: MetricFn
    lower_is_better: bool = False

    @property
    def measure(self) -> Measure:
        """Its name and direction, without the function."""
        return Measure(self.name, self.lower_is_better)

    def __call__(self, prediction: Tensor, target: Tensor) -> float:
        """The value; what the user's function fails with is one sentence."""
        if self.name in METRICS:
            return self.function(prediction, target)
        return user_code.number_of(self.function, self.name, prediction, target)


def accuracy(prediction: Tensor, target: Tensor) -> float:
    """The share of right answers; with several labels a sample, of all labels."""
    return float((answers(prediction, target) == _whole(target)).double().mean())


def balanced_accuracy(prediction: Tensor, target: Tensor) -> float:
    """The mean over the classes that occur of the share of their samples that are recognised."""
    if target.dim() == 2:
        return _over_labels(balanced_accuracy, prediction, target)
    found, truth = answers(prediction, target), _whole(target)
    return _mean([float((found[truth == k] == k).double().mean()) for k in truth.unique()])


def f1(prediction: Tensor, target: Tensor) -> float:
    """2 TP / (2 TP + FP + FN), the mean over the classes (or labels) that occur among targets or answers."""
    found, truth = answers(prediction, target), _whole(target)
    if target.dim() == 2:
        pairs = [(found[:, k] == 1, truth[:, k] == 1) for k in range(truth.shape[1])]
    else:
        pairs = [(found == k, truth == k) for k in torch.cat([found, truth]).unique()]
    return _mean([2 * int((f & t).sum()) / total if (total := int(f.sum() + t.sum())) else math.nan for f, t in pairs])


def auroc(prediction: Tensor, target: Tensor) -> float:
    """The chance that a sample of a class gets a higher probability for it than one of another class; ties are half.

    The mean over classes (one against the rest) or labels that have samples of both kinds.
    """
    if target.dim() == 2:
        return _mean(_areas(prediction, target > 0.5))
    classes = torch.tensor([1]) if prediction.shape[1] == 2 else torch.arange(prediction.shape[1])
    return _mean(_areas(prediction[:, classes], target[:, None] == classes))


def log_loss(prediction: Tensor, target: Tensor) -> float:
    """Minus the mean logarithm of the probability of what is true, which counts as 2e-16 at least."""
    if target.dim() == 2:
        true = torch.where(target > 0.5, prediction, 1 - prediction)
    else:
        true = prediction.gather(1, target[:, None])
    return -float(true.clamp_min(torch.finfo(torch.float64).eps).log().mean())


def calibration_error(prediction: Tensor, target: Tensor) -> float:
    """How far confidence and accuracy are apart: over 15 bins of equal width of the largest probability, the mean
    distance of the two, weighted by the samples of a bin (Guo et al. 2017, equation 3).
    """
    right = (answers(prediction, target) == _whole(target)).double().flatten()
    sure = (torch.maximum(prediction, 1 - prediction) if target.dim() == 2 else prediction.amax(1)).flatten()
    bins = ((sure * _BINS).ceil().long() - 1).clamp(0, _BINS - 1)
    gaps = torch.zeros(_BINS, dtype=torch.float64).index_add_(0, bins, right - sure)
    return float(gaps.abs().sum()) / len(sure)


def mean_absolute_error(prediction: Tensor, target: Tensor) -> float:
    """The mean distance; of several numbers a sample, over all of them."""
    return float((_columns(prediction) - _columns(target)).abs().mean())


def root_mean_squared_error(prediction: Tensor, target: Tensor) -> float:
    """The root of the mean squared distance; of several numbers a sample, the mean of their roots."""
    return float((_columns(prediction) - _columns(target)).square().mean(0).sqrt().mean())


def r2(prediction: Tensor, target: Tensor) -> float:
    """1 - the squared errors by those of the targets' own mean; the mean over numbers whose targets are not all one."""
    truth = _columns(target)
    spread = (truth - truth.mean(0)).square().sum(0)
    errors = (_columns(prediction) - truth).square().sum(0)
    return _mean([float(1 - e / s) if s > 0 else math.nan for e, s in zip(errors, spread, strict=True)])


METRICS: dict[str, Metric] = {
    name: Metric(name, function, name in LOWER_IS_BETTER)
    for name, function in zip(
        MEASURES,
        (
            accuracy, balanced_accuracy, f1, auroc, log_loss, calibration_error,
            mean_absolute_error, root_mean_squared_error, r2,
        ),
        strict=True,
    )
}  # fmt: skip


def metrics_of(kind: TaskKind) -> dict[str, Metric]:
    """All that can be measured of a kind of task."""
    return {name: each for name, each in METRICS.items() if (name in _NUMBERS) == (kind == "regression")}


def chosen_metric(metric: str | Metric | MetricFn, kind: TaskKind) -> Metric:
    """What a run is judged by: the user's choice, or that of its kind.

    "auto" is the accuracy or, for numbers, the root mean squared error. That has the user's units and is defined for
    every client; R² is not where a client's few test targets are equal, and one client with little spread can outweigh
    all others in its mean.
    """
    if isinstance(metric, Metric):
        return metric
    if not isinstance(metric, str):
        if not callable(metric):
            raise CoterieError(
                f"The metric is of type {type(metric).__name__}; give a name ({', '.join(MEASURES)}), a function "
                "(prediction, target), or coterie.Metric(name, function, lower_is_better)."
            )
        return Metric(getattr(metric, "__name__", type(metric).__name__), metric)
    known = metrics_of(kind)
    if metric == "auto":
        return known["rmse" if kind == "regression" else "accuracy"]
    if metric not in known:
        raise unknown(f"metric of a task of {kind}" if metric in METRICS else "metric", metric, ["auto", *known])
    return known[metric]


def constant(kind: TaskKind, train: Tensor, test: Tensor, classes: int) -> Tensor:
    """What one who looks at no input predicts for the test part: the shares of the classes or labels in the training
    part, or the mean of its targets; the most frequent class has the largest share.
    """
    if kind == "regression":
        return _columns(train).mean(0).expand(len(test), -1).reshape(test.shape)
    if kind == "multilabel":
        middle = train.double().mean(0)
    else:
        middle = torch.bincount(train.long(), minlength=max(classes, int(test.max()) + 1 if len(test) else 0)).double()
        middle = middle / middle.sum()
    return middle.expand(len(test), -1)


def floor(metric: Metric, kind: TaskKind, train: Tensor, test: Tensor, classes: int) -> float:
    """The value of `constant`: what a client has without any learning. NaN where it has no samples."""
    return metric(constant(kind, train, test, classes), test) if len(train) and len(test) else math.nan


def answers(prediction: Tensor, target: Tensor) -> Tensor:
    """The class, or the labels, that the probabilities favour."""
    return (prediction > 0.5).long() if target.dim() == 2 else prediction.argmax(1)


def _areas(scores: Tensor, positive: Tensor) -> list[float]:
    """Of every column, of the ranks, which ties share (Mann and Whitney's U); NaN where all samples are of one kind."""
    columns = scores.T.masked_fill(scores.T.isnan(), math.inf).contiguous()  # NaN compares with nothing
    ordered = columns.sort(1).values
    below, up_to = (torch.searchsorted(ordered, columns, right=equal) for equal in (False, True))
    ranks = (below + up_to + 1).double() / 2
    number = positive.sum(0).double()
    above = (ranks * positive.T).sum(1) - number * (number + 1) / 2
    areas: list[float] = (above / (number * (len(scores) - number))).tolist()
    return areas


def _over_labels(metric: MetricFn, prediction: Tensor, target: Tensor) -> float:
    """The mean over labels of a metric of two classes."""
    pairs = [torch.stack([1 - prediction[:, k], prediction[:, k]], dim=1) for k in range(target.shape[1])]
    return _mean([metric(pair, _whole(target[:, k])) for k, pair in enumerate(pairs)])


def _whole(target: Tensor) -> Tensor:
    return target.round().long() if target.is_floating_point() else target


def _columns(target: Tensor) -> Tensor:
    return target.double().reshape(len(target), -1)


def _mean(values: list[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan

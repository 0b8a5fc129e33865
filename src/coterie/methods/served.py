"""The model that a client would use now, and how it is judged: in every evaluation, and fully at the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import ClassVar

import torch
from torch import Tensor

from coterie.core.cohort import Cohort
from coterie.core.evaluation import evaluate, measured
from coterie.core.measures import LOWER_IS_BETTER, MEASURES
from coterie.core.metrics import floor
from coterie.core.optimiser import Optimiser
from coterie.core.personal import personal_models
from coterie.core.states import Stack

Limits = tuple[float, float | str]
"""The least and the largest value of a field, or the field that is never exceeded."""
_COUNTS: Mapping[str, Limits] = {"correct": (0.0, "count"), "count": (0.0, 2.0**40)}


@dataclass(frozen=True)
class Use:
    """The model that each client of a cohort would use now, [C], and its cluster (-1 where the server chose the model).

    The cohort is the one that was asked, or the same clients with something beside their samples.
    """

    cohort: Cohort
    models: Stack
    cluster: Tensor


def use(c: Cohort, models: Stack) -> Use:
    """These models, for clients that have not chosen a cluster themselves."""
    return Use(c, models, torch.full((len(c),), -1))


@dataclass(frozen=True)
class Assessment:
    """How the model a client would use does on its test part; `cluster` is -1 where the server chose the model."""

    correct: Tensor
    loss: Tensor
    count: Tensor
    cluster: Tensor
    score: Tensor | None = None
    """The value of the task's metric, where that is not the accuracy."""

    unbounded: ClassVar[tuple[str, ...]] = ("loss", "score")
    """A model that has diverged has no finite loss: its client says so, and its reply is not broken."""
    limits: ClassVar[Mapping[str, Limits]] = _COUNTS
    """Between what an answer lies that can be true."""
    may_be_nowhere: ClassVar[bool] = True
    """Whether `cluster` may be -1, for none; elsewhere it is an index, and must be one."""


@dataclass(frozen=True)
class Examination:
    """An assessment with all that is measured at the end of a run; what is not defined is NaN."""

    correct: Tensor
    loss: Tensor
    count: Tensor
    cluster: Tensor
    score: Tensor | None
    metrics: dict[str, Tensor]
    """Everything that can be measured of such a task, by name."""
    floor: Tensor
    """The score of a constant answer: the most frequent class, or the mean, of the client's training part."""
    tuned_correct: Tensor | None
    tuned_score: Tensor | None
    """The same of the model after a little training on the client's own data, or of the model as it is where samples
    that the client holds out do not gain by that."""

    unbounded: ClassVar[tuple[str, ...]] = (
        *("loss", "score", "floor", "tuned_correct", "tuned_score"),
        *(f"metrics/{name}" for name in MEASURES),
    )
    limits: ClassVar[Mapping[str, Limits]] = {
        **_COUNTS,
        "tuned_correct": (0.0, "count"),
        **{f"metrics/{name}": (0.0, inf if name in LOWER_IS_BETTER - {"ece"} else 1.0) for name in MEASURES},
        "metrics/r2": (-inf, 1.0),
    }
    may_be_nowhere: ClassVar[bool] = True


@dataclass(frozen=True)
class Floors:
    """The score of a constant answer on each client's test part, as in `Examination`."""

    floor: Tensor

    unbounded: ClassVar[tuple[str, ...]] = ("floor",)


def floors(c: Cohort) -> Floors:
    """What each client has without any learning."""
    each = [floor(c.task.primary, c.task.kind, one.train.y, one.test.y, c.task.classes) for one in c.data]
    return Floors(torch.tensor(each, dtype=torch.float64))


def finetuned(given: Use, opt: Optimiser) -> Use:
    """The same clients with their model, or with that model after a little training where its own data prefer that."""
    return Use(given.cohort, personal_models(given.cohort, given.models, opt).models, given.cluster)


def assessed(given: Use) -> Assessment:
    """Each client's model on its own test part."""
    scores = evaluate(given.cohort, given.models)
    return Assessment(scores.correct, scores.loss, scores.count, given.cluster, scores.score)


def examined(given: Use, tuned: Use | None) -> Examination:
    """The same with all metrics, the floor, and how the fine-tuned model does."""
    c, found = given.cohort, assessed(given)
    after = found if tuned is given else None if tuned is None else assessed(tuned)
    return Examination(
        found.correct,
        found.loss,
        found.count,
        found.cluster,
        found.score,
        measured(c, given.models),
        floors(c).floor,
        None if after is None else after.correct,
        None if after is None else after.score,
    )

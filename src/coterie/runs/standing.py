"""How each client stands at an evaluation, and the means that a result is made of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from coterie.core.measures import MEASURES, Measure
from coterie.core.task import Task
from coterie.methods.served import Assessment, Examination

Values = list[float | None]
"""One value a client; None where it has none."""


@dataclass(frozen=True)
class Standing:
    """One value a client of all that was measured."""

    task: str
    measure: Measure
    accuracy: Values
    """All None where the task has no right answers."""
    score: Values
    metrics: Mapping[str, Values] = field(default_factory=dict)
    floor: Values = field(default_factory=list)
    finetuned_accuracy: Values = field(default_factory=list)
    finetuned_score: Values = field(default_factory=list)

    @classmethod
    def of(cls, task: Task, value: Assessment | Examination) -> Standing:
        """What the clients have replied."""
        accuracy, score = _judged(task, value.correct, value.score, value.count)
        if isinstance(value, Assessment):
            return cls(task.kind, task.primary.measure, accuracy, score)
        tuned: tuple[Values, Values] = ([], [])
        if value.tuned_correct is not None:
            tuned = _judged(task, value.tuned_correct, value.tuned_score, value.count)
        return cls(
            task.kind,
            task.primary.measure,
            accuracy,
            score,
            {name: _values(column) for name, column in value.metrics.items() if name in MEASURES},
            _values(value.floor),
            *tuned,
        )

    @property
    def mean_score(self) -> float | None:
        """The mean over the clients that have one."""
        return mean_known(self.score)

    @property
    def worst_score(self) -> float | None:
        """That of the client that is served worst."""
        return self.measure.worst(known(self.score))

    def result(self, floor: float | None) -> dict[str, Any]:
        """The fields of a result that say how good it is; `floor` is the mean floor where it was known before."""
        right = any(value is not None for value in self.accuracy) or self.task != "regression"
        means = {name: mean_known(values) for name, values in self.metrics.items()}
        return {
            "task": self.task,
            "metric": self.measure.name,
            "lower_is_better": self.measure.lower_is_better,
            "accuracy": (mean_known(self.accuracy) or 0.0) if right else math.nan,
            "worst_accuracy": min(known(self.accuracy), default=0.0) if right else math.nan,
            "score": self.mean_score,
            "worst_score": self.worst_score,
            "floor": mean_known(self.floor) if self.floor else floor,
            "metrics": {name: value for name, value in means.items() if value is not None},
            "finetuned_accuracy": mean_known(self.finetuned_accuracy),
            "finetuned_score": mean_known(self.finetuned_score),
            "per_client_accuracy": self.accuracy,
            "per_client_score": self.score,
            "per_client_floor": self.floor,
            "per_client_metrics": dict(self.metrics),
            "per_client_finetuned_score": self.finetuned_score,
            "per_client_finetuned_accuracy": self.finetuned_accuracy,
        }


def known(values: Sequence[float | None]) -> list[float]:
    """Those values that there are."""
    return [value for value in values if value is not None]


def mean_known(values: Sequence[float | None]) -> float | None:
    """The mean of those values that there are; None where there is none."""
    there = known(values)
    return sum(there) / len(there) if there else None


def _judged(task: Task, correct: Tensor, score: Tensor | None, count: Tensor) -> tuple[Values, Values]:
    """Accuracy and score of every client: the metric is the accuracy where no other score is told."""
    share = (correct / count.clamp_min(1)).tolist()
    shares: Values = [s if n and math.isfinite(s) else None for s, n in zip(share, count.tolist(), strict=True)]
    accuracy: Values = [None] * len(shares) if task.kind == "regression" else shares
    return accuracy, shares if score is None else _values(score)


def _values(column: Tensor) -> Values:
    return [value if math.isfinite(value) else None for value in column.tolist()]

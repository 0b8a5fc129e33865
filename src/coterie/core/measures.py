"""The names of what is measured, and how its values are compared and shown. (No torch: reports need none.)"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

MEASURES = ("accuracy", "balanced_accuracy", "f1", "auroc", "log_loss", "ece", "mae", "rmse", "r2")
"""All that is measured at the end of a run, in the order in which it is shown; a task has those that it can have."""
LOWER_IS_BETTER = frozenset({"log_loss", "ece", "mae", "rmse"})
_SHARES = frozenset({"accuracy", "balanced_accuracy", "f1", "auroc"})
_TITLES = {
    "balanced_accuracy": "balanced accuracy", "f1": "F1", "auroc": "AUROC", "log_loss": "log loss",
    "ece": "calibration error", "mae": "MAE", "rmse": "RMSE", "r2": "R²",
}  # fmt: skip


@dataclass(frozen=True)
class Measure:
    """What a run is judged by: its name, and whether less of it is better."""

    name: str = "accuracy"
    lower_is_better: bool = False

    @property
    def title(self) -> str:
        """The name for people."""
        return _TITLES.get(self.name, self.name.replace("_", " "))

    @property
    def is_share(self) -> bool:
        """Whether its values are shares of one, shown as percentages."""
        return self.name in _SHARES

    def text(self, value: float | None) -> str:
        """A value for people; nothing where there is none."""
        if value is None or not isfinite(value):
            return "–"
        return f"{100 * value:.1f} %" if self.is_share else f"{value:.4g}"

    def spread(self, mean: float | None, deviation: float | None) -> str:
        """A mean with its deviation: 94.1 ± 0.3 %; without one just the mean."""
        if mean is None or deviation is None or not (isfinite(mean) and isfinite(deviation)):
            return self.text(mean)
        if self.is_share:
            return f"{100 * mean:.1f} ± {100 * deviation:.1f} %"
        return f"{mean:.4g} ± {deviation:.2g}"

    def worst(self, values: Iterable[float]) -> float | None:
        """The worst of some values, None where there is none."""
        return max(values, default=None) if self.lower_is_better else min(values, default=None)

    def best(self, values: Iterable[float]) -> float | None:
        """The best of some values, None where there is none."""
        return min(values, default=None) if self.lower_is_better else max(values, default=None)

    def at_least(self, value: float, wanted: float) -> bool:
        """Whether a value is as good as the one that is wanted, or better."""
        return value <= wanted if self.lower_is_better else value >= wanted

    def ahead(self, value: float, other: float) -> float:
        """By how much a value is better than another; below 0 where it is worse."""
        return other - value if self.lower_is_better else value - other


def score_of(record: Mapping[str, Any], worst: bool = False) -> float | None:
    """The mean (or worst) score of a result or of a round; in older ones it is the accuracy."""
    names = ("worst_score", "worst_accuracy") if worst else ("score", "accuracy")
    values = (record.get(name) for name in names)
    return next((float(value) for value in values if isinstance(value, (int, float))), None)


def measure_of(record: Mapping[str, Any]) -> Measure:
    """What a result, or a line of a comparison, says that it is judged by; older ones are judged by accuracy."""
    name = record.get("metric")
    if not isinstance(name, str):
        return Measure()
    return Measure(name, bool(record.get("lower_is_better", name in LOWER_IS_BETTER)))


def client_scores(result: Mapping[str, Any]) -> list[float | None]:
    """The score of every client; in older results it is the accuracy."""
    return list(result.get("per_client_score") or result.get("per_client_accuracy") or ())


def capitalised(title: str) -> str:
    """A title at the beginning of a heading."""
    return title[:1].upper() + title[1:]

"""Differences between two choices, client by client, with an interval."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from coterie.core.rng import rng

_DRAWS = 2000
_LOW, _HIGH = 2.5, 97.5


@dataclass(frozen=True)
class Interval:
    """A mean over clients and its 95 % interval (bootstrap over the clients)."""

    mean: float
    low: float
    high: float

    @property
    def sure(self) -> bool:
        """Whether the interval lies above zero."""
        return self.low > 0


def paired_gain(first: Mapping[str, float], second: Mapping[str, float], *, lower: bool = False) -> Interval:
    """What clients gain by the first choice over the second: mean of the differences of those that have both.

    Above zero is better; `lower` says that lower scores are.
    """
    both = sorted(first.keys() & second.keys())
    if not both:
        return Interval(0.0, 0.0, 0.0)
    gains = np.array([first[client] - second[client] for client in both]) * (-1 if lower else 1)
    drawn = rng(0, "paired bootstrap").integers(len(gains), size=(_DRAWS, len(gains)))
    low, high = np.percentile(gains[drawn].mean(1), (_LOW, _HIGH))
    return Interval(float(gains.mean()), float(low), float(high))


def amount_of(gain: Interval, metric: str) -> str:
    """A gain with its interval, in points where the metric is a share."""
    if metric == "accuracy":
        return f"{100 * gain.mean:+.1f} points (95 %: {100 * gain.low:+.1f} to {100 * gain.high:+.1f})"
    return f"{gain.mean:+.3g} in {metric} (95 %: {gain.low:+.3g} to {gain.high:+.3g})"

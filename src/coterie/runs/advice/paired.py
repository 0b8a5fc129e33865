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


def paired_gain(first: Mapping[str, float], second: Mapping[str, float]) -> Interval:
    """What clients gain by the first choice over the second: mean of the differences of those that have both."""
    both = sorted(first.keys() & second.keys())
    if not both:
        return Interval(0.0, 0.0, 0.0)
    gains = np.array([first[client] - second[client] for client in both])
    drawn = rng(0, "paired bootstrap").integers(len(gains), size=(_DRAWS, len(gains)))
    low, high = np.percentile(gains[drawn].mean(1), (_LOW, _HIGH))
    return Interval(float(gains.mean()), float(low), float(high))

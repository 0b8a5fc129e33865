"""What randomised response gives: the local differential privacy of flipped bits."""

from __future__ import annotations

import math

from coterie.core.errors import CoterieError


def check_flip(probability: float, owner: str = "the flip probability") -> float:
    """A flip probability: 0 sends the bits as they are, 0.5 sends noise."""
    if not 0 <= probability <= 0.5:
        raise CoterieError(
            f"{owner} is {probability} and must lie in [0, 0.5]: 0 sends the bits as they are, 0.5 sends noise."
        )
    return probability


def epsilon_per_bit(probability: float) -> float:
    """Local differential privacy of one bit that is flipped with this probability: ln((1 - P) / P)."""
    check_flip(probability)
    return math.inf if probability == 0 else math.log((1 - probability) / probability)


def epsilon_total(probability: float, bits: int, reports: int = 1) -> float:
    """The same of a whole vector, in which every bit may change with the data: the sum over its bits.

    Flips are drawn once for each value of each bit (see `bits.flip`), so a bit reports at most two independent answers
    however often it is sent: `reports` above 2 cost no more than 2.
    """
    return epsilon_per_bit(probability) * bits * min(max(reports, 1), 2)


def flip_for(epsilon: float) -> float:
    """The flip probability that gives one bit this epsilon."""
    if not epsilon >= 0:
        raise CoterieError(f"epsilon is {epsilon} and must be at least 0; small is private.")
    return 1 / (1 + math.exp(epsilon))

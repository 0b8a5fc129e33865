"""Ours, not in the paper: what we add to PANM's matching and to the weight alpha of its similarity."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_LEAST_VARIANCE = 1e-6  # of cosines
_TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True)
class Rules:
    """What we add to the paper's EM."""

    guard: float = 0.0
    """The list changes only where the means are more than this many (sigma_0 + sigma_1) apart; 0: always."""
    monotone: bool = False
    """A similarity above the larger mean is "same" and one below the smaller is "other", whatever the variances."""
    least_sigma: float = 0.0
    """No deviation is less than this share of the range of a row's similarities, or than 1e-4; 0: no floor."""


PAPER = Rules()
"""The paper's EM as it is."""


def discriminating(theta1: Tensor, theta2: Tensor, mask: Tensor, known: Tensor, most: float) -> Tensor:
    """What theta1 should weigh beside theta2, [C], to tell the neighbours from the others: Fisher's discriminant.

    Each cosine [C, m] is worth the distance of the two means over the variance around them, nothing if neighbours are
    farther than others. Updates of peers who have learnt their data are noise (theta1 says nothing then), and ways that
    were averaged with strangers' grow alike (theta2 says nothing then). `most` where there is nothing to compare.
    """
    near, far = mask & known, mask & ~known
    sizes = [part.sum(1).clamp_min(1) for part in (near, far)]

    def worth(angle: Tensor) -> Tensor:
        means = [_sum_in_order(angle * part) / size for part, size in zip((near, far), sizes, strict=True)]
        around = torch.where(near, means[0][:, None], means[1][:, None])
        variance = _sum_in_order((angle - around).square() * mask) / mask.sum(1).clamp_min(1)
        return (means[0] - means[1]).clamp_min(0) / variance.clamp_min(_LEAST_VARIANCE)

    first, second = worth(theta1), worth(theta2)
    compared = near.any(1) & far.any(1) & (first + second > 0)
    return torch.where(compared, first / (first + second).clamp_min(_TINY), most).clamp_max(most)


def _sum_in_order(rows: Tensor) -> Tensor:
    """Sums [C] of rows [C, m]: the same bits for one real peer as among many, whose rows are filled up with zeros."""
    return rows.cumsum(1)[:, -1]

"""Ours, not in the paper: domains of clients by the mean features of each class (`means = "classes"`).

A client that lacks classes is compared by those it has, so skewed labels are not taken for a domain; and domains whose
inputs are alike but whose labels are not (swapped, cycled) differ class by class.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.methods.fedcg.domains import SMALLEST_SCALE

_APART = 3.0
"""Groups are two if their means are this many times as far apart as chance explains. On digits (seeds 31, 32) one group
that is cut by k-means has up to 1.7, and true domains have from 4.8 on."""
_CUT = 2 / math.pi
"""The share of the variance along a line that the means of its two halves explain."""
_DEVIATIONS, _UNLIKE = 5.0, 2.0
"""What makes a client mixed: pure ones have 1.0 in the mean, and up to 2.1 on digits (seeds 31 to 33)."""


@dataclass(frozen=True)
class Means:
    """Mean features of rows (clients, or domains) in units of their deviation, [R, K, h], and their samples [R, K].

    `chance` is the variance of a sample within its row and class, summed over features; `widest` the share of it that
    lies along one line.
    """

    mean: Tensor
    counts: Tensor
    chance: float
    widest: float

    @classmethod
    def of(cls, sums: Tensor, counts: Tensor, products: Tensor) -> Means:
        """From sums by row and class, and the sum of x x^T over all samples."""
        sums, counts, products = sums.double(), counts.double(), products.double()
        samples = float(counts.sum().clamp_min(1))
        middle = sums.sum((0, 1)) / samples
        scale = (products.diagonal() / samples - middle**2).clamp_min(0).sqrt() + SMALLEST_SCALE
        mean = sums / counts.clamp_min(1)[..., None]
        free = max(samples - float((counts > 0).sum()), 1.0)
        between = sums.flatten(0, 1).T @ mean.flatten(0, 1)
        within = (products - between) / torch.outer(scale, scale) / free
        chance = max(float(within.diagonal().sum()), 1e-12)
        widest = min(max(float(torch.linalg.eigvalsh(within)[-1]), 0.0) / chance, 1.0)
        return cls((mean - middle) / scale * (counts > 0)[..., None], counts, chance, widest)

    def unlike(self, labels: Tensor, odd: Tensor | None = None) -> Tensor:
        """How many times farther than chance explains each row is from the mean of the others of its group, [R].

        `odd` rows [R] do not count in these means.
        """
        found = torch.zeros(len(labels), dtype=torch.float64)
        counts = self.counts if odd is None else self.counts * ~odd[:, None]
        weighed = self.mean * counts[..., None]
        for group in labels.unique():
            own = labels == group
            others = counts[own].sum(0) - counts[own]
            mean = (weighed[own].sum(0) - weighed[own]) / others.clamp_min(1)[..., None]
            found[own] = _times_chance(self, self.mean[own] - mean, self.counts[own], others)[0]
        return found

    def mixed(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """How unlike its group each row is, and which rows are more so than chance explains: they mix several."""
        odd = self.unlike(labels) > self.most_unlike()
        unlike = self.unlike(labels, odd)
        return unlike, unlike > self.most_unlike()

    def least_gap(self) -> float:
        """How many times farther than chance explains the two likest rows are from each other."""
        rows = range(1, len(self.counts))
        each = [_times_chance(self, self.mean[:r] - self.mean[r], self.counts[:r], self.counts[r])[0] for r in rows]
        return float(torch.cat(each).min()) if each else math.inf

    def most_unlike(self) -> Tensor:
        """How unlike its group a row may be by chance, [R]: so many deviations, and not less than `_UNLIKE`."""
        classes = (self.counts > 0).sum(1).clamp_min(1)
        return (1 + _DEVIATIONS * (2 * self.widest / classes).sqrt()).clamp_min(_UNLIKE)


def joined(means: Means, members: Sequence[int], *, apart: int = 0, most: int = 0) -> list[list[int]]:
    """Rows joined, the likest first, until all groups are apart; then, if told, the smallest with others until `most`.

    The first `apart` rows never come together. Two groups are apart if their means are, class by class, `_APART` times
    as far from each other as chance explains, and twice as far as the halves into which one can cut one group of so
    many clients (`members`) along its widest line.
    """
    groups = [[row] for row in range(len(members))]
    mean, counts, sizes = means.mean.clone(), means.counts.clone(), torch.tensor(members, dtype=torch.float64)
    gaps = torch.stack([_gaps(means, mean, counts, sizes, row) for row in range(len(groups))])
    gaps[:apart, :apart] = math.inf
    left = len(groups)
    while left > 1:
        if float(gaps.min()) < 1:
            one, other = sorted(divmod(int(gaps.argmin()), len(groups)))
        elif 0 < most < left:
            other = min((place for place, rows in enumerate(groups) if rows), key=lambda place: float(sizes[place]))
            alone = not math.isfinite(float(gaps[other].min()))  # no class in common with any other
            one = _largest_but(sizes, other) if alone else int(gaps[other].argmin())
        else:
            break
        groups[one], groups[other], left = groups[one] + groups[other], [], left - 1
        both = counts[one] + counts[other]
        weighed = mean[one] * counts[one][:, None] + mean[other] * counts[other][:, None]
        mean[one], counts[one] = weighed / both.clamp_min(1)[:, None], both
        sizes[one], sizes[other] = sizes[one] + sizes[other], 0
        new = _gaps(means, mean, counts, sizes, one)
        gone = [place for place, rows in enumerate(groups) if not rows or (one < apart and place < apart)]
        new[gone] = math.inf
        gaps[one], gaps[:, one] = new, new
        gaps[other], gaps[:, other] = math.inf, math.inf
    return sorted(sorted(rows) for rows in groups if rows)


def _largest_but(sizes: Tensor, place: int) -> int:
    others = sizes.clone()
    others[place] = -1
    return int(others.argmax())


def nearest(means: Means, row: int, groups: int) -> tuple[int, float]:
    """Which of the first rows, which are groups, a row is likest, and how many times farther than chance explains.

    It is the first one where it has no class in common with any.
    """
    far, _ = _times_chance(means, means.mean[:groups] - means.mean[row], means.counts[:groups], means.counts[row])
    has = (means.counts[:groups] * means.counts[row] > 0).any(1)
    far = torch.where(has, far, math.inf)
    return int(far.argmin()), float(far.min())


def _times_chance(means: Means, apart: Tensor, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Squared differences of means [n, K, h] with so many samples either, in units of chance, and common classes."""
    weight = one * other / (one + other).clamp_min(1)
    common = (weight > 0).sum(1)
    return (weight * (apart**2).sum(-1)).sum(1) / (common.clamp_min(1) * means.chance), common


def _gaps(means: Means, mean: Tensor, counts: Tensor, sizes: Tensor, row: int) -> Tensor:
    """How far one group is from every other, as a share of what makes them two; infinite without common classes."""
    far, common = _times_chance(means, mean - mean[row], counts, counts[row])
    cut = 1 + _CUT * (sizes + sizes[row]) * means.widest / common.clamp_min(1)
    gaps = torch.where(common > 0, far / (2 * cut).clamp_min(_APART), math.inf)
    gaps[row] = math.inf
    return gaps

"""What FedCG's server keeps between rounds, what it sends to clients and what they answer."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from coterie.core.states import Stack, State
from coterie.core.wire import LATER

TIMES = (0.5, 0.7, 0.85, 1.0)
"""Ours: the weights that clients try on the residuals, in times of the one that these have; the last is this itself."""


@dataclass(frozen=True)
class Looks:
    """Ours: what the server has learnt of features class by class, by domain (`means = "classes"`).

    Sums [D, K, h] and samples [D, K] of the clients of each domain, their number [D] (0: a domain that is free), and
    the sum of x x^T over all samples, [h, h]. `marks` are those of the data that clients have described; `again` who
    is to describe them once more, because they are others now; `tries` how often a client has not answered or has had
    other data.
    """

    sums: Tensor
    counts: Tensor
    members: Tensor
    products: Tensor
    marks: dict[str, int]
    again: list[str]
    tries: dict[str, int]


@dataclass(frozen=True)
class Weight:
    """Ours: what is known of the weight of the residuals.

    `heard` [n, W] are clients' losses by weight (`TIMES`) since it was changed, `seen` [D] the samples of each domain
    that were trained on in all rounds; `held` says that the weight is not learnt any more.
    """

    heard: Tensor
    seen: Tensor
    held: bool

    @classmethod
    def unheard(cls) -> Weight:
        """Nothing is known, and the weight is learnt."""
        return cls(torch.zeros(0, len(TIMES), dtype=torch.float64), torch.zeros(0, dtype=torch.float64), False)


@dataclass(frozen=True)
class Domains:
    """The network, what tells domains apart, and how evenly they were used in every round.

    `offsets` [D] are added to the teacher's outputs so that all domains are used alike (empty: not measured, or
    `balance` is off).
    """

    model: State
    student: State
    teacher: State
    cluster: dict[str, int]
    centres: Tensor
    offsets: Tensor
    pooled: bool
    samples: list[float]
    history: dict[str, list[float]]
    looks: Looks | None = None
    weight: Weight = field(default_factory=Weight.unheard, metadata={LATER: True})


@dataclass(frozen=True)
class Sent:
    """The network, teacher and student for everyone, and the domain of each client where the server decides it."""

    model: State
    teacher: State
    student: State
    pooled: bool
    domain: Tensor


@dataclass(frozen=True)
class Report:
    """A client's network and student after training, its samples by domain and how many its student agrees on."""

    model: Stack
    student: Stack
    counts: Tensor
    agreed: Tensor
    size: Tensor


@dataclass(frozen=True)
class MarkedReport(Report):
    """Ours: the same, and a mark of the client's data, by which the server sees that they are others now."""

    mark: Tensor


@dataclass(frozen=True)
class Judged:
    """Ours: a client's losses before its training, by weight of the residuals, [C, W]."""

    losses: Tensor


@dataclass(frozen=True)
class ClassSums:
    """Ours: sums of a client's features by class [K, h], of their products, samples by class [K], and its mark."""

    sums: Tensor
    products: Tensor
    counts: Tensor
    mark: Tensor


@dataclass(frozen=True)
class Sums:
    """First and second moments of a client's features, summed over its samples."""

    total: Tensor
    products: Tensor
    size: Tensor


@dataclass(frozen=True)
class Weigh:
    """A teacher whose domains are to be used alike: offsets of its outputs, and how sharply it assigns samples."""

    teacher: State
    offsets: Tensor
    sharpness: Tensor


@dataclass(frozen=True)
class Assigned:
    """Sums over a client's samples: soft assignments [D], their products [D, D], the outputs [D] and their squares."""

    soft: Tensor
    products: Tensor
    total: Tensor
    squares: Tensor
    size: Tensor

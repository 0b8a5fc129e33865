"""What MD-ICFL keeps between rounds, and what passes between its server and its clients."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from coterie.core.states import Stack


@dataclass(frozen=True)
class Seeds:
    """Cosine seeding on its way.

    Of every client met: the mean of its directions (`vectors`) and of how many rounds it is (`looks`). `groups` is the
    last judgement, `judged` what `looks` were then, `turns` how many judgements there were, and `alike` how many of the
    last ones agreed. `gram` and `cross` are the running sums from which the directions' centre follows (`looks.py`).
    """

    vectors: dict[str, Tensor]
    groups: dict[str, int]
    alike: int = 1
    turns: int = 0
    looks: dict[str, int] = field(default_factory=dict)
    judged: dict[str, int] = field(default_factory=dict)
    gram: Tensor | None = None
    cross: Tensor | None = None


@dataclass(frozen=True)
class Doubts:
    """Who is to be looked at again (ours, see `second_look`); all numbers are logarithms of distances.

    `usual` holds each client's last distance to its own cluster, `doubted` the one that raised a doubt, and `cleared`
    the one that a second look found to mean nothing. `named` is the cluster that a look has named, not yet surely.
    """

    usual: dict[str, float] = field(default_factory=dict)
    doubted: dict[str, float] = field(default_factory=dict)
    named: dict[str, int] = field(default_factory=dict)
    cleared: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Distanced:
    """K models, the cluster of every client met, what clients said of themselves, and the samples of the last round.

    `labels` is p_i(y) and stays empty under strong privacy. `held` is the round until which seeded clusters are kept.
    """

    models: Stack
    cluster: dict[str, int]
    labels: dict[str, Tensor]
    means: dict[str, Tensor]
    seeds: Seeds | None = None
    held: int = 0
    samples: Tensor | None = None
    generators: Stack | None = None
    outputs: Tensor | None = None
    doubts: Doubts = field(default_factory=Doubts)


@dataclass(frozen=True)
class Brightness:
    """The mean of a client's inputs per channel, as its network sees them."""

    mean: Tensor


@dataclass(frozen=True)
class Introduction:
    """The same, and the shares p_i(y) of the classes: what a client says once, under weak privacy."""

    mean: Tensor
    labels: Tensor


@dataclass(frozen=True)
class ClassDistances:
    """The secondary communication: d_ij^k of a client to every cluster, [K, C]."""

    distances: Tensor

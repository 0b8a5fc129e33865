"""What MD-ICFL keeps between rounds, and what passes between its server and its clients."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from coterie.core.states import Stack


@dataclass(frozen=True)
class Seeds:
    """Cosine seeding on its way: each client's summed direction, the last round's groups, for how many rounds alike."""

    vectors: dict[str, Tensor]
    groups: dict[str, int]
    alike: int = 1


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
    """The secondary communication: d_ij^k of a client to every cluster, [K, C], and the cluster it is in (-1: none)."""

    distances: Tensor
    present: Tensor


@dataclass(frozen=True)
class Identity:
    """The cluster a client finds nearest."""

    cluster: Tensor

"""Which rows of a pool a client owns, found when it is asked for: nothing grows with the registered clients.

A draw is keyed by the client's number. Blocks cut one random order of the pool into clients: no two share a
sample until the pool is used up; then it is put into a new order and cut again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Protocol

import numpy as np

from coterie.core.errors import CoterieError
from coterie.core.rng import rng

from .partition import Index, balanced_counts, by_owner, dirichlet_draw


class Draw(Protocol):
    """A rule that gives each client its rows."""

    def rows(self, number: int, labels: tuple[int, ...] = ()) -> Index:
        """The rows of the client of this number; `labels` is the label shift of its group (see `Shift`)."""


@dataclass(frozen=True)
class EqualBlocks:
    """Every client has `size` rows, whatever their labels."""

    n: int
    size: int
    seed: int
    purpose: str

    def __post_init__(self) -> None:
        _check_size(self.size, self.n)

    def rows(self, number: int, labels: tuple[int, ...] = ()) -> Index:
        """The block of this number."""
        turn, place = divmod(number, self.n // self.size)
        order = _order(self.seed, self.purpose, self.n, turn, -1)
        return order[place * self.size : (place + 1) * self.size].astype(np.int64)


@dataclass(frozen=True, eq=False)
class BalancedBlocks:
    """Every client has `size` rows with all classes alike (counts differ by one where they must)."""

    labels: Index
    classes: int
    size: int
    seed: int
    purpose: str

    def __post_init__(self) -> None:
        _check_size(self.size, len(self.labels))
        counts = np.bincount(self.labels, minlength=self.classes)
        if self._width > counts.min():
            label = int(counts.argmin())
            raise CoterieError(
                f"A class-balanced client with {self.size} samples needs {self._width} of each class and class "
                f"{label} has {counts[label]}; ask for fewer samples or another partition."
            )

    def rows(self, number: int, labels: tuple[int, ...] = ()) -> Index:
        """The blocks of this number, one from each class, in random order."""
        blocks = min(len(rows) for rows in self._members.values()) // self._width
        turn, place = divmod(number, blocks)
        start = place * self._width
        parts = []
        for label, count in enumerate(balanced_counts(number, self.size, self.classes)):
            members = self._members[label]
            order = _order(self.seed, self.purpose, len(members), turn, label)
            parts.append(members[order[start : start + count]])
        return rng(self.seed, f"{self.purpose}-mix", number).permutation(np.concatenate(parts))

    @property
    def _width(self) -> int:
        return -(-self.size // self.classes)

    @cached_property
    def _members(self) -> dict[int, Index]:
        return by_owner(self.labels)


@dataclass(frozen=True, eq=False)
class DirichletDraws:
    """Every client has `size` rows whose label mix is its own draw of Dirichlet(alpha * p), p uniform."""

    labels: Index
    classes: int
    size: int
    alpha: float
    seed: int
    purpose: str
    repeat: bool = False
    """Whether a client may have more samples than the pool, some of them twice."""

    def __post_init__(self) -> None:
        _check_size(self.size, self.size if self.repeat else len(self.labels))

    def rows(self, number: int, labels: tuple[int, ...] = ()) -> Index:
        """This client's own draw; the mix is one of labels after the shift."""
        g = rng(self.seed, self.purpose, number)
        return dirichlet_draw(self._members, self.alpha, self.size, g, labels=labels)

    @cached_property
    def _members(self) -> list[Index]:
        found = by_owner(self.labels)
        return [found.get(label, np.empty(0, np.int64)) for label in range(self.classes)]


@dataclass(frozen=True, eq=False)
class FixedRows:
    """A partition that was made as a whole: all rows one after another, and where each client's begin."""

    flat: Index
    starts: Index

    @classmethod
    def of(cls, parts: list[Index]) -> FixedRows:
        """From one array a client."""
        starts = np.cumsum([0, *(len(part) for part in parts)], dtype=np.int64)
        return cls(np.concatenate([np.empty(0, np.int64), *parts]).astype(np.int64), starts)

    def rows(self, number: int, labels: tuple[int, ...] = ()) -> Index:
        """The rows given to this client."""
        return self.flat[self.starts[number] : self.starts[number + 1]]


@lru_cache(maxsize=32)
def _order(seed: int, purpose: str, n: int, turn: int, label: int) -> Index:
    """A random order of n rows. Neighbours in a block scheme share it, so the last few are kept."""
    order: Index = rng(seed, purpose, turn, label).permutation(n)
    order.setflags(write=False)
    return order


def _check_size(size: int, n: int) -> None:
    if size < 1:
        raise CoterieError(f"A client needs at least one sample and {size} were asked for.")
    if size > n:
        raise CoterieError(f"{size} samples a client are more than the {n} there are; ask for at most {n}.")

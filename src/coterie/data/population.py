"""Populations whose clients' data are made when they are asked for, from pools that all of them share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.rng import rng
from coterie.core.samples import (
    ClientData,
    ClientId,
    Normalise,
    Population,
    Samples,
)

from .draws import Draw
from .drift import Drift
from .partition import Index
from .pool import Pool
from .shift import Shift


@dataclass(frozen=True, eq=False)
class Source:
    """One domain: a pool to train on, one to test on, and the rules that give each client its rows of them."""

    train: Pool
    test: Pool
    train_rows: Draw
    test_rows: Draw
    metadata: Index | None = None
    """A number for every row (CelebA's attribute domains); only where both pools are the same one."""


@dataclass(frozen=True)
class Parts:
    """One value for each part of a client's data."""

    train: Tensor
    test: Tensor
    valid: Tensor | None = None


@dataclass(frozen=True, eq=False)
class LazyPopulation:
    """Clients as rows of shared pools under the shift of their group.

    Client number i is in group i mod K; with `sizes`, the first so many clients are in the first group, and so on.

    Nothing but the list of names grows with the clients. `unseen_ids` are further clients, made in the same
    way, who never take part in training.
    """

    ids: tuple[ClientId, ...]
    sources: tuple[Source, ...]
    shifts: tuple[Shift, ...]
    classes: int
    normalise: Normalise
    seed: int
    validation: float = 0.0
    drifts: tuple[Drift, ...] = ()
    unseen_ids: tuple[ClientId, ...] = ()
    has_groups: bool = True
    training: Mapping[str, Any] = field(default_factory=dict)
    """How a named scenario is trained; `coterie.run` takes its learning rate where none is set."""
    scenario: str = ""
    """The name of that scenario."""
    sizes: tuple[int, ...] = ()
    """How many clients each group has at the start; empty where all have the same number."""
    mixed: float = 0.0
    """The share of every client's samples, of all parts, that are as those of the next group."""
    tests_alike: bool = False
    """Whether a client's tests ask for labels as often as it has them in training; scenarios test all labels."""

    def __repr__(self) -> str:
        return f"<{len(self.ids)} clients of {self.scenario or 'shared pools'}, {self.classes} classes>"

    def __post_init__(self) -> None:
        if not self.ids:
            raise CoterieError("A population needs at least one client; ask for one or more.")
        if not 0 <= self.validation < 1:
            raise CoterieError(f"The validation part is {self.validation}; give a fraction from 0 to below 1.")
        if self.drifts and (not self.has_groups or len(self.shifts) < 2):
            raise CoterieError("These clients have no groups to drift between; leave the drift out.")
        if any(drift.to == "new" for drift in self.drifts) and 0 not in self.sizes:
            raise CoterieError("A drift to new groups needs a group without members: end group_sizes with 0.")
        for drift in self.drifts:
            for client, group in drift.groups.items():
                if not 0 <= group < len(self.shifts):
                    raise CoterieError(
                        f"Client {client} cannot drift to group {group}; groups are 0..{len(self.shifts) - 1}."
                    )
                self._number(client)

    def made_by(self, function: Callable[..., LazyPopulation], given: Mapping[str, Any]) -> LazyPopulation:
        """Remember how this population was made: another process makes it again, from the files that it has."""
        object.__setattr__(self, "_recipe", (function, dict(given)))  # not of a copy that `replace` changes
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        recipe = getattr(self, "_recipe", None)
        if recipe is None:
            return LazyPopulation, tuple(getattr(self, each.name) for each in fields(self))
        return _made_again, recipe

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return self.sources[0].train.shape

    def client(self, client: ClientId, round: int = 0) -> ClientData:
        """The data of one client as they are in that round."""
        shift, source, (train, valid, test) = self._rows(client, round)
        other = self.shifts[(self._group(client, round) + 1) % len(self.shifts)]

        def shifted(pool: Pool, rows: Index) -> Callable[[], Samples]:
            if self.mixed:
                own, guests = self._parted(client, rows)
                return lambda: _joined(shift(pool.take(own)), other(pool.take(guests)))
            if source.metadata is None:
                return lambda: shift(pool.take(rows))
            known = torch.from_numpy(source.metadata[rows])
            return lambda: replace(shift(pool.take(rows)), extra=known)

        return ClientData(
            shifted(source.train, train),
            shifted(source.test, test),
            None if valid is None else shifted(source.train, valid),
        )

    def group(self, client: ClientId, round: int = 0) -> int | None:
        """The true group in that round, for the evaluator only; None where there is no truth."""
        return self._group(client, round) if self.has_groups else None

    def labels(self, client: ClientId, round: int = 0) -> Parts:
        """The labels alone, without touching an image."""
        shift, source, (train, valid, test) = self._rows(client, round)
        table = np.asarray(shift.labels or range(self.classes), np.int64)
        other = self.shifts[(self._group(client, round) + 1) % len(self.shifts)]
        others = np.asarray(other.labels or range(self.classes), np.int64)

        def shifted(pool: Pool, rows: Index) -> Tensor:
            own, guests = self._parted(client, rows)
            return torch.from_numpy(np.concatenate([table[pool.labels[own]], others[pool.labels[guests]]]))

        return Parts(
            shifted(source.train, train),
            shifted(source.test, test),
            None if valid is None else shifted(source.train, valid),
        )

    def metadata(self, client: ClientId, round: int = 0) -> Parts | None:
        """The metadata domain of every sample of a client (CelebA), None where the data have none."""
        _, source, (train, valid, test) = self._rows(client, round)
        if source.metadata is None:
            return None
        number = torch.from_numpy(source.metadata)
        return Parts(number[train], number[test], None if valid is None else number[valid])

    def _rows(self, client: ClientId, at: int) -> tuple[Shift, Source, tuple[Index, Index | None, Index]]:
        shift = self.shifts[self._group(client, at)]
        source = self.sources[shift.domain]
        # With a source for every group, each is shared out among the clients of its group alone.
        place = self._number(client) // len(self.sources)
        train = source.train_rows.rows(place, shift.labels)
        test = source.test_rows.rows(place, shift.labels)
        if not self.validation or len(train) < 2:
            return shift, source, (train, None, test)
        order = rng(self.seed, "validation", client).permutation(len(train))
        cut = min(max(1, round(self.validation * len(train))), len(train) - 1)
        return shift, source, (train[np.sort(order[cut:])], train[np.sort(order[:cut])], test)

    def _parted(self, client: ClientId, rows: Index) -> tuple[Index, Index]:
        """The rows that a client has of its own group, and those of the next one."""
        if not self.mixed:
            return rows, rows[:0]
        chosen = rng(self.seed, "mixed", client, len(rows)).permutation(len(rows))[: round(self.mixed * len(rows))]
        return np.delete(rows, chosen), rows[np.sort(chosen)]

    def _number(self, client: ClientId) -> int:
        if client not in self._numbers:
            raise CoterieError(
                f"There is no client {client!r}; the {len(self.ids)} clients are {self.ids[0]!r} to {self.ids[-1]!r}."
            )
        return self._numbers[client]

    def _group(self, client: ClientId, at: int) -> int:
        number = self._number(client)
        group = self._first_group(number)
        for place, drift in enumerate(self.drifts):
            if at < drift.round:
                continue
            if client in drift.groups:
                group = drift.groups[client]
            elif number in self._drifted[place]:
                new = [k for k, size in enumerate(self.sizes) if not size] if drift.to == "new" else []
                others = new or [(group + step) % len(self.shifts) for step in range(1, len(self.shifts))]
                group = others[int(rng(self.seed, "drift-to", place, client).integers(len(others)))]
        return group

    def _first_group(self, number: int) -> int:
        """The group before any drift; unseen clients are in all groups alike."""
        if not self.sizes or number >= len(self.ids):
            return number % len(self.shifts)
        return int(np.searchsorted(np.cumsum(self.sizes), number, side="right"))

    @cached_property
    def _numbers(self) -> dict[ClientId, int]:
        return {client: number for number, client in enumerate((*self.ids, *self.unseen_ids))}

    @cached_property
    def _drifted(self) -> list[frozenset[int]]:
        """The numbers of the clients that each drift moves by chance."""
        n = len(self.ids)
        counts = [round(drift.fraction * n) for drift in self.drifts]
        chosen = [rng(self.seed, "drift", i).choice(n, count, replace=False) for i, count in enumerate(counts)]
        return [frozenset(numbers.tolist()) for numbers in chosen]


def _joined(first: Samples, second: Samples) -> Samples:
    return Samples(torch.cat([first.x, second.x]), torch.cat([first.y, second.y]))


def numbered(clients: int, unseen: int = 0) -> tuple[tuple[ClientId, ...], tuple[ClientId, ...]]:
    """Names for clients and for the unseen ones after them: numbers, padded to one width ("07")."""
    width = len(str(clients + unseen - 1))
    names = tuple(f"{number:0{width}d}" for number in range(clients + unseen))
    return names[:clients], names[clients:]


def unseen_ids(population: Population) -> Sequence[ClientId]:
    """The clients of a population that never take part in training; none where it keeps none back."""
    return tuple(getattr(population, "unseen_ids", ()))


def _made_again(function: Callable[..., LazyPopulation], given: Mapping[str, Any]) -> LazyPopulation:
    return function(**given)

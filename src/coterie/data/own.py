"""The user's own data as a population: arrays, one entry a client."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypedDict, Unpack

import numpy as np
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.rng import rng
from coterie.core.samples import ClientData, ClientId, Normalise, Samples
from coterie.core.settings import check_keywords
from coterie.core.targets import TargetScale, TaskKind, TaskName
from coterie.core.terminal import brief

from .checks import checked_groups, checked_samples
from .drift import Drift
from .labels import ClientArrays, named_classes, number_said, said_classes
from .pool import rows_of
from .population import Parts
from .scaling import NormaliseName, moments, pooled
from .schema import Column, Layout, Schema, TestsName
from .split import split_rows
from .targets import settle, tests_alike

_LAYOUTS: dict[int, Layout] = {2: "rows", 3: "series", 4: "images"}


class OwnOptions(TypedDict, total=False):
    """What can be said of own data, wherever they come from: see `from_arrays`."""

    groups: Mapping[ClientId, int | str] | None
    classes: int | Sequence[str] | None
    normalise: Normalise | NormaliseName | None
    seed: int
    validation: float
    unseen: Sequence[ClientId] | int | float
    layout: Layout | None
    task: TaskName
    tests: TestsName
    drift: Drift | Sequence[Drift]


@dataclass(frozen=True, eq=False)
class OwnPopulation:
    """Clients with data of their own."""

    clients: Mapping[ClientId, ClientData]
    shape: tuple[int, ...]
    classes: int
    normalise: Normalise
    groups: Mapping[ClientId, int] = field(default_factory=dict)
    unseen_ids: tuple[ClientId, ...] = ()
    schema: Schema | None = None
    """How the data were read."""
    kind: TaskKind = "classification"
    target_scale: TargetScale | None = None
    drifts: tuple[Drift, ...] = ()
    """From its round on, a drift's clients exchange their data: each has those of another one of them."""
    tests_alike: bool = True
    """Whether a client's tests ask for labels as often as it has them in training."""
    seed: int = 0
    reread: Callable[[tuple[Column, ...]], OwnPopulation] | None = None
    """Of one client's table: reads it again with columns that all clients have agreed on."""

    def __post_init__(self) -> None:
        for drift in self.drifts:
            if drift.groups or drift.to != "other":
                raise CoterieError("Own data drift by a fraction of the clients, who exchange theirs; give a fraction.")
            if drift.fraction > 0 and round(drift.fraction * len(self.ids)) < 2:
                raise CoterieError(
                    f"A drift of {drift.fraction:g} of {len(self.ids)} clients moves fewer than two, and clients "
                    "exchange their data with each other; give a larger fraction."
                )

    def __repr__(self) -> str:
        aims = f"{self.classes} classes" if self.kind in ("classification", "binary") else self.kind
        return f"<{len(self.clients)} clients with inputs of shape {self.shape}, {aims}>"

    @cached_property
    def ids(self) -> Sequence[ClientId]:
        """Every client that takes part, in the order given."""
        unseen = frozenset(self.unseen_ids)
        return tuple(client for client in self.clients if client not in unseen)

    def client(self, client: ClientId, round: int = 0) -> ClientData:
        """The data that a client has in that round."""
        if client not in self.clients:
            raise CoterieError(f"There is no client {client!r}; the clients are {few(list(self.clients))}.")
        return self.clients[self._owner(client, round)]

    def group(self, client: ClientId, round: int = 0) -> int | None:
        """The group of the data that a client has in that round, if the user gave any."""
        return self.groups.get(self._owner(client, round))

    def labels(self, client: ClientId, round: int = 0) -> Parts:
        """The targets alone."""
        data = self.client(client, round)
        return Parts(data.train.y, data.test.y, None if data.valid is None else data.valid.y)

    def _owner(self, client: ClientId, at: int) -> ClientId:
        """Whose data a client has in a round."""
        for drift, moves in zip(reversed(self.drifts), reversed(self._moves), strict=True):
            client = moves.get(client, client) if at >= drift.round else client
        return client

    @cached_property
    def _moves(self) -> list[dict[ClientId, ClientId]]:
        """For each drift, whose data each of its clients gets: those of the next in a random circle of them all."""
        moves = []
        for place, drift in enumerate(self.drifts):
            order = rng(self.seed, "own-drift", place).permutation(len(self.ids))
            circle = [self.ids[i] for i in order[: round(drift.fraction * len(self.ids))]]
            moves.append(dict(zip(circle, [*circle[1:], *circle[:1]], strict=True)))
        return moves


def from_arrays(clients: Mapping[ClientId, ClientArrays], **options: Unpack[OwnOptions]) -> OwnPopulation:
    """A population of numpy arrays or tensors, one entry a client: (x, y), or (x_train, y_train, x_test, y_test).

    Targets are classes (integers from 0 up, or words, [n]), several labels a sample (0 and 1, [n, labels]) or numbers
    (floats, [n] or [n, numbers]). Where they do not clearly say which, `task` must. Words are numbered in sorted order
    and remembered (`schema.class_names`). `classes` says how many classes there are (numbered from 0), or their names;
    a label that is none of them is refused. Without it there are those that the data have.

    Inputs are rows [n, features], images [n, channels, height, width] or, of uint8, [n, height, width]. Where their
    axes could mean something else, `layout` must say it (see `Layout`): "series" are [n, steps, features],
    "images-last" have their channels at the end, "tokens" are whole numbers that the model gets as they are.

    `normalise` is "auto" (the default), "none", "standard" or a ready `Normalise`: see `NormaliseName`. `groups` are
    the true groups where you know them. A fifth of a client's samples is kept for testing where it has no test part,
    and the fraction `validation` of the rest for methods that choose by it; `seed` draws both. `unseen` are clients
    that never take part in training: their names, a number, or a fraction. With `drift`, a fraction of the clients
    exchange their data at a round. `tests` says what a client will be asked: its "own" labels, as often as it has them
    in training, or "all" of them (see `TestsName`).
    """
    check_keywords("from_arrays", OwnOptions, options)
    if not clients:
        raise CoterieError("There is no client; give at least one with its arrays.")
    seed, layout, validation = options.get("seed", 0), options.get("layout"), options.get("validation", 0.0)
    if not 0 <= validation < 1:
        raise CoterieError(f"The validation part is {validation}; give a fraction from 0 to below 1.")
    for client, arrays in clients.items():
        if not isinstance(arrays, (tuple, list)) or len(arrays) not in (2, 4):
            raise CoterieError(f"Client {client} needs (x, y) or (x_train, y_train, x_test, y_test).")
        check_client_name(client)
    said = said_classes(options.get("classes"))
    clients, names = named_classes(clients, said)
    parts = {client: _split(client, arrays, seed, layout) for client, arrays in clients.items()}
    first = next(iter(parts.values()))[0]
    for client, pair in parts.items():
        for part in pair:
            if part.x.shape[1:] != first.x.shape[1:] or part.x.dtype != first.x.dtype:
                raise CoterieError(
                    f"Client {client} has inputs {_kind(part.x)} and others have {_kind(first.x)}; bring all to one "
                    "shape and type."
                )
    unseen = chosen_unseen(list(clients), options.get("unseen", ()), seed)
    goal, parts = settle(parts, options.get("task", "auto"), len(names) or number_said(said))
    data = {client: _validated(client, train, test, validation, seed) for client, (train, test) in parts.items()}
    shape = tuple(first.x.shape[1:])
    how = options.get("normalise") or "auto"
    if not isinstance(how, Normalise):
        inputs = [one.train.x for client, one in data.items() if client not in unseen]
        how = pooled([moments(x) for x in inputs], how, shape, first.x.dtype)
    schema = Schema(
        shape=shape,
        classes=goal.classes,
        task=goal.kind,
        layout=layout or _LAYOUTS[first.x.dim()],
        dtype=str(first.x.dtype).removeprefix("torch."),
        normalise=how,
        class_names=names,
    )
    return OwnPopulation(
        clients=data,
        shape=schema.shape,
        classes=schema.classes,
        normalise=schema.normalise,
        groups=checked_groups(options.get("groups"), list(clients)),
        unseen_ids=unseen,
        schema=schema,
        kind=goal.kind,
        target_scale=goal.scale,
        drifts=in_order(options.get("drift", ())),
        tests_alike=tests_alike(
            options.get("tests", "auto"), goal.kind, [data[c] for c in clients if len(clients[c]) > 2]
        ),
        seed=seed,
    )


def check_client_name(client: ClientId) -> None:
    """Refuse what cannot be the name of a client: it is shown, and a part of files' names."""
    if not isinstance(client, str) or not client.strip() or len(client) > 100 or not client.isprintable():
        raise CoterieError(
            f"{brief(repr(client), 120)} cannot be the name of a client; use text of 1 to 100 characters in one line."
        )


def chosen_unseen(
    clients: Sequence[ClientId], unseen: Sequence[ClientId] | int | float, seed: int
) -> tuple[ClientId, ...]:
    """The clients that never take part in training: as named, or so many of them, drawn at random."""
    if isinstance(unseen, (int, float)):
        number = unseen if isinstance(unseen, int) or unseen >= 1 else round(unseen * len(clients))
        if number != int(number) or not 0 <= number < len(clients):
            raise CoterieError(
                f"unseen is {unseen} and there are {len(clients)} clients; give a smaller number, or a fraction."
            )
        order = rng(seed, "own-unseen").permutation(len(clients))
        return tuple(sorted(sorted(clients)[i] for i in order[: int(number)]))
    strangers = [client for client in unseen if client not in clients]
    if strangers or len(set(unseen)) == len(clients):
        raise CoterieError(f"unseen names {few(list(unseen))}; name some of the clients, and not all of them.")
    return tuple(unseen)


def described(population: OwnPopulation, **changes: object) -> OwnPopulation:
    """The population with more said in its schema."""
    assert population.schema is not None
    return replace(population, schema=replace(population.schema, **changes))  # type: ignore[arg-type]


def in_order(drift: Drift | Sequence[Drift]) -> tuple[Drift, ...]:
    """Drifts by their rounds."""
    return tuple(sorted((drift,) if isinstance(drift, Drift) else drift, key=lambda one: one.round))


def _split(client: ClientId, arrays: ClientArrays, seed: int, layout: Layout | None) -> tuple[Samples, Samples]:
    """Training and test samples, with a fifth split off where there are no test samples."""
    train = checked_samples(client, arrays[0], arrays[1], layout)
    if len(arrays) == 4:
        return train, checked_samples(client, arrays[2], arrays[3], layout)
    if len(train) < 2:
        raise CoterieError(f"Client {client} has one sample and needs two, one of them to test; give it more.")
    for_training, for_testing = split_rows(client, len(train), seed)
    return rows_of(train, for_training), rows_of(train, for_testing)


def _validated(client: ClientId, train: Samples, test: Samples, validation: float, seed: int) -> ClientData:
    if not validation or len(train) < 2:
        return ClientData(train, test)
    order = rng(seed, "validation", client).permutation(len(train))
    cut = min(max(1, round(validation * len(train))), len(train) - 1)
    return ClientData(rows_of(train, np.sort(order[cut:])), test, rows_of(train, np.sort(order[:cut])))


def _kind(x: Tensor) -> str:
    return f"{tuple(x.shape[1:])} of {str(x.dtype).removeprefix('torch.')}"


def few(names: Sequence[str]) -> str:
    """The first few names of a list."""
    return ", ".join(map(repr, names[:5])) + (", ..." if len(names) > 5 else "")

"""The simulated network of peers: who knows whom, and what they learn of others.

A peer is named by its key, a number made from its client id alone, so that it is the same on every machine and in every
order. Lists of peers are rows of keys, filled up with `NO_PEER`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.core.rng import key64, rng
from coterie.core.samples import ClientId

Keys = npt.NDArray[np.int64]
Topology = Literal["full", "random", "ring", "islands"]
NO_PEER = -1
NO_KEYS: Keys = np.empty(0, dtype=np.int64)


def peer_key(client: ClientId) -> int:
    """The number that stands for a peer, the same everywhere."""
    return key64(0, "peer", client) >> 1


def peer_keys(ids: Sequence[ClientId]) -> Keys:
    """The keys of several peers, in their order."""
    return np.array([peer_key(client) for client in ids], dtype=np.int64)


def members(row: Tensor) -> Keys:
    """The keys of one list, without the filling."""
    keys: Keys = row.numpy()
    kept: Keys = keys[keys != NO_PEER]
    return kept


def as_rows(lists: Sequence[Keys], width: int = 0) -> Tensor:
    """Lists of keys as one tensor [C, m], as wide as the longest (at least `width`)."""
    widest = max([width, *(len(keys) for keys in lists)])
    rows = np.full((len(lists), widest), NO_PEER, dtype=np.int64)
    for row, keys in zip(rows, lists, strict=True):
        row[: len(keys)] = keys
    return torch.from_numpy(rows)


def draw(generator: np.random.Generator, among: Keys, number: int, without: Keys | Sequence[int] = ()) -> Keys:
    """Up to `number` different keys at random, none of those in `without`; the cost does not grow with `among`."""
    wanted = min(len(among), number + len(without))
    drawn = among[generator.choice(len(among), wanted, replace=False)] if wanted else among[:0]
    barred = set(np.asarray(without, dtype=np.int64).tolist())
    return np.array([key for key in drawn.tolist() if key not in barred][:number], dtype=np.int64)


def told_about(seed: int, round: int, client: ClientId, known: Keys, number: int) -> Tensor:
    """Hearsay: whom a peer tells others about in a round, [1, number]."""
    return as_rows([draw(rng(seed, "hearsay", round, client), known, number)], number)


def acquaintances(
    topology: Topology, ids: Sequence[ClientId], *, seed: int, degree: int, bridges: int
) -> dict[ClientId, Keys] | None:
    """Whom every peer can reach at the start, both ways; None where every peer reaches every other.

    random: everyone draws `degree` others. ring: `degree` nearest on a ring. islands: groups of `degree` + 1 that know
    each other, drawn at random, and `bridges` links from each island to the next.
    """
    if topology == "full":
        return None
    names = sorted(ids)
    if topology == "random":
        links = [(a, b) for a in names for b in _drawn(seed, a, names, degree)]
    elif topology == "ring":
        steps = range(1, -(-degree // 2) + 1)
        links = [(a, names[(i + step) % len(names)]) for i, a in enumerate(names) for step in steps]
    else:
        links = _islands(names, seed, degree + 1, bridges)
    return _both_ways(names, links)


def _drawn(seed: int, client: ClientId, names: Sequence[ClientId], degree: int) -> list[ClientId]:
    others = [name for name in names if name != client]
    generator = rng(seed, "acquaintances", client)
    return [others[i] for i in generator.choice(len(others), min(degree, len(others)), replace=False)]


def _islands(names: Sequence[ClientId], seed: int, size: int, bridges: int) -> list[tuple[ClientId, ClientId]]:
    generator = rng(seed, "islands")
    order = [names[i] for i in generator.permutation(len(names))]
    islands = [order[start : start + size] for start in range(0, len(order), size)]
    links = [(a, b) for island in islands for a in island for b in island]
    for here, there in zip(islands, [*islands[1:], islands[0]], strict=True):
        links += [(here[generator.integers(len(here))], there[generator.integers(len(there))]) for _ in range(bridges)]
    return links


def _both_ways(names: Sequence[ClientId], links: Sequence[tuple[ClientId, ClientId]]) -> dict[ClientId, Keys]:
    known: dict[ClientId, set[int]] = {name: set() for name in names}
    for a, b in links:
        if a != b:
            known[a].add(peer_key(b))
            known[b].add(peer_key(a))
    return {name: np.array(sorted(keys), dtype=np.int64) for name, keys in known.items()}


def introduced(
    known: Mapping[ClientId, Keys], new: Sequence[ClientId], *, seed: int, degree: int
) -> dict[ClientId, Keys]:
    """The acquaintances after newcomers met `degree` others each (and these met them)."""
    result = dict(known)
    for client in sorted(new):
        friends = _drawn(seed, client, sorted(result), degree) if result else []
        result[client] = np.sort(peer_keys(friends))
        for friend in friends:
            result[friend] = np.union1d(result[friend], [peer_key(client)])
    return result

"""The messages of a simulated network: what each peer gets from those it asks, fresh, late or lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.core import wire
from coterie.core.federation import Arrival, Federation, PeerNetwork
from coterie.core.samples import ClientId
from coterie.core.states import Stack, concat, count, row, take
from coterie.methods.p2p.base import Answers, Inbox, PeerMethod, PeerView, Request, Sketched
from coterie.methods.p2p.network_state import Network
from coterie.methods.p2p.sketch import lengths
from coterie.methods.p2p.topology import members, peer_keys, told_about


@dataclass(frozen=True)
class Earlier:
    """Answers of earlier rounds: whose, the models after local training and those before it."""

    ids: tuple[ClientId, ...]
    model: Stack
    start: Stack

    def rows(self, ids: Sequence[ClientId]) -> Tensor:
        """Where the answers of these peers are; -1: there is none."""
        place = {client: index for index, client in enumerate(self.ids)}
        return torch.tensor([place.get(client, -1) for client in ids], dtype=torch.int64)


def fetch(
    state: Network,
    fed: PeerNetwork,
    view: PeerView,
    request: Request,
    models: Stack,
    *,
    method: PeerMethod[Any],
    idle: Sequence[ClientId],
    earlier: Earlier | None,
) -> Inbox:
    """The answers to this round's requests, as a pool of the distinct ones: of those who trained (`models`), then of
    idle peers. To those who look first only the sketches are sent, for now (`fetch_chosen`).

    An idle peer answers with what it sent last, and so does one that is late; the answers of the late come at the
    end. Between real peers it is the same (`PeerConnection.offer`): one that has not trained yet has nothing to send,
    and its first answer is waited for.
    """
    wanted, starts = request.keys, request.starts
    senders = [*view.ids, *idle]
    keys = peer_keys(senders)
    order = np.argsort(keys)
    place = np.searchsorted(keys[order], wanted.numpy()).clip(max=len(keys) - 1)
    index = torch.from_numpy(order[place])
    answered = torch.from_numpy(keys[index.numpy()]) == wanted
    told = bool(starts.any()) or bool(request.looks.any()) or method.watches_strides
    before = _those(state.model, torch.tensor(state.rows(view.ids))) if told else None
    stride = lengths(fed.task, models, before) if before is not None and method.watches_strides else None
    pool = models
    if earlier is not None and idle:
        silent = earlier.rows(idle)
        pool = concat([pool, take(earlier.model, silent)])
        before = concat([before, take(earlier.start, silent)]) if before is not None else None
    heard = _hearsay(state, fed, senders, method.hearsay)
    size = torch.where(starts, _size_of(pool, heard, start=True), _size_of(pool, heard))
    if bool(request.looks.any()):
        one = method.sketch(fed.task, fed.seed, _one(pool), _one(pool))
        assert one is not None
        size = torch.where(request.looks, wire.encoded_size(Sketched(one[0], heard[0])), size)
    arrivals = fed.exchange(view.ids, answered, size)
    last = earlier.rows(senders) if earlier is not None else torch.full((len(senders),), -1)
    late = (arrivals == int(Arrival.OLD)) & (last[index] >= 0)
    if earlier is not None and bool(late.any()):
        old, where = torch.unique(index[late], return_inverse=True)
        index[late] = len(senders) + where
        pool, heard = concat([pool, take(earlier.model, last[old])]), torch.cat([heard, heard[old]])
        before = concat([before, take(earlier.start, last[old])]) if before is not None else None
    index = torch.where(arrivals == int(Arrival.LOST), -1, index)
    known = [len(view.reachable(i)) - (1 if view.known is None else 0) for i in range(len(view))]
    own = torch.arange(len(view))
    sketches = None
    if bool(request.looks.any()) and before is not None:
        sketches = method.sketch(fed.task, fed.seed, pool, before)
    told_start = before if bool(starts.any()) else None
    return Inbox(Answers(pool, told_start, heard), own, wanted, index, torch.tensor(known), sketches, stride)


def fetch_chosen(fed: PeerNetwork, view: PeerView, request: Request, inbox: Inbox, chosen: Tensor) -> Tensor:
    """The models that peers want after a look: which of the chosen answers each has in the end, [C, m].

    The way between two peers is the same for a round: who sent a sketch in time sends its model in time, too.
    """
    if not bool(request.looks.any()):
        return chosen
    wanted = chosen & request.looks[:, None]
    size = torch.full((len(view),), _size_of(inbox.pool.model, inbox.pool.heard))
    arrivals = fed.exchange(view.ids, wanted, size)
    return torch.where(request.looks[:, None], arrivals != int(Arrival.LOST), chosen) & chosen


def _one(models: Stack) -> Stack:
    """The first of them, with its axis."""
    return take(models, torch.zeros(1, dtype=torch.int64))


def _size_of(pool: Stack, heard: Tensor, *, start: bool = False) -> int:
    """Bytes of an answer with a model."""
    first = row(pool, 0)
    return wire.encoded_size(Answers(first, first if start else None, heard[0]))


def _hearsay(state: Network, fed: Federation, senders: Sequence[ClientId], number: int) -> Tensor:
    """Whom each sender tells others about this round."""
    if state.known is None or not number:
        return torch.empty(len(senders), 0, dtype=torch.int64)
    rows = zip(senders, state.rows(senders), strict=True)
    return torch.cat(
        [told_about(fed.seed, fed.round, client, members(state.known[place]), number) for client, place in rows]
    )


def _those(models: Stack, rows: Tensor) -> Stack:
    """The models at these rows, not copied where they are all of them."""
    return models if torch.equal(rows, torch.arange(count(models))) else take(models, rows)

"""The messages of a simulated network: what each peer gets from those it asks, fresh, late or lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coterie.core import wire
from coterie.core.federation import Arrival, Federation, PeerNetwork
from coterie.core.rng import rng
from coterie.core.samples import ClientId
from coterie.core.states import Stack, concat, count, row, take
from coterie.methods.p2p.base import Answers, Inbox, PeerView, Request
from coterie.methods.p2p.network_state import Network
from coterie.methods.p2p.topology import as_rows, draw, members, peer_keys


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
    idle: Sequence[ClientId],
    earlier: Earlier | None,
    hearsay: int,
) -> Inbox:
    """The answers to this round's requests, as a pool of the distinct ones: of those who trained (`models`), then of
    idle peers.

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
    before = _those(state.model, torch.tensor(state.rows(view.ids))) if bool(starts.any()) else None
    pool = models
    if earlier is not None and idle:
        silent = earlier.rows(idle)
        pool = concat([pool, take(earlier.model, silent)])
        before = concat([before, take(earlier.start, silent)]) if before is not None else None
    heard = _hearsay(state, fed, senders, hearsay)
    first = row(pool, 0)
    sizes = [wire.encoded_size(Answers(first, first if told else None, heard[0])) for told in (False, True)]
    arrivals = fed.exchange(view.ids, answered, torch.where(starts, sizes[1], sizes[0]))
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
    return Inbox(Answers(pool, before, heard), own, wanted, index, torch.tensor(known))


def _hearsay(state: Network, fed: Federation, senders: Sequence[ClientId], number: int) -> Tensor:
    """Whom each sender tells others about this round."""
    if state.known is None or not number:
        return torch.empty(len(senders), 0, dtype=torch.int64)
    told = [
        draw(rng(fed.seed, "hearsay", fed.round, client), members(state.known[row]), number)
        for client, row in zip(senders, state.rows(senders), strict=True)
    ]
    return as_rows(told, number)


def _those(models: Stack, rows: Tensor) -> Stack:
    """The models at these rows, not copied where they are all of them."""
    return models if torch.equal(rows, torch.arange(count(models))) else take(models, rows)

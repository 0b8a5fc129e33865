"""What the simulation of a network of peers remembers between rounds, and how it changes: rows are peers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coterie.core.samples import ClientId
from coterie.core.states import Stack, State
from coterie.methods.p2p.base import Inbox
from coterie.methods.p2p.neighbourhood import Moment
from coterie.methods.p2p.topology import NO_PEER, Keys, as_rows, members, peer_keys

LARGEST_PICTURE = 256
"""Networks of at most so many peers keep a record of who aggregated whom."""


@dataclass(frozen=True)
class Network:
    """All peers, in the order of their ids: what each of them has, and what the simulation remembers for the report."""

    ids: tuple[ClientId, ...]
    model: Stack
    node: dict[str, Tensor]
    known: Tensor | None
    """Whom each peer knows, [n, w]; None: everyone."""
    received: Tensor
    """How many models each peer has received so far, [n]."""
    aggregated: Tensor | None
    """How often peer i has aggregated peer j's model, [n, n]."""
    history: tuple[Moment, ...]
    origin: State

    def rows(self, ids: Sequence[ClientId]) -> list[int]:
        """Where these peers stand."""
        place = {client: index for index, client in enumerate(self.ids)}
        return [place[client] for client in ids]


def edges_of(ids: Sequence[ClientId], neighbours: Tensor) -> tuple[Keys, Keys]:
    """The neighbour lists as edges between positions: from, to."""
    keys = peer_keys(ids)
    order = np.argsort(keys)
    lists = neighbours.numpy()
    source, column = np.nonzero(lists != NO_PEER)
    wanted = lists[source, column]
    place = np.searchsorted(keys[order], wanted).clip(max=len(keys) - 1)
    there = keys[order[place]] == wanted
    return source[there], order[place][there]


def below(a: Tensor, b: Tensor) -> Tensor:
    """Rows below each other; lists of keys are filled up to the same width."""
    if a.dim() < 2:
        return torch.cat([a, b])
    width = max(a.shape[1], b.shape[1])
    return torch.cat([_widened(a, width), _widened(b, width)])


def _widened(tensor: Tensor, width: int) -> Tensor:
    fill = NO_PEER if tensor.dtype == torch.int64 else 0
    ahead = [0] * 2 * (tensor.dim() - 2)  # `pad` counts from the last axis
    return torch.nn.functional.pad(tensor, (*ahead, 0, width - tensor.shape[1]), value=fill)


def put(old: Tensor, rows: Tensor, new: Tensor) -> Tensor:
    """The old rows with some replaced, whatever their widths."""
    if len(rows) == len(old):
        return new
    if old.dim() > 1:
        width = max(old.shape[1], new.shape[1])
        old, new = _widened(old, width), _widened(new, width)
    return old.index_copy(0, rows, new)


def trimmed(lists: Tensor) -> Tensor:
    """Lists of keys without columns that no peer uses."""
    if lists.dim() < 2 or lists.dtype != torch.int64:
        return lists
    used = (lists != NO_PEER).any(0).nonzero()
    return lists[:, : int(used.max()) + 1 if len(used) else 0]


def replaced(old: Tensor, rows: Tensor, new: Tensor) -> Tensor:
    """The old models with some replaced."""
    return new if len(rows) == len(old) else old.index_copy(0, rows, new)


def grown(table: Tensor | None, blank: int, order: Tensor) -> Tensor | None:
    """The table of who aggregated whom, with newcomers."""
    if table is None or len(order) > LARGEST_PICTURE:
        return None
    return torch.nn.functional.pad(table, (0, blank, 0, blank))[order][:, order]


def counted(state: Network, rows: Tensor, keys: Tensor, chosen: Tensor) -> Tensor | None:
    """The table of who aggregated whom, with this round's."""
    if state.aggregated is None:
        return None
    table = state.aggregated.clone()
    source, target = edges_of(state.ids, torch.where(chosen, keys, NO_PEER))
    table.index_put_(
        (rows[source], torch.from_numpy(target)), torch.ones(len(source), dtype=table.dtype), accumulate=True
    )
    return table


def learnt(state: Network, rows: Tensor, inbox: Inbox, answered: Tensor) -> Tensor | None:
    """The peers that each peer knows after the answers it got."""
    if state.known is None or not inbox.pool.heard.shape[1]:
        return state.known
    lists = [members(keys) for keys in state.known]
    own = peer_keys(state.ids)
    for row_, position in zip(rows.tolist(), answered.tolist(), strict=True):
        arrived = inbox.index[position][inbox.mask[position]]
        told = np.unique(inbox.pool.heard[arrived].numpy())
        told = told[(told != NO_PEER) & (told != own[row_])]
        lists[row_] = np.union1d(lists[row_], told)
    return as_rows(lists)

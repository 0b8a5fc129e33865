"""A whole network of peers in the simulator: any peer-to-peer method, run round by round like a method with a server.

The "server" here is only the simulation's book-keeping: it holds every peer's model and node, lets the awake peers
train, carries the answers they ask each other for, and lets them update. Nothing of it is known to a peer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor

from coterie import fast, wire
from coterie.clustering.communities import communities
from coterie.data.samples import ClientId
from coterie.engine.network import (
    NOBODY,
    Keys,
    Topology,
    acquaintances,
    as_rows,
    draw,
    introduced,
    members,
    peer_keys,
)
from coterie.errors import CoterieError
from coterie.federation import Arrival, Federation, PeerNetwork, Replies
from coterie.methods.base import Assessment, Log, Models, ServerMethod
from coterie.methods.neighbourhood import Moment, found, panels_of
from coterie.methods.peers import Answers, Inbox, Meeting, Met, PeerMethod, PeerView, aggregate
from coterie.report.panels import Panel
from coterie.rng import rng
from coterie.states import Stack, State, concat, count, row, spread, stack, take

N = TypeVar("N")
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


@dataclass(frozen=True)
class SimulatedPeers(PeerMethod[N], ServerMethod[Network]):
    """A peer-to-peer method with all its peers in one machine."""

    serves_newcomers: ClassVar[bool] = False

    topology: Topology = field(
        default="full", metadata={"help": "whom a peer can reach at the start: full, random, ring or islands"}
    )
    degree: int = field(default=10, metadata={"help": "how many others a peer knows at the start, unless full"})
    bridges: int = field(default=2, metadata={"help": "links from each island to the next (topology islands)"})
    hearsay: int = field(default=0, metadata={"help": "peers that an answer tells the asker about, unless full"})

    state_type: ClassVar[type[Network]] = Network
    finds_groups: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.degree >= 1, "degree", "be at least 1")
        self._require(self.bridges >= 0, "bridges", "be at least 0")
        self._require(self.hearsay >= 0, "hearsay", "be at least 0")

    def init(self, fed: Federation) -> Network:
        """Every peer with the common initial model and those it knows from the start."""
        ids = tuple(sorted(fed.ids))
        if len(ids) < 2:
            raise CoterieError(f"{self.name}: a peer needs others to learn from, but there is only one client.")
        origin = fed.task.init(fed.seed)
        met = acquaintances(self.topology, ids, seed=fed.seed, degree=self.degree, bridges=self.bridges)
        return Network(
            ids=ids,
            model=spread(origin, len(ids)),
            node=self._begun(fed, ids, origin),
            known=None if met is None else as_rows([met[client] for client in ids]),
            received=torch.zeros(len(ids), dtype=torch.int64),
            aggregated=torch.zeros(len(ids), len(ids), dtype=torch.int32) if len(ids) <= LARGEST_PICTURE else None,
            history=(),
            origin=origin,
        )

    def _begun(self, fed: Federation, ids: Sequence[ClientId], origin: State) -> dict[str, Tensor]:
        # starting is the peer's own affair: it cannot fail on the way, as evaluation cannot
        replies = fed.ask(self.begin, ids, same=Models(stack([origin])), purpose="evaluation", counted=False)
        assert replies.value is not None
        return replies.value.node

    def admit(self, state: Network, fed: Federation, new: Sequence[ClientId]) -> Network:
        """Newcomers begin with the common initial model; the others get to know them as the topology allows."""
        fresh = sorted(set(new) - set(state.ids))
        if not fresh:
            return state
        known = state.known
        if known is not None:
            met = {client: members(keys) for client, keys in zip(state.ids, known, strict=True)}
            met = introduced(met, fresh, seed=fed.seed, degree=self.degree)
        everyone = [*state.ids, *fresh]
        ids = tuple(sorted(everyone))
        place = {client: index for index, client in enumerate(everyone)}
        order = torch.tensor([place[client] for client in ids])
        begun = self._begun(fed, fresh, state.origin)
        blank = len(fresh)
        return replace(
            state,
            ids=ids,
            model=take(concat([state.model, spread(state.origin, blank)]), order),
            node={name: _joined(tensor, begun[name])[order] for name, tensor in state.node.items()},
            known=None if known is None else as_rows([met[client] for client in ids]),
            received=torch.cat([state.received, torch.zeros(blank, dtype=torch.int64)])[order],
            aggregated=_grown(state.aggregated, blank, order),
        )

    def step(self, state: Network, fed: Federation) -> tuple[Network, Log]:
        """One round: the awake peers train, ask each other, and update; a peer goes on with whoever answers."""
        if not isinstance(fed, PeerNetwork):
            raise CoterieError(f"{self.name} has no server: run it in the simulator, or between peers.")
        joined = set(state.ids)
        there = [client for client in fed.sample(1.0) if client in joined]
        awake = sorted(fed.sample(self.fraction, there))
        trained = fed.ask(self.train, awake, each=Models(state.model), rows=state.rows(awake), counted=False)
        if trained.value is None:
            return state, {"awake": 0}
        view = self._view(state, fed, there, trained)
        rows = torch.tensor(state.rows(trained.ids))
        node = {name: tensor[rows] for name, tensor in state.node.items()}
        own = self.unpack_node(node)
        wanted = self.choose(own, view)
        busy = {*trained.ids, *trained.failed}
        idle = [client for client in there if client not in busy]
        inbox = self._fetch(state, fed, view, trained.value.models, idle, wanted, self.wants_start(own, wanted))
        inbox = self.survey(fed.task, state.origin, own, inbox)
        met = fed.ask(self.meet, trained.ids, each=Meeting(inbox, node), common=("inbox/pool",), counted=False)
        if met.value is None:
            return state, {"awake": 0}
        return self._concluded(state, fed, view, inbox, met)

    def _view(self, state: Network, fed: Federation, there: Sequence[ClientId], trained: Replies[Models]) -> PeerView:
        """What the awake peers know: a crashed peer is missed at once, any other silent one is still asked."""
        up = [c for c in there if c not in trained.failed or trained.failed[c].kind != "crashed"]
        everyone = np.sort(peer_keys(up))
        known = allies = None
        rows = state.rows(trained.ids)
        if state.known is not None:
            lists = (members(state.known[row]) for row in rows)
            known = tuple(keys[np.isin(keys, everyone, assume_unique=True)] for keys in lists)
        if self.needs_truth:
            groups = fed.truth(up).numpy()
            keys = peer_keys(up)
            same = {group: np.sort(keys[groups == group]) for group in set(groups.tolist())}
            allies = tuple(same[group] for group in fed.truth(trained.ids).tolist())
        return PeerView(trained.ids, fed.round, fed.seed, everyone, known, allies)

    def _fetch(
        self,
        state: Network,
        fed: PeerNetwork,
        view: PeerView,
        models: Stack,
        idle: Sequence[ClientId],
        wanted: Tensor,
        starts: Tensor,
    ) -> Inbox:
        """The answers, as a pool of the distinct models that can be had: of those who trained, then of idle peers.

        An answer that is old is the model its sender had before this round's training; such models come last.
        """
        senders = [*view.ids, *idle]
        keys = peer_keys(senders)
        order = np.argsort(keys)
        place = np.searchsorted(keys[order], wanted.numpy()).clip(max=len(keys) - 1)
        index = torch.from_numpy(order[place])
        answered = torch.from_numpy(keys[index.numpy()]) == wanted
        rows = torch.tensor(state.rows(senders))
        before = _those(state.model, rows) if bool(starts.any()) else None
        pool = concat([models, take(state.model, rows[len(view) :])]) if idle else models
        heard = self._hearsay(state, fed, senders)
        first = row(pool, 0)
        sizes = [wire.encoded_size(Answers(first, first if told else None, heard[0])) for told in (False, True)]
        arrivals = fed.exchange(view.ids, answered, torch.where(starts, sizes[1], sizes[0]))
        late = arrivals == int(Arrival.OLD)
        if bool(late.any()):
            old, where = torch.unique(index[late], return_inverse=True)
            index[late] = len(senders) + where
            stale = take(state.model, rows[old])
            pool, heard = concat([pool, stale]), torch.cat([heard, heard[old]])
            before = concat([before, stale]) if before is not None else None
        index = torch.where(arrivals == int(Arrival.LOST), -1, index)
        known = [len(view.reachable(i)) - (1 if view.known is None else 0) for i in range(len(view))]
        own = torch.arange(len(view))
        return Inbox(Answers(pool, before, heard), own, wanted, index, torch.tensor(known))

    def _hearsay(self, state: Network, fed: Federation, senders: Sequence[ClientId]) -> Tensor:
        """Whom each sender tells others about this round."""
        if state.known is None or not self.hearsay:
            return torch.empty(len(senders), 0, dtype=torch.int64)
        told = [
            draw(rng(fed.seed, "hearsay", fed.round, client), members(state.known[row]), self.hearsay)
            for client, row in zip(senders, state.rows(senders), strict=True)
        ]
        return as_rows(told, self.hearsay)

    def _concluded(
        self, state: Network, fed: Federation, view: PeerView, inbox: Inbox, met: Replies[Met]
    ) -> tuple[Network, Log]:
        """The network after the round, and what there is to tell about it."""
        assert met.value is not None
        rows = torch.tensor(state.rows(met.ids))
        position = {client: index for index, client in enumerate(view.ids)}
        answered = torch.tensor([position[client] for client in met.ids])
        node = {name: _trimmed(_put(state.node[name], rows, met.value.node[name])) for name in state.node}
        mine = replace(inbox, own=inbox.own[answered], index=inbox.index[answered])
        models = aggregate(mine, met.value.chosen, fast.library_of(fed.task), self.aggregate)
        received = state.received.clone()
        received[rows] += inbox.mask[answered].sum(1)
        changed = replace(
            state,
            model={name: _replaced(state.model[name], rows, tensor) for name, tensor in models.items()},
            node=node,
            known=_learnt(state, rows, inbox, answered),
            received=received,
            aggregated=_counted(state, rows, inbox.keys[answered], met.value.chosen),
        )
        neighbours = self.neighbours(self.unpack_node(node))
        moment = found(fed, changed.ids, neighbours, float(received.double().mean()))
        log: Log = {"awake": len(met.ids), **{k: v for k, v in moment.items() if v is not None and k != "round"}}
        return replace(changed, history=(*state.history, moment)), log

    def model_for(self, state: Network, ids: Sequence[ClientId]) -> tuple[Stack, list[int]]:
        """Each peer uses its own model; one that has not joined yet would begin with the common one."""
        place = {client: index for index, client in enumerate(state.ids)}
        if all(client in place for client in ids):
            return state.model, [place[client] for client in ids]
        models = concat([state.model, spread(state.origin, 1)])
        return models, [place.get(client, len(state.ids)) for client in ids]

    def assess(self, state: Network, fed: Federation, ids: Sequence[ClientId]) -> Replies[Assessment]:
        """Peers judge their own models; nothing is sent."""
        models, rows = self.model_for(state, ids)
        return fed.ask(self.judge, ids, each=Models(models), rows=rows, purpose="evaluation", counted=False)

    def clusters(self, state: Network, ids: Sequence[ClientId]) -> list[int] | None:
        """Communities of the neighbour graph: nobody is told how many there are."""
        if not self.finds_groups:
            return None
        lists = self.neighbours(self.unpack_node(state.node))
        labels = communities(*edges_of(state.ids, lists), len(state.ids))
        place = dict(zip(state.ids, labels.tolist(), strict=True))
        return [int(place.get(client, -1)) for client in ids]

    def models(self, state: Network) -> Mapping[str, State]:
        """Every peer's model."""
        return {f"client-{client}": row(state.model, index) for index, client in enumerate(state.ids)}

    def panels(self, state: Network, ids: Sequence[ClientId], truth: Sequence[int] | None) -> list[Panel]:
        """Neighbours over rounds, who aggregated whom, similarities, the neighbour graph."""
        group = dict(zip(ids, truth, strict=True)) if truth is not None else {}
        links = edges_of(state.ids, self.neighbours(self.unpack_node(state.node)))
        return panels_of(state.ids, group, state.history, state.aggregated, state.node, links)


def _those(models: Stack, rows: Tensor) -> Stack:
    """The models at these rows, not copied where they are all of them."""
    return models if torch.equal(rows, torch.arange(count(models))) else take(models, rows)


def edges_of(ids: Sequence[ClientId], neighbours: Tensor) -> tuple[Keys, Keys]:
    """The neighbour lists as edges between positions: from, to."""
    keys = peer_keys(ids)
    order = np.argsort(keys)
    lists = neighbours.numpy()
    source, column = np.nonzero(lists != NOBODY)
    wanted = lists[source, column]
    place = np.searchsorted(keys[order], wanted).clip(max=len(keys) - 1)
    there = keys[order[place]] == wanted
    return source[there], order[place][there]


def _joined(a: Tensor, b: Tensor) -> Tensor:
    """Rows below each other; lists of keys are filled up to the same width."""
    if a.dim() < 2:
        return torch.cat([a, b])
    width = max(a.shape[1], b.shape[1])
    return torch.cat([_widened(a, width), _widened(b, width)])


def _widened(tensor: Tensor, width: int) -> Tensor:
    fill = NOBODY if tensor.dtype == torch.int64 else 0
    return torch.nn.functional.pad(tensor, (0, width - tensor.shape[1]), value=fill)


def _put(old: Tensor, rows: Tensor, new: Tensor) -> Tensor:
    """The old rows with some replaced, whatever their widths."""
    if len(rows) == len(old):
        return new
    if old.dim() > 1:
        width = max(old.shape[1], new.shape[1])
        old, new = _widened(old, width), _widened(new, width)
    return old.index_copy(0, rows, new)


def _trimmed(lists: Tensor) -> Tensor:
    """Lists of keys without columns that nobody uses."""
    if lists.dim() < 2 or lists.dtype != torch.int64:
        return lists
    used = (lists != NOBODY).any(0).nonzero()
    return lists[:, : int(used.max()) + 1 if len(used) else 0]


def _replaced(old: Tensor, rows: Tensor, new: Tensor) -> Tensor:
    return new if len(rows) == len(old) else old.index_copy(0, rows, new)


def _grown(table: Tensor | None, blank: int, order: Tensor) -> Tensor | None:
    if table is None or len(order) > LARGEST_PICTURE:
        return None
    return torch.nn.functional.pad(table, (0, blank, 0, blank))[order][:, order]


def _counted(state: Network, rows: Tensor, keys: Tensor, chosen: Tensor) -> Tensor | None:
    if state.aggregated is None:
        return None
    table = state.aggregated.clone()
    source, target = edges_of(state.ids, torch.where(chosen, keys, NOBODY))
    table.index_put_(
        (rows[source], torch.from_numpy(target)), torch.ones(len(source), dtype=table.dtype), accumulate=True
    )
    return table


def _learnt(state: Network, rows: Tensor, inbox: Inbox, answered: Tensor) -> Tensor | None:
    """Whom each peer knows after what it heard."""
    if state.known is None or not inbox.pool.heard.shape[1]:
        return state.known
    lists = [members(keys) for keys in state.known]
    own = peer_keys(state.ids)
    for row_, position in zip(rows.tolist(), answered.tolist(), strict=True):
        arrived = inbox.index[position][inbox.mask[position]]
        told = np.unique(inbox.pool.heard[arrived].numpy())
        told = told[(told != NOBODY) & (told != own[row_])]
        lists[row_] = np.union1d(lists[row_], told)
    return as_rows(lists)

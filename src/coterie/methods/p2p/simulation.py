"""A whole network of peers in the simulator: any peer-to-peer method, run round by round like a method with a server.

The "server" here is only the simulation's book-keeping: it holds every peer's model and node, lets the awake peers
train, carries the answers they ask each other for, and lets them update. Nothing of it is known to a peer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from coterie.core.cohort import Cohort
from coterie.core.errors import CoterieError
from coterie.core.federation import (
    Federation,
    Nothing,
    PeerNetwork,
    Replies,
    on_client,
)
from coterie.core.panels import Panel
from coterie.core.samples import ClientId
from coterie.core.states import (
    Stack,
    State,
    concat,
    row,
    spread,
    take,
)
from coterie.methods.base import A, Log, Models, RoundMethod, ServerMethod
from coterie.methods.how_many import in_rounds
from coterie.methods.local_training import LocalTraining
from coterie.methods.p2p.base import (
    Inbox,
    PeerMethod,
    PeerView,
    Request,
    aggregate,
    pack_node,
)
from coterie.methods.p2p.communities import communities
from coterie.methods.p2p.exchange import Earlier, fetch, fetch_chosen
from coterie.methods.p2p.neighbourhood import found, panels_of
from coterie.methods.p2p.network_state import (
    LARGEST_PICTURE,
    Network,
    below,
    counted,
    edges_of,
    grown,
    learnt,
    put,
    replaced,
    trimmed,
)
from coterie.methods.p2p.topology import (
    acquaintances,
    as_rows,
    introduced,
    members,
    peer_keys,
)

N = TypeVar("N")


@dataclass(frozen=True)
class Nodes:
    """Nodes as they are carried: tensors by name."""

    node: dict[str, Tensor]


@dataclass(frozen=True)
class LastSent:
    """What peers would have sent in the last round they trained in, and whether there was such a round, [C]."""

    model: Stack
    start: Stack
    ever: Tensor


@dataclass(frozen=True)
class Meeting:
    """What arrived at peers, their own nodes, and the similarities where all were measured at once."""

    inbox: Inbox
    node: dict[str, Tensor]
    similarity: Tensor | None


@dataclass(frozen=True)
class Met:
    """What a peer makes of its answers: its node after the round, and which models it aggregates."""

    node: dict[str, Tensor]
    chosen: Tensor


@dataclass(frozen=True)
class Simulated(RoundMethod[Network], Generic[N]):
    """A peer-to-peer method with all its peers in one machine, as the loop over rounds drives it."""

    method: PeerMethod[N]

    state_type: ClassVar[type[Network]] = Network
    serves_newcomers: ClassVar[bool] = False

    @property
    @override
    def name(self) -> str:
        return self.method.name

    @property
    def training(self) -> LocalTraining:
        """The method that is adapted."""
        return self.method

    def init(self, fed: Federation) -> Network:
        """Every peer with the common initial model and those it knows from the start."""
        ids = tuple(sorted(fed.ids))
        if len(ids) < 2:
            raise CoterieError(f"{self.name}: a peer needs others to learn from, but there is only one client.")
        origin = fed.task.init(fed.seed)
        met = acquaintances(
            self.method.topology, ids, seed=fed.seed, degree=self.method.degree, bridges=self.method.bridges
        )
        return Network(
            ids=ids,
            model=spread(origin, len(ids)),
            node=self._begun(fed, ids),
            known=None if met is None else as_rows([met[client] for client in ids]),
            received=torch.zeros(len(ids), dtype=torch.int64),
            aggregated=torch.zeros(len(ids), len(ids), dtype=torch.int32) if len(ids) <= LARGEST_PICTURE else None,
            history=(),
            origin=origin,
        )

    def _begun(self, fed: Federation, ids: Sequence[ClientId]) -> dict[str, Tensor]:
        # starting is the peer's own affair: it cannot fail on the way, as evaluation cannot
        replies = fed.ask(self.begin, ids, same=Nothing(), purpose="evaluation", counted=False)
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
            met = introduced(met, fresh, seed=fed.seed, degree=self.method.degree)
        everyone = [*state.ids, *fresh]
        ids = tuple(sorted(everyone))
        place = {client: index for index, client in enumerate(everyone)}
        order = torch.tensor([place[client] for client in ids])
        begun = self._begun(fed, fresh)
        blank = len(fresh)
        return replace(
            state,
            ids=ids,
            model=take(concat([state.model, spread(state.origin, blank)]), order),
            node={name: below(tensor, begun[name])[order] for name, tensor in state.node.items()},
            known=None if known is None else as_rows([met[client] for client in ids]),
            received=torch.cat([state.received, torch.zeros(blank, dtype=torch.int64)])[order],
            aggregated=grown(state.aggregated, blank, order),
        )

    def step(self, state: Network, fed: Federation) -> tuple[Network, Log]:
        """One round: the awake peers train, ask each other, and update; a peer goes on with the answers that come."""
        if not isinstance(fed, PeerNetwork):
            raise CoterieError(f"{self.name} has no server: run it in the simulator, or between peers.")
        joined = set(state.ids)
        there = [client for client in fed.sample(1.0) if client in joined]
        awake = sorted(fed.sample(self.method.fraction, there))
        keep = fed.delays or self.method.fraction != 1  # a peer may be asked for what it sent last
        earlier = self._sent_before(fed, there) if keep else None
        train = self.train_and_keep if keep else self.train
        trained = fed.ask(train, awake, each=Models(state.model), rows=state.rows(awake), counted=False)
        if trained.value is None:
            return state, {"awake": 0}
        view = self._view(state, fed, there, trained)
        rows = torch.tensor(state.rows(trained.ids))
        node = {name: tensor[rows] for name, tensor in state.node.items()}
        own = self.method.unpack_node(node)
        request = self.method.choose(own, view)
        idle = sorted(set(() if earlier is None else earlier.ids) - {*trained.ids, *trained.failed})
        inbox = fetch(state, fed, view, request, trained.value.models, method=self.method, idle=idle, earlier=earlier)
        similarity = None
        if not self.method.measures_data:  # then all peers are measured at once, and every model is read once
            similarity = self.method.measure(Cohort(view.ids, fed.task, (), fed.round, fed.seed), own, inbox)
        sent = Meeting(inbox, node, similarity)
        met = fed.ask(self.meet, trained.ids, each=sent, common=("inbox/pool", "inbox/sketches"), counted=False)
        if met.value is None:
            return state, {"awake": 0}
        return self._concluded(state, fed, view, request, inbox, met)

    def _sent_before(self, fed: Federation, there: Sequence[ClientId]) -> Earlier:
        """What the peers would have sent in the last round they trained in; those that never have are left out."""
        kept = fed.ask(self.last_sent, there, same=Nothing(), purpose="evaluation", counted=False)
        if kept.value is None:
            return Earlier((), {}, {})
        rows = kept.value.ever.nonzero()[:, 0]
        ids = tuple(kept.ids[row] for row in rows.tolist())
        return Earlier(ids, take(kept.value.model, rows), take(kept.value.start, rows))

    def _view(self, state: Network, fed: Federation, there: Sequence[ClientId], trained: Replies[Models]) -> PeerView:
        """What the awake peers know: a crashed peer is missed at once, any other silent one is still asked."""
        up = [c for c in there if c not in trained.failed or trained.failed[c].kind != "crashed"]
        everyone = np.sort(peer_keys(up))
        known = allies = None
        rows = state.rows(trained.ids)
        if state.known is not None:
            lists = (members(state.known[row]) for row in rows)
            known = tuple(keys[np.isin(keys, everyone, assume_unique=True)] for keys in lists)
        if self.method.needs_groups:
            groups = fed.truth(up).numpy()
            keys = peer_keys(up)
            same = {group: np.sort(keys[groups == group]) for group in set(groups.tolist())}
            allies = tuple(same[group] for group in fed.truth(trained.ids).tolist())
        return PeerView(trained.ids, fed.round, fed.seed, everyone, known, allies)

    def _concluded(
        self, state: Network, fed: PeerNetwork, view: PeerView, request: Request, inbox: Inbox, met: Replies[Met]
    ) -> tuple[Network, Log]:
        """The network after the round, and what there is to tell about it."""
        assert met.value is not None
        rows = torch.tensor(state.rows(met.ids))
        position = {client: index for index, client in enumerate(view.ids)}
        answered = torch.tensor([position[client] for client in met.ids])
        node = {name: trimmed(put(state.node[name], rows, met.value.node[name])) for name in state.node}
        wanted = torch.zeros_like(inbox.mask)
        wanted[answered] = met.value.chosen
        chosen = fetch_chosen(fed, view, request, inbox, wanted)
        mine = replace(inbox, own=inbox.own[answered], index=inbox.index[answered])
        models = aggregate(mine, chosen[answered], fed.task.row_math, self.method.aggregate)
        models = self.method.restarted(models, self.method.unpack_node(met.value.node), state.origin)
        received = state.received.clone()
        received[rows] += torch.where(request.looks[:, None], chosen, inbox.mask)[answered].sum(1)
        changed = replace(
            state,
            model={name: replaced(state.model[name], rows, tensor) for name, tensor in models.items()},
            node=node,
            known=learnt(state, rows, inbox, answered),
            received=received,
            aggregated=counted(state, rows, inbox.keys[answered], chosen[answered]),
        )
        neighbours = self.method.neighbours(self.method.unpack_node(node))
        moment = found(fed, changed.ids, neighbours, float(received.double().mean()))
        log: Log = {"awake": len(met.ids), **{k: v for k, v in moment.items() if v is not None and k != "round"}}
        return replace(changed, history=(*state.history, moment)), log

    @on_client()
    def begin(self, c: Cohort, sent: Nothing) -> Nodes:
        """On the peer: `PeerMethod.start`."""
        return Nodes(pack_node(self.method.start(c)))

    @on_client("models")
    def train(self, c: Cohort, sent: Models) -> Models:
        """On the peer: `PeerMethod.train`."""
        return Models(self.method.train(c, sent.models))

    @on_client("models")
    def train_and_keep(self, c: Cohort, sent: Models) -> Models:
        """On the peer: `train`, and keep the answer, which may be asked for in a later round."""
        trained = self.train(c, sent)
        c.keep("sent", trained.models)
        c.keep("began", sent.models)
        return trained

    @on_client("models")
    def last_sent(self, c: Cohort, sent: Nothing) -> LastSent:
        """On the peer: its answer of an earlier round, as a real peer keeps it for those who ask."""
        nothing = spread(c.task.template, len(c))
        ever = torch.tensor(["sent" in memory for memory in c.memory])
        return LastSent(c.recall("sent", nothing), c.recall("began", nothing), ever)

    @on_client("scores")
    def meet(self, c: Cohort, sent: Meeting) -> Met:
        """On the peer: measure, unless that was done for all at once, and select; means are taken of all at once."""
        node, inbox = self.method.unpack_node(sent.node), sent.inbox
        similarity = self.method.measure(c, node, inbox) if sent.similarity is None else sent.similarity
        after, chosen = self.method.select(c, node, inbox, similarity)
        return Met(pack_node(after), chosen)

    def model_for(self, state: Network, ids: Sequence[ClientId]) -> tuple[Stack, list[int]]:
        """Each peer uses its own model; one that has not joined yet would begin with the common one."""
        place = {client: index for index, client in enumerate(state.ids)}
        if all(client in place for client in ids):
            return state.model, [place[client] for client in ids]
        models = concat([state.model, spread(state.origin, 1)])
        return models, [place.get(client, len(state.ids)) for client in ids]

    def ask_about_models(
        self, state: Network, fed: Federation, ids: Sequence[ClientId], function: Callable[[Cohort, Any], A]
    ) -> Replies[A]:
        """Peers judge their own models; nothing is sent."""
        models, rows = self.model_for(state, ids)
        return fed.ask(function, ids, each=Models(models), rows=rows, purpose="evaluation", counted=False)

    def clusters(self, state: Network, ids: Sequence[ClientId]) -> list[int] | None:
        """Communities of the neighbour graph; their number is not given."""
        if not self.method.finds_groups:
            return None
        lists = self.method.neighbours(self.method.unpack_node(state.node))
        labels = communities(*edges_of(state.ids, lists), len(state.ids))
        place = dict(zip(state.ids, labels.tolist(), strict=True))
        return [int(place.get(client, -1)) for client in ids]

    @override
    def models(self, state: Network) -> Mapping[str, State]:
        return {f"client-{client}": row(state.model, index) for index, client in enumerate(state.ids)}

    def panels(self, state: Network, ids: Sequence[ClientId], truth: Sequence[int] | None) -> list[Panel]:
        """Neighbours over rounds, who aggregated whom, similarities, the neighbour graph."""
        group = dict(zip(ids, truth, strict=True)) if truth is not None else {}
        links = edges_of(state.ids, self.method.neighbours(self.method.unpack_node(state.node)))
        return panels_of(state.ids, group, state.history, state.aggregated, state.node, links)


def in_simulator(method: RoundMethod[Any] | PeerMethod[Any]) -> RoundMethod[Any]:
    """Any method as the simulator runs it."""
    if isinstance(method, PeerMethod):
        return Simulated(method)
    return in_rounds(method) if isinstance(method, ServerMethod) else method

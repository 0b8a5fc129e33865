"""One real peer: the method's own functions on a cohort of one, its answers to others, theirs to it.

A peer is driven by the same loop over rounds as the simulator, so its folder, checkpoint, live table and report are the
same; it simply has one client, itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from coterie.core import wire
from coterie.core.cohort import Cohort
from coterie.core.errors import CoterieError
from coterie.core.federation import Failure, Federation, Replies
from coterie.core.message import Message
from coterie.core.notes import Note, silent
from coterie.core.samples import ClientId
from coterie.core.states import (
    Stack,
    State,
    row,
    spread,
)
from coterie.deploy.boundary import blamed
from coterie.deploy.presence import Roster
from coterie.deploy.reached import NOT_BEGUN
from coterie.deploy.zenoh.connection import Kind, PeerConnection
from coterie.deploy.zenoh.federation import PeerFederation
from coterie.methods.base import A, Log, Models, RoundMethod
from coterie.methods.local_training import LocalTraining
from coterie.methods.p2p.base import (
    Answers,
    Inbox,
    PeerMethod,
    PeerView,
    Sketched,
    aggregate,
    pack_node,
)
from coterie.methods.p2p.inbox import inbox_of, sketches_of
from coterie.methods.p2p.sketch import lengths
from coterie.methods.p2p.topology import (
    NO_KEYS,
    NO_PEER,
    Keys,
    Topology,
    acquaintances,
    introduced,
    peer_key,
    told_about,
)

S = TypeVar("S", bound=Answers | Sketched)


@dataclass(frozen=True)
class PeerState:
    """What a peer has: its model, its node, how many models it has received, and whom it knows.

    `known` are the keys of those it can reach and `roster` the names it has ever heard of; None: it reaches everyone.
    """

    model: Stack
    node: dict[str, Tensor]
    received: int = 0
    known: Tensor | None = None
    roster: tuple[ClientId, ...] = ()


@dataclass(frozen=True)
class PeerPace:
    """How peers wait for each other."""

    lock_step: bool = True
    """All peers finish round t before any goes on to choose in it; else each goes at its own pace."""
    seconds: float = 10.0
    """How long an answer, or a peer that is behind, is waited for."""


@dataclass(frozen=True)
class Deployed(RoundMethod[PeerState]):
    """A peer-to-peer method as this real peer runs it, in the shape that the loop over rounds drives."""

    method: PeerMethod[Any]
    connection: PeerConnection
    pace: PeerPace = field(default_factory=PeerPace)
    note: Note = silent

    state_type: ClassVar[type[PeerState]] = PeerState

    @property
    @override
    def name(self) -> str:
        return self.method.name

    @property
    def training(self) -> LocalTraining:
        """The method that is adapted."""
        return self.method

    def init(self, fed: Federation) -> PeerState:
        """The common initial model and a fresh node; where views are limited, those it knows from the start."""
        c, method = _cohort(fed), self.method
        state = PeerState(spread(fed.task.init(fed.seed), 1), pack_node(method.start(c)))
        if method.topology == "full":
            return state
        names = (*self.connection.others(), fed.ids[0])
        if self.connection.usual() > 0:  # the others have begun without it
            return self._met(replace(state, known=torch.empty(0, dtype=torch.int64)), fed, names)
        roster = tuple(sorted(names))
        met = _first_met(method.topology, roster, fed.seed, method.degree, method.bridges)
        return replace(state, known=torch.from_numpy(met[fed.ids[0]].copy()), roster=roster)

    def _met(self, state: PeerState, fed: Federation, there: Sequence[ClientId]) -> PeerState:
        """After newcomers have met some of those who were there before: a newcomer draws them as in the simulator."""
        new = sorted(set(there) - set(state.roster))
        if state.known is None or not new:
            return state
        own = fed.ids[0]
        before = state.roster or tuple(name for name in there if name != own)
        lists = dict.fromkeys(before, NO_KEYS) | ({own: state.known.numpy()} if state.roster else {})
        met = introduced(lists, new if state.roster else [own], seed=fed.seed, degree=self.method.degree)
        return replace(state, known=torch.from_numpy(met[own]), roster=tuple(sorted({*before, *there})))

    def step(self, state: PeerState, fed: Federation) -> tuple[PeerState, Log]:
        """Train, offer the result, ask others, update. One who is behind the others skips what they have done."""
        connection, method, c = self.connection, self.method, _cohort(fed)
        # one that says it is far ahead does not make all others skip: most of them must be
        if self.pace.lock_step and connection.usual() > fed.round:
            connection.announce(fed.round)
            return state, {"skipped": 1}
        if state.known is not None:
            state = self._met(state, fed, (*connection.others(), fed.ids[0]))
        trained = method.train(c, state.model)
        fed.trained(c.losses)
        offered = self._offered(state, fed, trained)
        encoded: dict[Kind, bytes] = {kind: wire.encode(_alone(answer)) for kind, answer in offered.items()}
        connection.offer(fed.round, encoded, latest_is_fine=not self.pace.lock_step)
        there = self._there(fed)
        view = _view_of(fed, there, state.known)
        node = method.unpack_node(state.node)
        request = method.choose(node, view)
        keys = [int(key) for key in request.keys[0].tolist()]
        stride = lengths(fed.task, trained, state.model) if method.watches_strides else None
        met = _Meeting(self, fed, offered, keys, there.by_key, len(view.reachable(0)) - (state.known is None), stride)
        if bool(request.looks.any()):
            looked = met.sketches()
            after, wanted = method.select(c, node, looked, method.measure(c, node, looked))
            inbox = met.models("model", torch.where(wanted[0], request.keys[0], NO_PEER).tolist())
            chosen, heard = inbox.mask, looked
        else:
            inbox = heard = met.models("change" if bool(request.starts.any()) else "model", keys)
            after, chosen = method.select(c, node, inbox, method.measure(c, node, inbox))
        model = aggregate(inbox, chosen, c.task.row_math, method.aggregate)
        back = method.restarts(after)
        if back is not None and bool(back.any()):
            model = method.restarted(model, after, fed.task.init(fed.seed))
        answers = int(inbox.mask.sum())
        log: Log = {"others": len(there.names) - 1, "answers": answers, "aggregated": int(chosen.sum())}
        known = _learnt(state.known, heard, c.ids[0])
        return replace(state, model=model, node=pack_node(after), received=state.received + answers, known=known), log

    def _offered(self, state: PeerState, fed: Federation, trained: Stack) -> dict[Kind, Answers | Sketched]:
        """What others may ask for in this round, of every kind."""
        number = self.method.hearsay if state.known is not None else 0
        known = NO_KEYS if state.known is None else state.known.numpy()
        heard = told_about(fed.seed, fed.round, fed.ids[0], known, number)
        offered: dict[Kind, Answers | Sketched] = {
            "model": Answers(trained, None, heard),
            "change": Answers(trained, state.model, heard),
        }
        sketch = self.method.sketch(fed.task, fed.seed, trained, state.model)
        return offered if sketch is None else {**offered, "sketch": Sketched(sketch, heard)}

    def _there(self, fed: Federation) -> Roster:
        """Who takes part, oneself included: in lock-step those who are in this round, once all who can have come."""
        if not self.pace.lock_step:
            return self.connection.roster(NOT_BEGUN)
        for name in self.connection.meet(fed.round, time.monotonic() + self.pace.seconds):
            reached = self.connection.give_up(name)
            fed.refuse(name, f"it is still in round {reached + 2}; going on without it")
            self.note(f"{name} does not move; going on without it")
        return self.connection.roster(fed.round)

    @override
    def model_for(self, state: PeerState, ids: Sequence[ClientId]) -> tuple[Stack, list[int]]:
        return state.model, [0] * len(ids)

    def ask_about_models(
        self, state: PeerState, fed: Federation, ids: Sequence[ClientId], function: Callable[[Cohort, Any], A]
    ) -> Replies[A]:
        """This peer asks itself; what it keeps (its fine-tuned model) stays with it."""
        c = _cohort(fed)
        reply = function(c, Models(state.model))
        if isinstance(fed, PeerFederation):
            fed.keep(c.kept)
        return Replies(c.ids, reply)

    @override
    def models(self, state: PeerState) -> Mapping[str, State]:
        return {f"client-{self.connection.name}": row(state.model, 0)}


@dataclass(frozen=True)
class _Meeting:
    """What one peer asks others for in a round, and what is made of their answers."""

    peer: Deployed
    fed: Federation
    offered: Mapping[Kind, Answers | Sketched]
    keys: Sequence[int]
    names: Mapping[int, ClientId]
    known: int
    stride: Tensor | None

    def models(self, kind: Kind, keys: Sequence[int]) -> Inbox:
        """The models of those at these keys; one that is refused has not come."""
        own = self.offered[kind]
        assert isinstance(own, Answers)
        came = self._asked(kind, keys, Answers)
        inbox, bad = inbox_of(own, keys, came, self.fed.task.template, self.known, self.stride)
        self._refuse(bad)
        return inbox

    def sketches(self) -> Inbox:
        """The sketches of all that are to be looked at."""
        own = self.offered["sketch"]
        assert isinstance(own, Sketched)
        inbox, bad = sketches_of(own, self.keys, self._asked("sketch", self.keys, Sketched), self.known, self.stride)
        self._refuse(bad)
        return inbox

    def _refuse(self, bad: Mapping[int, Failure]) -> None:
        for key, failure in bad.items():
            self.fed.refuse(self.names[key], failure.reason)

    def _asked(self, kind: Kind, keys: Sequence[int], form: type[S]) -> dict[int, S]:
        fed, connection = self.fed, self.peer.connection
        asked = [key for key in keys if key in self.names]
        seconds = self.peer.pace.seconds
        came = connection.fetch(fed.round, [self.names[key] for key in asked], kind=kind, seconds=seconds)
        answers: dict[int, S] = {}
        for key in asked:
            data = came.get(self.names[key])
            if data is None:
                fed.refuse(self.names[key], "it did not answer")
                continue
            try:
                with blamed("its answer cannot be read"):
                    _check_layout(data, fed.task.template, connection.limit)
                    answers[key] = _with_axis(wire.decode(data, form, limit=connection.limit))
            except CoterieError as error:
                fed.refuse(self.names[key], str(error))
        return answers


def _cohort(fed: Any) -> Cohort:
    """This peer with its data as they are in this round."""
    return Cohort((fed.name,), fed.task, (fed.data.client(fed.name, fed.round),), round=fed.round, seed=fed.seed)


@lru_cache(maxsize=1)
def _first_met(
    topology: Topology, names: tuple[ClientId, ...], seed: int, degree: int, bridges: int
) -> Mapping[ClientId, Keys]:
    """Whom each of these knows at the start: the same for all peers of a process."""
    met = acquaintances(topology, names, seed=seed, degree=degree, bridges=bridges)
    assert met is not None
    return met


def _check_layout(data: bytes, template: State, limit: int) -> None:
    """Shapes, before anything is allocated."""
    for path, (_, shape) in wire.layout_of(data, limit=limit).items():
        wanted = template.get(path.split("/", 1)[-1]) if "/" in path else None
        if wanted is not None and shape != tuple(wanted.shape):
            raise wire.WireError(f"{path} has shape {shape} instead of {tuple(wanted.shape)}.")


def _view_of(fed: Federation, there: Roster, known: Tensor | None) -> PeerView:
    """What this peer knows of the network: those who are there, as far as it has heard of them."""
    everyone = there.keys
    limited = None if known is None else (known.numpy()[np.isin(known.numpy(), everyone)],)
    return PeerView((fed.ids[0],), fed.round, fed.seed, everyone, limited)


def _learnt(known: Tensor | None, inbox: Inbox, own: ClientId) -> Tensor | None:
    """Whom this peer knows after the answers it got."""
    if known is None:
        return None
    told = np.unique(inbox.pool.heard[inbox.index[0][inbox.mask[0]]].numpy())
    return torch.from_numpy(np.union1d(known.numpy(), told[(told != NO_PEER) & (told != peer_key(own))]))


def _alone(answer: S) -> S:
    """One answer without its leading axis, as it is sent."""
    return Message.of(answer).row(0).open()  # type: ignore[no-any-return]


def _with_axis(answer: S) -> S:
    """The inverse."""
    return Message.of(answer).with_axis().open()  # type: ignore[no-any-return]

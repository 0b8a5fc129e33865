"""One real peer: the method's own functions on a cohort of one, its answers to others, theirs to it.

A peer is driven by the same loop over rounds as the simulator, so its folder, checkpoint, live table and report are the
same; it simply has one client, itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_high
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor

from coterie.core import wire
from coterie.core.cohort import Cohort, Memory
from coterie.core.errors import CoterieError
from coterie.core.federation import (
    Engine,
    Failure,
    Federation,
    Ledger,
    Question,
    Replies,
)
from coterie.core.interrupts import pause
from coterie.core.notes import Note, silent
from coterie.core.samples import ClientId, Population
from coterie.core.states import (
    Stack,
    State,
    row,
    spread,
)
from coterie.core.task import Task
from coterie.data.describe import mean_floor
from coterie.deploy.boundary import blamed
from coterie.deploy.zenoh.connection import PeerConnection
from coterie.methods.base import A, Log, Models, RoundMethod
from coterie.methods.local_training import LocalTraining
from coterie.methods.p2p.base import (
    Answers,
    PeerMethod,
    PeerView,
    inbox_of,
    pack_node,
)
from coterie.methods.p2p.topology import members, peer_key, peer_keys

R = TypeVar("R")
_LOOK_SECONDS = 0.02


@dataclass(frozen=True)
class PeerState:
    """What a peer has: its model, its node, and whom it has asked and aggregated so far."""

    model: Stack
    node: dict[str, Tensor]
    received: int = 0


@dataclass(frozen=True)
class Pace:
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
    pace: Pace = field(default_factory=Pace)
    note: Note = silent

    state_type: ClassVar[type[PeerState]] = PeerState

    @property
    def name(self) -> str:
        """The method's."""
        return self.method.name

    @property
    def training(self) -> LocalTraining:
        """The method that is adapted."""
        return self.method

    def init(self, fed: Federation) -> PeerState:
        """The common initial model and a fresh node."""
        c = _cohort(fed)
        return PeerState(spread(fed.task.init(fed.seed), 1), pack_node(self.method.start(c)))

    def step(self, state: PeerState, fed: Federation) -> tuple[PeerState, Log]:
        """Train, offer the result, ask others, update. One who is behind the others skips what they have done."""
        connection, method, c = self.connection, self.method, _cohort(fed)
        # one that says it is far ahead does not make all others skip: most of them must be
        if self.pace.lock_step and median_high([*connection.progress().values()] or [-1]) > fed.round:
            connection.announce(fed.round)
            return state, {"skipped": 1}
        trained = method.train(c, state.model)
        fed.trained(c.losses)
        heard = torch.empty(1, 0, dtype=torch.int64)
        both = {told: Answers(trained, state.model if told else None, heard) for told in (False, True)}
        encoded = {told: wire.encode(_alone(answer)) for told, answer in both.items()}
        connection.offer(fed.round, encoded, latest_is_fine=not self.pace.lock_step)
        others = self._others(fed)
        names = {peer_key(name): name for name in others}
        view = PeerView((c.ids[0],), fed.round, fed.seed, np.sort(peer_keys([*others, c.ids[0]])))
        node = method.unpack_node(state.node)
        request = method.choose(node, view)
        start = bool(request.starts.any())
        asked = [key for key in members(request.keys[0]).tolist() if key in names]
        came = connection.fetch(fed.round, [names[key] for key in asked], start=start, seconds=self.pace.seconds)
        answers = self._opened(fed, names, asked, came)
        keys = [int(key) for key in request.keys[0].tolist()]
        inbox, refused = inbox_of(both[start], keys, answers, fed.task.template, len(others))
        for key, failure in refused.items():
            fed.refuse(names[key], failure.reason)
        model, after, chosen = method.update(c, node, inbox)
        log: Log = {"others": len(others), "answers": len(answers), "aggregated": int(chosen.sum())}
        return PeerState(model, pack_node(after), state.received + len(answers)), log

    def _others(self, fed: Federation) -> list[ClientId]:
        """Who is there to be asked: in lock-step those who are in this round, too, once all who can have come."""
        until = time.monotonic() + self.pace.seconds
        while self.pace.lock_step:
            progress = self.connection.progress()
            idle = self._given_up(fed) | {n for n, reached in progress.items() if reached < 0 < fed.round}
            behind = [n for n, reached in progress.items() if reached < fed.round and n not in idle]
            if not behind:
                break
            if time.monotonic() > until:
                for name in behind:
                    self._give_up(fed, name, progress[name])
                break
            pause(_LOOK_SECONDS)
        there = self.connection.progress()
        if not self.pace.lock_step:
            return sorted(there)
        return sorted(name for name, reached in there.items() if reached >= fed.round)

    def _given_up(self, fed: Federation) -> set[ClientId]:
        """Peers that have not moved since they were waited for in vain."""
        given_up: dict[ClientId, int] = getattr(fed, "given_up", {})
        progress = self.connection.progress()
        return {name for name, reached in given_up.items() if progress.get(name, -1) == reached}

    def _give_up(self, fed: Federation, name: ClientId, reached: int) -> None:
        getattr(fed, "given_up", {})[name] = reached
        fed.refuse(name, f"it is still in round {reached + 2}; going on without it")
        self.note(f"{name} does not move; going on without it")

    def _opened(
        self, fed: Federation, names: Mapping[int, ClientId], asked: Sequence[int], came: Mapping[ClientId, bytes]
    ) -> dict[int, Answers]:
        answers: dict[int, Answers] = {}
        for key in asked:
            data = came.get(names[key])
            if data is None:
                fed.refuse(names[key], "it did not answer")
                continue
            try:
                with blamed("its answer cannot be read"):
                    _check_layout(data, fed.task.template, self.connection.limit)
                    answers[key] = _with_axis(wire.decode(data, Answers, limit=self.connection.limit))
            except CoterieError as error:
                fed.refuse(names[key], str(error))
        return answers

    def model_for(self, state: PeerState, ids: Sequence[ClientId]) -> tuple[Stack, list[int]]:
        """This peer's model."""
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

    def models(self, state: PeerState) -> Mapping[str, State]:
        """This peer's model."""
        return {f"client-{self.connection.name}": row(state.model, 0)}


class PeerFederation(Engine):
    """The federation of one that a peer is to the loop over rounds."""

    def __init__(
        self,
        name: ClientId,
        task: Task,
        data: Population,
        seed: int,
        connection: PeerConnection,
        *,
        at_end: Callable[[], None],
        last: int,
        note: Note = silent,
    ) -> None:
        self.name, self.task, self.data, self.seed, self.round = name, task, data, seed, 0
        self.ledger = Ledger()
        self.failures: list[tuple[int, ClientId, Failure]] = []
        self.memory: dict[ClientId, Memory] = {}
        self.given_up: dict[ClientId, int] = {}
        self._connection, self._counted = connection, (0, 0)
        self._at_end, self._last, self._begun, self._note = at_end, last, False, note

    @property
    def ids(self) -> tuple[ClientId, ...]:
        """This peer."""
        return (self.name,)

    @property
    def path(self) -> str:
        """How it is reached."""
        return "peers over zenoh"

    @property
    def registered(self) -> int:
        """One."""
        return 1

    def begin(self, round: int) -> tuple[ClientId, ...]:
        """A round begins; a single peer has no clients that could join."""
        self.round, self._begun = round, True
        return ()

    def groups(self, ids: Sequence[ClientId]) -> list[int] | None:
        """One peer alone says nothing about groups."""
        return None

    def truth(self, ids: Sequence[ClientId]) -> Tensor:
        """Not known to a peer."""
        raise CoterieError("The true groups are not known between real peers; choose partners in another way.")

    def sample(self, share: float, among: Sequence[ClientId] | None = None) -> tuple[ClientId, ...]:
        """This peer, always."""
        return super().sample(1.0, among)

    def floor(self, ids: Sequence[ClientId]) -> float | None:
        """What this peer has without any learning."""
        return mean_floor(self.data, self.task, ids)

    def answer(self, question: Question[R]) -> Replies[R]:
        """A peer asks others for models, never to work."""
        raise CoterieError(f"{question.function.__name__} cannot be asked of peers.")

    def note(self, text: str) -> None:
        """Tell those who watch this peer."""
        self._note(text)

    def restore(self, memory: dict[ClientId, Memory], next_round: int) -> None:
        """All that a peer keeps is its state; the others are told how far it had come."""
        self._connection.announce(next_round - 1)

    def saved(self, next_round: int) -> None:
        """Nothing depends on it."""

    def commit(self) -> None:
        """Book what was sent and received: all that crossed, whenever it did."""
        if self._begun and self.round == self._last:
            self._at_end()
        sent, received = self._connection.sent, self._connection.received
        self.ledger.up["train"] += sent - self._counted[0]
        self.ledger.down["train"] += received - self._counted[1]
        self._counted = (sent, received)

    def keep(self, kept: Mapping[str, Tensor | Stack]) -> None:
        """Remember what this peer wants to keep beside its state."""
        own = self.memory.setdefault(self.name, {})
        own.update({name: row(part, 0) if isinstance(part, dict) else part[0] for name, part in kept.items()})

    def take_touched(self) -> list[ClientId]:
        """No client: what a peer keeps is in its state."""
        return []

    def close(self) -> None:
        """The caller that opened the connection closes it."""


def _cohort(fed: Any) -> Cohort:
    """This peer with its data as they are in this round."""
    return Cohort((fed.name,), fed.task, (fed.data.client(fed.name, fed.round),), round=fed.round, seed=fed.seed)


def _check_layout(data: bytes, template: State, limit: int) -> None:
    """Shapes, before anything is allocated."""
    for path, (_, shape) in wire.layout_of(data, limit=limit).items():
        wanted = template.get(path.split("/", 1)[-1]) if "/" in path else None
        if wanted is not None and shape != tuple(wanted.shape):
            raise wire.WireError(f"{path} has shape {shape} instead of {tuple(wanted.shape)}.")


def _alone(answers: Answers) -> Answers:
    """One answer without its leading axis, as it is sent."""
    return Answers(row(answers.model, 0), None if answers.start is None else row(answers.start, 0), answers.heard[0])


def _with_axis(answer: Answers) -> Answers:
    """The inverse."""
    start = None if answer.start is None else spread(answer.start, 1)
    return Answers(spread(answer.model, 1), start, answer.heard.unsqueeze(0))

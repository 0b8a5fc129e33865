"""The only way from a method to its clients.

A method asks clients to run one of its own client functions; the federation (the simulator, or Flower) carries the
message there and the replies back, counts the bytes, refuses bad replies by name and goes on with the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Generic, Literal, Protocol, TypeVar, overload, runtime_checkable

import numpy as np
from torch import Tensor

from coterie.core.cohort import Cohort, Memory
from coterie.core.errors import CoterieError
from coterie.core.message import Message
from coterie.core.rng import Key, rng
from coterie.core.samples import ClientId
from coterie.core.task import Task
from coterie.core.threads import done_beside

P = TypeVar("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
Purpose = Literal["train", "evaluation"]


SCORES = "scores"
TELLS: Mapping[str, str] = {
    "models": "models trained on the client's data, and how many samples it has",
    SCORES: "losses, accuracies, and which of several models fits best",
    "labels": "how often each class occurs, or answers that depend on it",
    "brightness": "the mean of the inputs per channel",
    "features": "first and second moments of features of the inputs",
    "styles": "low frequencies of the images, class by class",
    "embeddings": "bits of the mean code of each class, some of them flipped",
}
"""What the answer to a question can tell about a client, in the words of `coterie join --refuse`."""


@overload
def on_client(function: F, /) -> F: ...


@overload
def on_client(*tells: str) -> Callable[[F], F]: ...


def on_client(*given: Any) -> Any:
    """Mark a method's function as one that runs on clients, and say what its answer tells about them.

    `@on_client("models")`, with words of `TELLS`; `@on_client()` where the answer tells nothing about the data. A bare
    `@on_client` does not say, and is taken to tell everything. Only marked functions can be asked for.
    """
    if len(given) == 1 and callable(given[0]):
        return on_client(*TELLS)(given[0])
    unclear = set(given) - TELLS.keys()
    if unclear:
        raise CoterieError(f"{', '.join(sorted(unclear))}: not something that clients tell; use {', '.join(TELLS)}.")

    def mark(function: F) -> F:
        function.on_client, function.tells = True, given  # type: ignore[attr-defined]
        return function

    return mark


@dataclass(frozen=True)
class Nothing:
    """The empty message."""


@dataclass(frozen=True)
class Failure:
    """Why a client's reply is missing. `refused`: by the server; `withheld`: by the device's own rules (`consent`)."""

    kind: Literal[
        "dropped", "late", "crashed", "frozen", "not finite", "wrong shape", "too large", "lost", "refused", "withheld"
    ]
    reason: str


@dataclass(frozen=True)
class Replies(Generic[R]):
    """The valid replies, stacked in the order of `ids`, and why the others are missing.

    Every tensor of `value` has the clients as its leading axis. With no valid reply at all `value` is None.
    """

    ids: tuple[ClientId, ...]
    value: R | None
    failed: Mapping[ClientId, Failure] = field(default_factory=dict)
    losses: Mapping[ClientId, float] = field(default_factory=dict)
    """The training losses that came with the replies, those of refused replies too: what the clients say, unchecked.
    They are for who watches the run; a method does not look at them."""
    stale: Mapping[ClientId, int] = field(default_factory=dict)
    """Of replies that were asked for in an earlier round (`core.quorum`), how many rounds ago."""


@dataclass
class Tally:
    """Training replies of one round: how many were asked for, how many count, why the others do not, and the training
    losses that came with them."""

    asked: int = 0
    valid: int = 0
    failures: list[Failure] = field(default_factory=list)
    losses: dict[ClientId, float] = field(default_factory=dict)
    ages: list[int] = field(default_factory=list)
    """Of the replies that count although they came late, how many rounds old each is."""


@dataclass
class Ledger:
    """Bytes that crossed between server and clients, by purpose; exactly the lengths of the encoded messages.

    What is around a message on its way is not counted: the order that goes with a question, the training loss that
    comes with a reply (at most 24 bytes), and the carrier's own.
    """

    down: dict[Purpose, int] = field(default_factory=lambda: {"train": 0, "evaluation": 0})
    up: dict[Purpose, int] = field(default_factory=lambda: {"train": 0, "evaluation": 0})

    @property
    def evaluation(self) -> int:
        """Bytes spent on evaluation, both ways."""
        return self.down["evaluation"] + self.up["evaluation"]


@dataclass(frozen=True)
class Question(Generic[R]):
    """What clients are asked: `Federation.ask` packs the message, once for every engine.

    Client i gets row `rows[i]` of the message; without `rows` everyone gets all of it.
    """

    function: Callable[[Cohort, Any], R]
    ids: Sequence[ClientId]
    message: Message
    rows: Sequence[int] | None
    purpose: Purpose
    counted: bool


class Federation(Protocol):
    """What a server method may do with its clients."""

    seed: int
    round: int
    task: Task

    @property
    def ids(self) -> tuple[ClientId, ...]:
        """Clients that are there now."""

    def sample(self, share: float, among: Sequence[ClientId] | None = None) -> tuple[ClientId, ...]:
        """Clients drawn for this round: a fraction (<= 1) or a number (> 1) of them, the same for every method."""
        pool = self.ids if among is None else among
        drawn = draw_clients(pool, share, self.rng("sample"))
        more = self.waiting.intersection(pool).difference(drawn)
        return tuple(sorted({*drawn, *more})) if more else drawn

    @property
    def waiting(self) -> frozenset[ClientId]:
        """Clients whose late replies to an earlier round are there to be used in this one; they are always drawn."""
        return frozenset()

    def ask(
        self,
        function: Callable[[Cohort, P], R],
        ids: Sequence[ClientId],
        *,
        same: P | None = None,
        each: P | None = None,
        rows: Sequence[int] | None = None,
        common: Sequence[str] = (),
        purpose: Purpose = "train",
        counted: bool = True,
        meanwhile: Callable[[], object] | None = None,
    ) -> Replies[R]:
        """Have clients run a client function of the method.

        `same` goes to everyone as it is. `each` is a message whose tensors have a leading axis: client i gets row
        `rows[i]` (row i without `rows`), and only that row is sent to it; the function sees its cohort's rows. The
        parts of `each` whose paths `common` names are whole for everyone. With `counted=False` no bytes are booked:
        nothing passes between a server and its clients, the simulator only makes peers do their own work.
        `meanwhile` is work of the server that needs none of the replies. It is done once, beside the clients' work
        where the federation can, else after it (`functools.cache` lets the method call it again for its result).
        """
        message = Message.of(each if same is None else same, common)
        places = None if same is not None else tuple(range(len(ids)) if rows is None else rows)
        question = Question(function, ids, message, places, purpose, counted)
        with nullcontext() if meanwhile is None else done_beside(meanwhile, thread=self.waits):
            replies = self.answer(question)
        self.count_replies(question, replies)
        return replies

    @property
    def waits(self) -> bool:
        """Whether this process leaves time for a thread of the server's while clients work."""
        return True

    def count_replies(self, question: Question[R], replies: Replies[R]) -> None:
        """Replies have come; a federation that counts them does so here."""

    def answer(self, question: Question[R]) -> Replies[R]:
        """How a federation carries a question; methods call `ask`."""

    def trained(self, losses: Mapping[ClientId, float]) -> None:
        """Clients have trained without being asked (a peer on its own machine), with these losses."""

    def refuse(self, client: ClientId, reason: str) -> None:
        """Write down that the method could not use a client's reply, and why."""

    def note(self, text: str) -> None:
        """Tell those who watch the run something about it, in one sentence."""

    def rng(self, purpose: str, *key: Key) -> np.random.Generator:
        """Server-side randomness of this round, keyed by (seed, purpose, round) alone."""
        return rng(self.seed, purpose, self.round, *key)

    def truth(self, ids: Sequence[ClientId]) -> Tensor:
        """True groups, for the oracle baseline alone; refused where they are not known."""


class Engine(Federation, Protocol):
    """A federation that the loop over rounds can drive: the simulator, or a deployment."""

    ledger: Ledger
    failures: list[tuple[int, ClientId, Failure]]
    memory: dict[ClientId, Memory]
    tally: Tally = Tally()

    def count_replies(self, question: Question[R], replies: Replies[R]) -> None:
        """Count what came back of the training."""
        if question.purpose == "train":
            tally = self.tally
            failures = [*tally.failures, *replies.failed.values()]
            losses = {**tally.losses, **replies.losses}
            ages = [*tally.ages, *replies.stale.values()]
            asked, valid = tally.asked + len(question.ids), tally.valid + len(replies.ids)
            self.tally = Tally(asked, valid, failures, losses, ages)

    def trained(self, losses: Mapping[ClientId, float]) -> None:
        """Add them to those of this round."""
        self.tally = replace(self.tally, losses={**self.tally.losses, **losses})

    def refuse(self, client: ClientId, reason: str) -> None:
        """A failure that only the method could see."""
        self.failures.append((self.round, client, Failure("refused", reason)))

    @property
    def path(self) -> str:
        """Which way clients are computed."""

    @property
    def registered(self) -> int:
        """How many clients there are in all."""

    def begin(self, round: int) -> tuple[ClientId, ...]:
        """A round begins; returned are the clients that have joined since the last one."""

    def groups(self, ids: Sequence[ClientId]) -> list[int] | None:
        """True groups in this round, for the evaluation alone; None where they are not known."""

    def floor(self, ids: Sequence[ClientId]) -> float | None:
        """The mean score of clients that always answer the most frequent class, or the mean, of their own training
        part; None where that is not known before they are asked.
        """
        return None

    def restore(self, memory: dict[ClientId, Memory], next_round: int) -> None:
        """Go on from a checkpoint."""

    def saved(self, next_round: int) -> None:
        """A checkpoint from which `next_round` would be the first has been written."""

    def take_touched(self) -> list[ClientId]:
        """Clients whose memory has changed since this was last asked."""

    def settle(self) -> None:
        """The last evaluation follows: wait for those who are still at work on something else."""
        return

    def commit(self) -> None:
        """The round is over: what clients kept in it now counts."""

    def close(self) -> None:
        """The run is over."""


@runtime_checkable
class KeepsSomeBack(Protocol):
    """A federation with clients that never take part in training, on which methods are judged too."""

    @property
    def unseen(self) -> tuple[ClientId, ...]:
        """Their names."""

    def trial(self) -> AbstractContextManager[None]:
        """What is asked inside counts as evaluation, and leaves nothing behind in any client's memory."""


@runtime_checkable
class HasAttackers(Protocol):
    """A federation that knows who attacks it (the simulator): only the honest are judged."""

    @property
    def attackers(self) -> frozenset[ClientId]:
        """Their names."""


class Arrival(IntEnum):
    """What becomes of an answer on its way from one peer to another."""

    LOST = 0
    FRESH = 1
    OLD = 2


@runtime_checkable
class PeerNetwork(Federation, Protocol):
    """A federation whose clients also reach each other: what peer-to-peer methods run on."""

    @property
    def delays(self) -> bool:
        """Whether an answer can be old."""

    def exchange(self, askers: Sequence[ClientId], answered: Tensor, size: Tensor) -> Tensor:
        """Carry answers between peers and book their bytes.

        `answered` [A, m] says which of an asker's questions are answered, `size` [A] how many bytes each answer to
        it has; the result [A, m] holds `Arrival` codes.
        A peer that is slow sends what it would have sent in its last round (OLD).
        """


def draw_clients(among: Sequence[ClientId], share: float, generator: np.random.Generator) -> tuple[ClientId, ...]:
    """A fraction (<= 1) or a number (> 1) of the clients; the order they are given in does not matter."""
    pool = sorted(among)
    number = max(1, round(share * len(pool))) if share <= 1 else min(int(share), len(pool))
    if number >= len(pool):
        return tuple(pool)
    drawn = generator.choice(len(pool), number, replace=False)
    return tuple(pool[i] for i in sorted(drawn))

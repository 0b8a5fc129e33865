"""The federation of one that a real peer is to the loop over rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from torch import Tensor
from typing_extensions import override

from coterie.core.cohort import Memory
from coterie.core.errors import CoterieError
from coterie.core.federation import Engine, Failure, Ledger, Question, Replies
from coterie.core.notes import Note, silent
from coterie.core.samples import ClientId, Population
from coterie.core.states import Stack, row
from coterie.core.task import Task
from coterie.data.describe import mean_floor
from coterie.deploy.zenoh.connection import PeerConnection

R = TypeVar("R")


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
        self._connection, self._counted = connection, (0, 0)
        self._at_end, self._last, self._begun, self._note = at_end, last, False, note

    @property
    @override
    def ids(self) -> tuple[ClientId, ...]:
        return (self.name,)

    @property
    @override
    def path(self) -> str:
        return "peers over zenoh"

    @property
    @override
    def registered(self) -> int:
        return 1

    def begin(self, round: int) -> tuple[ClientId, ...]:
        """A round begins; a single peer has no clients that could join."""
        self.round, self._begun = round, True
        return ()

    def groups(self, ids: Sequence[ClientId]) -> list[int] | None:
        """One peer alone says nothing about groups."""
        return None

    @override
    def truth(self, ids: Sequence[ClientId]) -> Tensor:
        raise CoterieError("The true groups are not known between real peers; choose partners in another way.")

    @override
    def sample(self, share: float, among: Sequence[ClientId] | None = None) -> tuple[ClientId, ...]:
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

"""What carries orders to clients; and those of them that answer after their round was closed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from coterie.core.federation import Failure, Purpose, Question
from coterie.core.interrupts import pause
from coterie.core.jobs import action_of
from coterie.core.quorum import Quorum
from coterie.core.samples import ClientId
from coterie.deploy.hello import Hello
from coterie.deploy.protocol import Order, Returned

_LOOK_SECONDS = 0.2


class Transport(Protocol):
    """Carries orders to clients that are named by us, and their replies back."""

    def look(self) -> Mapping[ClientId, Hello]:
        """Who is there now, newcomers included."""

    def deliver(
        self, purpose: Purpose, order: Order, payloads: Mapping[ClientId, bytes], *, enough: int = 0, likely: int = 0
    ) -> dict[ClientId, Returned | Failure]:
        """Send one message to each client and wait, but not for ever, for what they answer.

        When `enough` have answered (0: all), the others are late. An answer has probably `likely` bytes.
        """

    def overdue(self) -> tuple[dict[ClientId, Returned | Failure], frozenset[ClientId]]:
        """What has come since from those who were late, and who of them is still at work."""

    def tell(self, client: ClientId, text: str) -> None:
        """Say something to a client's user; nothing depends on its arrival."""

    def close(self) -> None:
        """Let the connection go."""


@dataclass(frozen=True)
class Late:
    """A reply that came late: to which question, of which round."""

    action: str
    round: int
    reply: Returned


class DeployedLatecomers:
    """Who was late, who still is, and the late replies that are to be used."""

    def __init__(self, transport: Transport, quorum: Quorum) -> None:
        self._transport, self._quorum = transport, quorum
        self.settled = False
        """Whether all are waited for from here on."""
        self.waiting: dict[ClientId, Late] = {}
        self.busy: frozenset[ClientId] = frozenset()
        self._asked: dict[ClientId, tuple[str, int]] = {}
        """What those who were late in their training had been asked, and when."""

    def hear(self) -> int:
        """See who has come since; returned is how many bytes of training replies they sent."""
        if not self._quorum.closes_early:
            return 0
        come, self.busy = self._transport.overdue()
        length = 0
        for client, answer in come.items():
            asked = self._asked.pop(client, None)
            if isinstance(answer, Failure) or asked is None:
                continue
            length += len(answer.payload)
            if self._quorum.uses_late:
                self.waiting[client] = Late(*asked, answer)
        return length

    def due(self, question: Question[Any], round: int) -> dict[ClientId, Late]:
        """The late replies that stand for those that are asked for now."""
        if question.purpose != "train":
            return {}
        fits = {
            client: late
            for client in question.ids
            if (late := self.waiting.get(client)) is not None
            if late.action == action_of(question.function) and late.round < round
        }
        self.waiting = {client: late for client, late in self.waiting.items() if client not in fits}
        return fits

    def enough(self, asked: int, come: int) -> int:
        """How many answers are waited for, where so many replies are there already."""
        if self.settled or not self._quorum.closes_early:
            return asked
        return max(1, self._quorum.enough(asked + come) - come)

    def closed(
        self, order: Order, purpose: Purpose, answers: Mapping[ClientId, Returned | Failure], enough: int
    ) -> set[ClientId]:
        """Those who are late because enough others had answered."""
        come = sum(isinstance(answer, Returned) for answer in answers.values())
        slow = {client for client, answer in answers.items() if isinstance(answer, Failure) and answer.kind == "late"}
        if not self._quorum.closes_early or not come or len(slow) > len(answers) - enough:
            return set()
        self.busy |= slow
        if purpose == "train":
            self._asked |= dict.fromkeys(slow, (order.action, order.round))
        return slow

    def settle(self) -> None:
        """Wait until every late client has answered or been given up."""
        self.settled = True
        while self.busy:
            self.hear()
            if self.busy:
                pause(_LOOK_SECONDS)

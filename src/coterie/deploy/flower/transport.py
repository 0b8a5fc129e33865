"""Flower as the carrier: our orders in Flower's messages, and the replies back to those who asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from coterie.core import wire
from coterie.core.errors import Unfinished
from coterie.core.federation import Failure, Purpose
from coterie.core.interrupts import pause
from coterie.core.notes import Note, silent
from coterie.core.samples import ClientId
from coterie.deploy.boundary import blamed
from coterie.deploy.bundle import Letter, bundled, unbundled
from coterie.deploy.flower.compat import ErrorCode
from coterie.deploy.flower.content import GOODBYE, LONGEST_TOLD, WITHHELD, content_of, opened
from coterie.deploy.flower.directory import HELLO_SECONDS, POLL_SECONDS, Directory, Names
from coterie.deploy.flower.inbox import ReplyInbox
from coterie.deploy.hello import Hello
from coterie.deploy.protocol import Order, Returned, to_text

Answers = dict[ClientId, Returned | Failure]
_LONGEST_POLL_SECONDS = 0.5
_PRESENCE_SECONDS = 1.0
_MOST_IN_ONE = 64
"""Clients of a gateway in one message: a gateway answers a message when all of them are done."""
_BYTES_IN_ONE = 1 << 26


@dataclass(frozen=True)
class _Post:
    """A message on its way: to which node, for which of its clients, and until when an answer is waited for."""

    node: int
    gateway: bool
    names: tuple[ClientId, ...]
    until: float


_RETURN_SECONDS = 1.0
"""A node that is not there for so long has left: one that was killed and started again is away for a moment."""


class FlowerTransport:
    """Carries orders over a Flower grid, in a loop of our own: Flower's waits three seconds between two looks."""

    def __init__(
        self,
        grid: Grid,
        *,
        seconds: float,
        names: Names | None = None,
        note: Note = silent,
        alive: Callable[[], None] = lambda: None,
        limit: int = wire.DEFAULT_LIMIT,
    ) -> None:
        self._grid, self._seconds, self._alive, self._limit = grid, seconds, alive, limit
        self._away: dict[str, float] = {}
        self._inbox = ReplyInbox(grid, limit)
        self._directory = Directory(grid, self._inbox, names, note)
        self._overdue: dict[str, _Post] = {}

    def look(self) -> Mapping[ClientId, Hello]:
        """Who is there: nodes that Flower sees, that have introduced themselves and that answered when last asked."""
        with self._link_there():
            return self._directory.look()

    @contextmanager
    def _link_there(self) -> Iterator[None]:
        """A SuperLink that is gone ends the run, with what it has learnt saved."""
        try:
            self._alive()
            yield
        except httpx.HTTPError as error:
            self._alive()
            raise Unfinished(f"The SuperLink does not answer any more ({error}).") from error

    def tell(self, client: ClientId, text: str) -> None:
        """Say something to a client's user; nothing depends on its arrival."""
        self._directory.tell(client, text)

    def deliver(
        self, purpose: Purpose, order: Order, payloads: Mapping[ClientId, bytes], *, enough: int = 0, likely: int = 0
    ) -> Answers:
        """One message to each client, and what they answer within the time that is allowed.

        Those who have not answered when `enough` others have, or have failed to (0: all), are late; see `overdue`.
        `likely` is how many bytes an answer probably has.
        """
        with self._link_there():
            pending, answers = self._sent(purpose, order, payloads, likely)
            return self._awaited(pending, answers, enough or len(payloads))

    def _sent(
        self, purpose: Purpose, order: Order, payloads: Mapping[ClientId, bytes], likely: int
    ) -> tuple[dict[str, _Post], Answers]:
        kind = f"{'train' if purpose == 'train' else 'query'}.{order.action}"
        text, there = to_text(order), self._directory.clients
        answers: Answers = {name: Failure("lost", "it has left") for name in payloads if name not in there}
        posts: list[tuple[_Post, RecordDict]] = []
        hosted: dict[int, list[ClientId]] = {}
        until = time.monotonic() + self._seconds
        for name in payloads:
            if name in answers:
                continue
            if there[name].gateway:
                hosted.setdefault(there[name].node, []).append(name)
            else:
                posts.append((_Post(there[name].node, False, (name,), until), content_of(text, payloads[name])))
        for node, names in hosted.items():
            for some in _shared_out(names, max(likely, *(len(payloads[name]) for name in names)), self._limit):
                parts = bundled({name: Letter(payload=payloads[name]) for name in some})
                posts.append((_Post(node, True, tuple(some), until), content_of(text, parts)))
        sent = [(post.node, kind, content) for post, content in posts]
        pushed = self._directory.push(sent, str(order.round + 1), self._seconds) if sent else []
        pending: dict[str, _Post] = {}
        for message, (post, _) in zip(pushed, posts, strict=True):
            if message:
                pending[message] = post
            else:
                answers |= dict.fromkeys(post.names, Failure("lost", "it cannot be sent anything"))
        return pending, answers

    def _awaited(self, pending: dict[str, _Post], answers: Answers, enough: int) -> Answers:
        began = looked = time.monotonic()
        rest, come, closed = POLL_SECONDS, 0, False
        may_be_late = len(answers) + _clients_of(pending) - enough
        while pending and time.monotonic() - began < self._seconds:
            arrived = self._arrived(pending)
            come += sum(isinstance(answer, Returned) for answer in arrived.values())
            answers |= arrived
            closed = come > 0 and _clients_of(pending) <= may_be_late
            if closed or not pending:
                break
            rest = POLL_SECONDS if arrived else min(rest * 1.5, _LONGEST_POLL_SECONDS)
            pause(rest)
            if time.monotonic() - looked > _PRESENCE_SECONDS:
                looked = time.monotonic()
                self._alive()
                answers |= self._gone(pending)
        if closed:
            self._overdue |= pending
            late = Failure("late", f"the round was closed when {come} others had answered")
            return answers | {name: late for post in pending.values() for name in post.names}
        return answers | self._given_up(pending)

    def _arrived(self, pending: dict[str, _Post]) -> Answers:
        """Answers that have come; they are not pending any more."""
        answers: Answers = {}
        for order_id, message in list(self._inbox.pull(pending)):
            # the sender of an error is the SuperLink itself: only what it replies to tells whose it is
            answers |= self._read(pending.pop(order_id), message)
        return answers

    def _gone(self, pending: dict[str, _Post]) -> Answers:
        """Those whose nodes have left."""
        nodes, now = set(self._grid.get_node_ids()), time.monotonic()
        others = {order: since for order, since in self._away.items() if order in self._overdue.keys() - pending.keys()}
        absent = {order: self._away.get(order, now) for order, post in pending.items() if post.node not in nodes}
        self._away = others | absent
        left = [order for order, since in absent.items() if now - since > _RETURN_SECONDS]
        self._inbox.forget(left)
        names = [name for message in left for name in pending.pop(message).names]
        return dict.fromkeys(names, Failure("lost", "it left during the round"))

    def _given_up(self, pending: Mapping[str, _Post]) -> Answers:
        """Those that are not waited for any longer: each has to say hello again before it is asked again."""
        self._inbox.forget(pending)
        self._directory.quiet |= {post.node for post in pending.values()}
        slow = Failure("late", f"it did not answer within {self._seconds:g} s")
        return {name: slow for post in pending.values() for name in post.names}

    def overdue(self) -> tuple[Answers, frozenset[ClientId]]:
        """What has come since from those who were late, and who of them is still at work."""
        with self._link_there():
            answers = self._arrived(self._overdue) if self._overdue else {}
            if self._overdue:
                answers |= self._gone(self._overdue)
            now = time.monotonic()
            over = {message: post for message, post in self._overdue.items() if post.until < now}
            for message in over:
                del self._overdue[message]
            answers |= self._given_up(over)
        return answers, frozenset(name for post in self._overdue.values() for name in post.names)

    def _read(self, post: _Post, message: Message | Failure) -> Answers:
        """What the clients that a message was for have answered."""
        answer = message if isinstance(message, Failure) else _opened(message)
        if isinstance(answer, Failure) or not post.gateway:
            return dict.fromkeys(post.names, answer)
        try:
            with blamed("the reply of its gateway cannot be read"):
                letters = unbundled(answer.payload, self._limit)
        except wire.WireError as error:
            return dict.fromkeys(post.names, Failure("wrong shape", str(error)))
        missing = Letter("its gateway has sent no answer of it")
        return {name: _returned(letters.get(name, missing)) for name in post.names}

    def farewell(self) -> None:
        """Tell the clients that the run is over, and wait a moment until they have received it."""
        nodes = dict.fromkeys(place.node for place in self._directory.clients.values())
        there = [(node, f"query.{GOODBYE}", content_of("")) for node in nodes]
        pending = {name for name in self._directory.push(there, "", HELLO_SECONDS) if name} if there else set()
        until = time.monotonic() + HELLO_SECONDS
        while pending and time.monotonic() < until:
            pending -= {goodbye for goodbye, _ in self._inbox.pull(pending)}
            time.sleep(POLL_SECONDS)

    def close(self) -> None:
        """The caller that opened the grid closes it."""


def _clients_of(pending: Mapping[str, _Post]) -> int:
    return sum(len(post.names) for post in pending.values())


def _shared_out(names: Sequence[ClientId], size: int, limit: int) -> Iterator[Sequence[ClientId]]:
    """The clients of a gateway in messages whose answers are of a useful length, and within the limit."""
    most = max(1, min(_MOST_IN_ONE, min(_BYTES_IN_ONE, limit) // max(size, 1)))
    for start in range(0, len(names), most):
        yield names[start : start + most]


def _opened(message: Message) -> Returned | Failure:
    if message.has_error() and message.error.code == ErrorCode.NODE_UNAVAILABLE:
        return Failure("lost", "it gives no sign of life any more")
    if message.has_error():
        reason = message.error.reason or f"Flower's error {message.error.code}"
        return Failure("withheld" if message.error.code == WITHHELD else "crashed", reason[:LONGEST_TOLD])
    try:
        with blamed("its reply cannot be read"):
            return Returned.of(*opened(message.content))
    except wire.WireError as error:
        return Failure("wrong shape", str(error))


def _returned(letter: Letter) -> Returned | Failure:
    if letter.payload is None:
        return Failure("withheld" if letter.withheld else "crashed", letter.text or "no reason given")
    return Returned.of(letter.text, letter.payload)

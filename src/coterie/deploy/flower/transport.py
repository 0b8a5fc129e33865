"""Flower as the carrier: our orders in Flower's messages, on the server and on a client.

No `Strategy`, no Flower model types: a message holds the text of an order and the bytes of `wire`. Clients are known by
our own names; a `query.hello` round finds out which Flower node is whom.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.serverapp import Grid

from coterie.core import wire
from coterie.core.errors import CoterieError, Unfinished
from coterie.core.federation import Failure, Purpose
from coterie.core.interrupts import pause
from coterie.core.notes import Note, silent
from coterie.core.samples import ClientId
from coterie.deploy.boundary import blamed, checked
from coterie.deploy.client import Device
from coterie.deploy.flower.compat import ErrorCode
from coterie.deploy.flower.pieces import Inbox
from coterie.deploy.protocol import HELLO, Hello, Order, Returned, to_text

GOODBYE, TOLD = "goodbye", "told"
_RECORD, _TEXT, _BYTES = "coterie", "text", "bytes"
_REFUSED = 400  # our own error code: Flower's are below 100
_POLL_SECONDS = 0.05
_LONGEST_POLL_SECONDS = 0.5
_PRESENCE_SECONDS = 1.0
_HELLO_SECONDS = 3.0
_HELLO_LIFE = 3600.0
_TOLD_LIFE = 60.0
_LONGEST_TOLD = 1000
_MOST_TURNED_AWAY = 1000


def content_of(text: str, payload: bytes | None = None) -> RecordDict:
    """A message's content: a text, and bytes as one opaque array (which Flower sends in pieces where it is long)."""
    content = RecordDict({_RECORD: ConfigRecord({_TEXT: text})})
    if payload is not None:
        content[_BYTES] = ArrayRecord({_BYTES: Array("uint8", (len(payload),), _RECORD, payload)})
    return content


def opened(content: RecordDict) -> tuple[str, bytes]:
    """The inverse of `content_of`; anything else is refused."""
    record = content.config_records.get(_RECORD)
    text = None if record is None else record.get(_TEXT)
    arrays = content.array_records.get(_BYTES)
    if not isinstance(text, str) or (arrays is not None and _BYTES not in arrays):
        raise wire.WireError("This is not a message of coterie's.")
    return text, b"" if arrays is None else arrays[_BYTES].data


def answer(device: Device, message: Message, limit: int = wire.DEFAULT_LIMIT, note: Note = silent) -> Message:
    """What a client replies to a message; a refusal is carried as Flower's error. No message can end the client."""
    try:
        with blamed("This message cannot be answered"):
            return Message(_answered(device, message, limit, note), reply_to=message)
    except CoterieError as error:
        return refusal(message, str(error))


def _answered(device: Device, message: Message, limit: int, note: Note) -> RecordDict:
    action = message.metadata.message_type.partition(".")[2]
    if action in (HELLO, GOODBYE):
        return content_of(to_text(device.hello))
    text, payload = opened(message.content)
    if action == TOLD:
        note(f"the server says: {text[:_LONGEST_TOLD]}")
        return content_of("")
    returned = device.perform(text, payload, limit=limit)
    return content_of(returned.text, returned.payload)


def refusal(message: Message, reason: str) -> Message:
    """The reply that says why there is none."""
    return Message(Error(code=_REFUSED, reason=reason), reply_to=message)


@dataclass(frozen=True)
class _Node:
    id: int
    hello: Hello


class FlowerTransport:
    """Carries orders over a Flower grid, in a loop of our own: Flower's waits three seconds between two looks."""

    def __init__(
        self,
        grid: Grid,
        *,
        seconds: float,
        names: Mapping[int, ClientId] | None = None,
        note: Note = silent,
        alive: Callable[[], None] = lambda: None,
        limit: int = wire.DEFAULT_LIMIT,
    ) -> None:
        self._grid, self._seconds, self._names, self._note, self._alive = grid, seconds, names, note, alive
        self._inbox = Inbox(grid, limit)
        self._greeted: dict[str, tuple[int, float]] = {}
        self._known: dict[int, Hello] = {}
        self._refused: set[int] = set()
        self._clients: dict[ClientId, _Node] = {}
        self._quiet: set[int] = set()
        self._displaced: dict[int, ClientId] = {}
        self._turned_away = 0

    def look(self) -> Mapping[ClientId, Hello]:
        """Who is there: nodes that Flower sees, that have introduced themselves and that answered when last asked."""
        with self._link_there():
            return self._looked()

    @contextmanager
    def _link_there(self) -> Iterator[None]:
        """A SuperLink that is gone ends the run, with what it has learnt saved."""
        try:
            self._alive()
            yield
        except httpx.HTTPError as error:
            self._alive()
            raise Unfinished(f"The SuperLink does not answer any more ({error}).") from error

    def _looked(self) -> Mapping[ClientId, Hello]:
        nodes = set(self._grid.get_node_ids())
        self._forget_all_but(nodes)
        waiting = {node for node, _ in self._greeted.values()}
        # one whose name was taken by another is greeted again when the other is gone
        free = {node for node, name in self._displaced.items() if name not in self._clients}
        unsure = {n for n in nodes if n not in self._known} | self._quiet | free
        strangers = sorted(unsure - waiting - self._refused)
        if strangers:
            pushed = self._push([(node, f"query.{HELLO}", content_of("")) for node in strangers], "", _HELLO_LIFE)
            self._greeted.update({message: (node, time.monotonic()) for node, message in pushed.items()})
        list(self._inbox.pull(()))  # lets go of what has come too late
        self._hear(nodes)
        return {name: node.hello for name, node in self._clients.items() if node.id not in self._quiet}

    def _forget_all_but(self, nodes: set[int]) -> None:
        """What is known of nodes that are gone is not kept: their number has no bound, and they are greeted again."""
        self._clients = {name: node for name, node in self._clients.items() if node.id in nodes}
        self._known = {node: hello for node, hello in self._known.items() if node in nodes}
        self._displaced = {node: name for node, name in self._displaced.items() if node in nodes}
        self._quiet &= nodes
        self._refused &= nodes

    def _hear(self, nodes: set[int]) -> None:
        """Take the introductions that have come; wait a moment for those of nodes that are new."""
        while self._greeted:
            for greeting, message in list(self._inbox.pull(self._greeted)):
                node, _ = self._greeted.pop(greeting)
                self._meet(node, message)
            gone = [greeting for greeting, (node, _) in self._greeted.items() if node not in nodes]
            self._inbox.forget(gone)
            self._greeted = {m: there for m, there in self._greeted.items() if m not in gone}
            fresh = [when for _, when in self._greeted.values() if time.monotonic() - when < _HELLO_SECONDS]
            if not fresh:
                return
            pause(_POLL_SECONDS)

    def _meet(self, node: int, message: Message | Failure) -> None:
        try:
            if isinstance(message, Failure):
                raise wire.WireError(message.reason)
            if message.has_error() and message.error.code != _REFUSED:
                return  # Flower's own error: the node has gone away; it is greeted again if it comes back
            if message.has_error():
                raise wire.WireError(message.error.reason or "no reason given")
            with blamed("its introduction cannot be read"):
                hello = checked(Hello, opened(message.content)[0])
            proper = hello.name if self._names is None else self._names.get(node)
            if proper != hello.name:
                raise wire.WireError(f"it calls itself {hello.name!r}, but its key is that of {proper!r}")
        except CoterieError as error:
            self._refused.add(node)
            self._turned_away += 1
            if self._turned_away <= _MOST_TURNED_AWAY:
                rest = "; more are not listed" if self._turned_away == _MOST_TURNED_AWAY else ""
                self._note(f"turned away a client (Flower's node {node}): {error}{rest}")
            self._say(node, f"you were turned away: {error}")
            return
        before = self._clients.get(hello.name)
        self._known[node] = hello
        self._quiet.discard(node)
        self._clients[hello.name] = _Node(node, hello)
        if before is not None and before.id != node:
            self._replace(before.id, node, hello.name)
        elif self._displaced.pop(node, None) is not None:
            self._note(f"the other client that called itself {hello.name} is gone; the one that was there is asked")
            self._say(node, "the other client of your name is gone; you are asked again")

    def _replace(self, before: int, node: int, name: ClientId) -> None:
        """A client has come back before Flower misses it; or, where there are no keys, there are two of that name."""
        self._displaced[before] = name
        self._displaced.pop(node, None)
        self._note(f"{name} has come back, or a second client has its name; the latest is asked")
        self._say(before, f"another client calls itself {name}, and is asked instead of you; give each its own --name")
        self._say(node, f"there was a client {name} already; if that is another one, give each its own --name")

    def tell(self, client: ClientId, text: str) -> None:
        """Say something to a client's user; nothing depends on its arrival."""
        if client in self._clients:
            self._say(self._clients[client].id, text)

    def _say(self, node: int, text: str) -> None:
        with suppress(httpx.HTTPError):
            told = self._push([(node, f"query.{TOLD}", content_of(text[:_LONGEST_TOLD]))], "", _TOLD_LIFE)
            self._inbox.forget(told.values())  # what it answers to that is not kept

    def deliver(
        self, purpose: Purpose, order: Order, payloads: Mapping[ClientId, bytes]
    ) -> dict[ClientId, Returned | Failure]:
        """One message to each client, and what they answer within the time that is allowed."""
        with self._link_there():
            return self._delivered(purpose, order, payloads)

    def _delivered(
        self, purpose: Purpose, order: Order, payloads: Mapping[ClientId, bytes]
    ) -> dict[ClientId, Returned | Failure]:
        kind = f"{'train' if purpose == 'train' else 'query'}.{order.action}"
        text = to_text(order)
        there = {name: self._clients[name].id for name in payloads if name in self._clients}
        answers: dict[ClientId, Returned | Failure] = {
            name: Failure("lost", "it has left") for name in payloads if name not in there
        }
        posts = [(node, kind, content_of(text, payloads[name])) for name, node in there.items()]
        pushed = self._push(posts, str(order.round + 1), self._seconds)
        names = {node: name for name, node in there.items()}
        pending = {message: names[node] for node, message in pushed.items()}
        began = looked = time.monotonic()
        rest = _POLL_SECONDS
        while pending and time.monotonic() - began < self._seconds:
            arrived = list(self._inbox.pull(pending))
            for order_id, message in arrived:
                # the sender of an error is the SuperLink itself: only what it replies to tells whose it is
                answers[pending.pop(order_id)] = self._read(message)
            if not pending:
                break
            rest = _POLL_SECONDS if arrived else min(rest * 1.5, _LONGEST_POLL_SECONDS)
            pause(rest)
            if time.monotonic() - looked > _PRESENCE_SECONDS:
                looked = time.monotonic()
                self._alive()
                nodes = set(self._grid.get_node_ids())
                for message_id, name in list(pending.items()):
                    if there[name] not in nodes:
                        del pending[message_id]
                        self._inbox.forget([message_id])
                        answers[name] = Failure("lost", "it left during the round")
        self._inbox.forget(pending)
        for name in pending.values():
            answers[name] = Failure("late", f"it did not answer within {self._seconds:g} s")
            self._quiet.add(there[name])  # it has to say hello again before it is asked again
        return answers

    def _read(self, message: Message | Failure) -> Returned | Failure:
        if isinstance(message, Failure):
            return message
        if message.has_error() and message.error.code == ErrorCode.NODE_UNAVAILABLE:
            return Failure("lost", "it gives no sign of life any more")
        if message.has_error():
            reason = message.error.reason or f"Flower's error {message.error.code}"
            return Failure("crashed", reason[:_LONGEST_TOLD])
        try:
            with blamed("its reply cannot be read"):
                return Returned.of(*opened(message.content))
        except wire.WireError as error:
            return Failure("wrong shape", str(error))

    def _push(self, posts: list[tuple[int, str, RecordDict]], group: str, life: float) -> dict[int, str]:
        messages = [Message(content, node, kind, ttl=life, group_id=group) for node, kind, content in posts]
        pushed: list[Any] = list(self._grid.push_messages(messages))
        return {post[0]: message for post, message in zip(posts, pushed, strict=True) if message}

    def farewell(self) -> None:
        """Tell the clients that the run is over, and wait a moment until they have received it."""
        there = [(node.id, f"query.{GOODBYE}", content_of("")) for node in self._clients.values()]
        pending = set(self._push(there, "", _HELLO_SECONDS).values())
        until = time.monotonic() + _HELLO_SECONDS
        while pending and time.monotonic() < until:
            pending -= {goodbye for goodbye, _ in self._inbox.pull(pending)}
            time.sleep(_POLL_SECONDS)

    def close(self) -> None:
        """The caller that opened the grid closes it."""

"""Who is there: which of Flower's nodes is which of our clients.

Clients are known by our own names; a `query.hello` round finds out which node is whom. A node is one client, or a
gateway that answers for several. Its key, where there are keys, says which names it may bear.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass

import httpx
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from coterie.core import wire
from coterie.core.errors import CoterieError
from coterie.core.federation import Failure
from coterie.core.interrupts import pause
from coterie.core.notes import Note
from coterie.core.samples import ClientId
from coterie.core.terminal import shortly
from coterie.deploy.boundary import blamed, checked
from coterie.deploy.bundle import unbundled
from coterie.deploy.flower.content import LONGEST_TOLD, REFUSED, TOLD, content_of, opened
from coterie.deploy.flower.inbox import ReplyInbox
from coterie.deploy.hello import Hello
from coterie.deploy.protocol import HELLO

POLL_SECONDS = 0.05
HELLO_SECONDS = 3.0
_HELLO_LIFE = 3600.0
_TOLD_LIFE = 60.0
_MOST_TURNED_AWAY = 1000
_COMEBACKS = 20

Names = Mapping[int, Collection[ClientId]]
"""The names that each node may bear, by its key."""


@dataclass(frozen=True)
class Place:
    """Where a client is: its node, whether that is a gateway, and how it has introduced itself."""

    node: int
    gateway: bool
    hello: Hello


class Directory:
    """The clients that are there, and the only one who greets them and tells them something."""

    def __init__(self, grid: Grid, inbox: ReplyInbox, names: Names | None, note: Note) -> None:
        self._grid, self._inbox, self._names, self._note = grid, inbox, names, note
        self.clients: dict[ClientId, Place] = {}
        self.quiet: set[int] = set()
        """Nodes that have to say hello again before they are asked again."""
        self._greeted: dict[str, tuple[int, float]] = {}
        self._known: set[int] = set()
        self._refused: set[int] = set()
        self._displaced: set[tuple[int, ClientId]] = set()
        self._comebacks: Counter[ClientId] = Counter()
        self._turned_away = 0

    def look(self) -> Mapping[ClientId, Hello]:
        """Nodes that Flower sees, that have introduced themselves and that answered when last asked."""
        nodes = set(self._grid.get_node_ids())
        self._forget_all_but(nodes)
        waiting = {node for node, _ in self._greeted.values()}
        # one whose name was taken by another is greeted again when the other is gone
        free = {node for node, name in self._displaced if name not in self.clients}
        unsure = (nodes - self._known) | self.quiet | free
        strangers = sorted(unsure - waiting - self._refused)
        if strangers:
            pushed = self.push([(node, f"query.{HELLO}", content_of("")) for node in strangers], "", _HELLO_LIFE)
            self._greeted.update(
                {message: (node, time.monotonic()) for node, message in zip(strangers, pushed, strict=True) if message}
            )
        list(self._inbox.pull(()))  # lets go of what has come too late
        self._hear(nodes)
        return {name: place.hello for name, place in self.clients.items() if place.node not in self.quiet}

    def _forget_all_but(self, nodes: set[int]) -> None:
        """What is known of nodes that are gone is not kept: their number has no bound, and they are greeted again."""
        self.clients = {name: place for name, place in self.clients.items() if place.node in nodes}
        self._displaced = {(node, name) for node, name in self._displaced if node in nodes}
        self._known &= nodes
        self.quiet &= nodes
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
            fresh = [when for _, when in self._greeted.values() if time.monotonic() - when < HELLO_SECONDS]
            if not fresh:
                return
            pause(POLL_SECONDS)

    def _meet(self, node: int, message: Message | Failure) -> None:
        try:
            if isinstance(message, Failure):
                raise wire.WireError(message.reason)
            if message.has_error() and message.error.code != REFUSED:
                return  # Flower's own error: the node has gone away; it is greeted again if it comes back
            if message.has_error():
                raise wire.WireError(message.error.reason or "no reason given")
            with blamed("its introduction cannot be read"):
                text, payload = opened(message.content)
                gateway = not text and bool(payload)
                said = [letter.payload or b"" for letter in unbundled(payload).values()] if gateway else [text]
                hellos = [checked(Hello, each) for each in said]
            for hello in hellos:
                self._check_name(node, hello.name)
        except CoterieError as error:
            self._refused.add(node)
            self._turned_away += 1
            if self._turned_away <= _MOST_TURNED_AWAY:
                rest = "; more are not listed" if self._turned_away == _MOST_TURNED_AWAY else ""
                self._note(f"turned away a client (Flower's node {node}): {error}{rest}")
            self._say(node, f"you were turned away: {error}")
            return
        self._known.add(node)
        self.quiet.discard(node)
        for hello in hellos:
            self._admit(Place(node, gateway, hello))

    def _check_name(self, node: int, name: ClientId) -> None:
        proper = {name} if self._names is None else self._names.get(node, ())
        if name not in proper:
            whose = shortly(", ".join(sorted(proper)), 200)
            raise wire.WireError(f"it calls itself {name!r}, but its key is that of {whose}")

    def _admit(self, place: Place) -> None:
        name, node = place.hello.name, place.node
        before = self.clients.get(name)
        self.clients[name] = place
        if before is not None and before.node != node:
            self._replace(before.node, node, name)
        elif (node, name) in self._displaced:
            self._displaced.discard((node, name))
            self._note(f"the other client that called itself {name} is gone; the one that was there is asked")
            self._say(node, f"the other client {name} is gone; you are asked again")

    def _replace(self, before: int, node: int, name: ClientId) -> None:
        """A client has come back before Flower misses it; or, where there are no keys, there are two of that name."""
        self._displaced.add((before, name))
        self._displaced.discard((node, name))
        self._comebacks[name] += 1
        if self._comebacks[name] <= _COMEBACKS:  # one that joins without end does not fill the log
            last = "; that is not said again" if self._comebacks[name] == _COMEBACKS else ""
            self._note(f"{name} has come back, or a second client has its name; the latest is asked{last}")
        self._say(before, f"another client calls itself {name}, and is asked instead of you; give each its own --name")
        self._say(node, f"there was a client {name} already; if that is another one, give each its own --name")

    def tell(self, client: ClientId, text: str) -> None:
        """Say something to a client's user; nothing depends on its arrival."""
        place = self.clients.get(client)
        if place is not None:
            self._say(place.node, f"to {client}: {text}" if place.gateway else text)

    def _say(self, node: int, text: str) -> None:
        with suppress(httpx.HTTPError):
            told = self.push([(node, f"query.{TOLD}", content_of(text[:LONGEST_TOLD]))], "", _TOLD_LIFE)
            self._inbox.forget(name for name in told if name)  # what it answers to that is not kept

    def push(self, posts: list[tuple[int, str, RecordDict]], group: str, life: float) -> list[str]:
        """Send messages to nodes; returned are their names, empty where one could not be sent."""
        messages = [Message(content, node, kind, ttl=life, group_id=group) for node, kind, content in posts]
        pushed = list(self._grid.push_messages(messages))
        return [*pushed, *[""] * (len(posts) - len(pushed))]

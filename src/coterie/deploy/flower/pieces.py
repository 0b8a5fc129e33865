"""Flower's messages piece by piece: counted as they arrive, and put together only if they are not too long.

Flower cuts a message into objects, long arrays into pieces of 5 MB, and puts together whatever has come. An array names
its pieces and may name one of them a million times, so what has crossed does not bound what a message becomes.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress

import httpx
from flwr.app import Array, Message
from flwr.serverapp import Grid

from coterie.core import wire
from coterie.core.federation import Failure
from coterie.deploy.boundary import blamed
from coterie.deploy.flower.compat import (
    ArrayChunk,
    ConfirmMessageReceivedRequest,
    HttpGrid,
    ObjectPullError,
    ObjectTree,
    ObjectUnavailableError,
    PullAppMessagesRequest,
    get_object_body,
    get_object_head_values_from_object_content,
    inflate_object_from_contents,
    iterate_object_tree,
    make_pull_object_fn_protobuf,
)

Pull = Callable[[str], bytes]
_PIECE = f"{ArrayChunk.__qualname__} ".encode()
_MOST_UNWANTED = 10_000
FRAMING = 1 << 20
"""What a message may have beside our payload: Flower's objects around it and the text of an order."""


class TooLong(wire.WireError):
    """A message is longer than what is accepted here."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"its message is longer than the {limit} bytes that are allowed here")


class Tally:
    """Passes pieces on, and refuses the rest of a message as soon as they are too many."""

    def __init__(self, pull: Pull, limit: int) -> None:
        self._pull, self._limit, self._lock, self.size = pull, limit, threading.Lock(), 0

    def __call__(self, object_id: str) -> bytes:
        """One piece."""
        content = self._pull(object_id)
        with self._lock:  # Flower fetches pieces in several threads
            self.size += len(content)
            if self.size > self._limit + FRAMING:
                raise TooLong(self._limit)
        return content


def ids_of(tree: ObjectTree) -> list[str]:
    """The objects of a message, each once."""
    return list(dict.fromkeys(part.object_id for part in iterate_object_tree(tree)))


def put_together(message_id: str, contents: dict[str, bytes], limit: int) -> Message:
    """The message that these objects make, unless it is too long or none."""
    with blamed("This is not a whole message of Flower's"):
        if sum(_length(content, contents) for content in contents.values()) > limit + FRAMING:
            raise TooLong(limit)
        message = inflate_object_from_contents(message_id, contents)
    if not isinstance(message, Message):
        raise wire.WireError(f"This is a {type(message).__name__} of Flower's and no message.")
    message.metadata.__dict__["_message_id"] = message_id
    return message


def _length(content: bytes, contents: Mapping[str, bytes]) -> int:
    """The length of an array once its pieces are joined; other objects do not grow, and are short before any is parsed.

    Only the pieces of arrays are long, and nothing of them is parsed.
    """
    if len(content) > FRAMING and not content.startswith(_PIECE):
        raise wire.WireError(f"A message of Flower's has an object of {len(content)} bytes, more than {FRAMING}.")
    if content.find(b"\0", 0, FRAMING) < 0:
        raise wire.WireError("An object of Flower's has no end of its head.")
    kind, children, _ = get_object_head_values_from_object_content(content)
    if kind != Array.__qualname__:
        return 0
    pieces = json.loads(get_object_body(content, Array))["arraychunk_ids"]
    return sum(len(contents[children[index]]) for index in pieces)


class _Incoming:
    """A reply on its way to the server."""

    def __init__(self, tree: ObjectTree, pull: Pull, limit: int) -> None:
        self.id, self._missing, self._limit = tree.object_id, ids_of(tree), limit
        self._pull, self._contents = Tally(pull, limit), dict[str, bytes]()

    def fetched(self) -> Message | None:
        """The whole message, or None as long as a piece is still to come."""
        for piece in self._missing:  # they come in any order
            with suppress(ObjectUnavailableError):
                self._contents[piece] = self._pull(piece)
        self._missing = [piece for piece in self._missing if piece not in self._contents]
        return None if self._missing else put_together(self.id, self._contents, self._limit)


class Inbox:
    """Replies to the server's messages, without waiting for any: Flower's own way waits a second and more for each."""

    def __init__(self, grid: Grid, limit: int) -> None:
        self._grid, self._limit = grid, limit
        self._http = grid if isinstance(grid, HttpGrid) else None
        self._incoming: dict[str, _Incoming] = {}
        self._unwanted: dict[str, None] = {}

    def pull(self, wanted: Iterable[str]) -> Iterator[tuple[str, Message | Failure]]:
        """What has come whole, by the message it replies to; and what will never do."""
        if self._http is None:
            for message in self._grid.pull_messages(list(wanted)):
                yield message.metadata.reply_to_message_id, message
            return
        asked = list(wanted)
        self._look(self._http, [message for message in (*asked, *self._unwanted) if message not in self._incoming])
        self.forget([name for name in self._unwanted if name in self._incoming])
        for name in asked:
            if name not in self._incoming:
                continue
            try:
                found: Message | Failure | None = self._incoming[name].fetched()
            except TooLong as error:
                found = Failure("too large", str(error))
            except wire.WireError as error:
                found = Failure("wrong shape", str(error))
            except ObjectPullError:
                found = Failure("lost", "its reply did not come whole")
            if found is not None:
                self.forget([name])
                yield name, found

    def _look(self, grid: HttpGrid, wanted: list[str]) -> None:
        client, node = grid._runtime_client, grid.node
        response = client.PullMessages(PullAppMessagesRequest(message_ids=wanted))
        for message, tree in zip(response.messages_list, response.message_object_trees, strict=True):
            pull = make_pull_object_fn_protobuf(client.PullObject, node, message.metadata.run_id)
            self._incoming[message.metadata.reply_to_message_id] = _Incoming(tree, pull, self._limit)

    def forget(self, names: Iterable[str]) -> None:
        """Have the SuperLink let go of replies that are read, or not wanted any more; also if they come later."""
        for name in names:
            reply = self._incoming.pop(name, None)
            if reply is None:
                self._unwanted[name] = None
                if len(self._unwanted) > _MOST_UNWANTED:
                    del self._unwanted[next(iter(self._unwanted))]
                continue
            self._unwanted.pop(name, None)
            if self._http is None:
                continue
            done = ConfirmMessageReceivedRequest(
                node=self._http.node, run_id=self._http.run.run_id, message_object_id=reply.id
            )
            with suppress(httpx.HTTPError):
                self._http._runtime_client.ConfirmMessageReceived(done)

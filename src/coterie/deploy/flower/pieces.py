"""Flower's messages piece by piece: counted as they arrive, and put together only if they are not too long.

Flower cuts a message into objects, long arrays into pieces of 5 MB, and puts together whatever has come. An array names
its pieces and may name one of them a million times, so what has crossed does not bound what a message becomes.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping

from flwr.app import Array, Message

from coterie.core import wire
from coterie.deploy.boundary import blamed
from coterie.deploy.flower.compat import (
    ArrayChunk,
    ObjectTree,
    get_object_body,
    get_object_head_values_from_object_content,
    inflate_object_from_contents,
    iterate_object_tree,
)

Pull = Callable[[str], bytes]
_PIECE = f"{ArrayChunk.__qualname__} ".encode()
FRAMING = 1 << 20
"""What a message may have beside our payload: Flower's objects around it and the text of an order."""


class TooLong(wire.WireError):
    """A message is longer than what is accepted here."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"its message is longer than the {limit} bytes that are allowed here")


class LimitedPull:
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

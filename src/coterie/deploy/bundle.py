"""What several clients behind one connection are sent, and what they answer: their letters in one message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from coterie.core import wire
from coterie.core.samples import ClientId
from coterie.core.terminal import harmless
from coterie.deploy.boundary import Between, Length, Name, PlainLine, check

MOST_CLIENTS = 1000
"""No gateway has more clients than these."""
_LONGEST_TEXT = 1000
_NONE, _WITHHELD = -1, -2


@dataclass(frozen=True)
class Letter:
    """One client's part: a short text (a training loss, or why there is no answer) and the bytes of a message.

    `withheld` says that there are none because the client does not consent to tell them.
    """

    text: str = ""
    payload: bytes | None = None
    withheld: bool = False


@dataclass(frozen=True)
class _Bundle:
    """As it crosses: client i has the text i and the part `places[i]`; equal payloads cross once.

    Without a part its place is `_NONE`, or `_WITHHELD`.
    """

    names: Annotated[tuple[Name, ...], Length(1, MOST_CLIENTS)]
    texts: Annotated[tuple[Annotated[str, PlainLine(_LONGEST_TEXT)], ...], Length(1, MOST_CLIENTS)]
    places: Annotated[tuple[Annotated[int, Between(_WITHHELD, MOST_CLIENTS - 1)], ...], Length(1, MOST_CLIENTS)]
    parts: Annotated[tuple[Tensor, ...], Length(0, MOST_CLIENTS)]

    def wrong(self) -> str:
        """Names twice, lists of other lengths, places without a part, parts that are not bytes."""
        if not len(set(self.names)) == len(self.names) == len(self.texts) == len(self.places):
            return "has not one text and one place for each of its names"
        if any(place >= len(self.parts) for place in self.places):
            return "names a part that it has not"
        fits = all(part.dtype == torch.uint8 and part.dim() == 1 for part in self.parts)
        return "" if fits else "has a part that is not bytes"


def bundled(letters: Mapping[ClientId, Letter]) -> bytes:
    """Letters as one message."""
    places: dict[bytes, int] = {}
    at = []
    for letter in letters.values():
        nowhere = _WITHHELD if letter.withheld else _NONE
        at.append(nowhere if letter.payload is None else places.setdefault(letter.payload, len(places)))
    texts = tuple(harmless(letter.text)[:_LONGEST_TEXT] for letter in letters.values())
    return wire.encode(_Bundle(tuple(letters), texts, tuple(at), tuple(map(_as_tensor, places))))


def unbundled(data: bytes, limit: int = wire.DEFAULT_LIMIT) -> dict[ClientId, Letter]:
    """The inverse; a `WireError` if it is not one."""
    bundle = wire.decode(data, _Bundle, limit=limit)
    check(_Bundle, bundle, "Bundle")
    parts = [part.numpy().tobytes() for part in bundle.parts]
    each = zip(bundle.names, bundle.texts, bundle.places, strict=True)
    return {name: Letter(text, None if place < 0 else parts[place], place == _WITHHELD) for name, text, place in each}


def _as_tensor(payload: bytes) -> Tensor:
    return torch.frombuffer(bytearray(payload), dtype=torch.uint8) if payload else torch.empty(0, dtype=torch.uint8)

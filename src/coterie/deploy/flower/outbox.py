"""Uploads that go on where they were cut: the finished answer is sent again, piece by piece, and not made again.

Flower takes a message as a head and pieces of at most 5 MB, in an upload of its own name that it remembers for three
minutes after the last piece. A connection that is cut costs the piece that was on its way. What is long is on disk
until all of it has arrived, so that a client that was killed, and comes back with its key, sends the rest.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import httpx
import torch
from torch import Tensor

from coterie.core import wire
from coterie.core.files import write_whole
from coterie.core.interrupts import pause
from coterie.core.notes import Note
from coterie.deploy.flower.compat import ObjectPushError

T = TypeVar("T")
_WORTH_KEEPING = 1 << 20  # bytes; less is sent in a moment
_RETRY_SECONDS = 0.5
_PATIENCE_SECONDS = 30.0
_FILE, _DONE, _NODE = "upload", "upload.sent", "node"


@dataclass(frozen=True)
class Upload:
    """A message whose head the server has: the node it is from, its run, the upload's name, and the pieces."""

    node: str
    run: str
    session: str
    pieces: Mapping[str, Tensor]


class Outbox:
    """The one upload that a connection is busy with, and whose it is, in a folder that its owner alone can read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def joined(self, node: int) -> None:
        """Write down that this process is connected, as that node."""
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(self._folder / _NODE, f"{node} {os.getpid()}".encode(), private=True)

    def left(self) -> None:
        """It has signed off."""
        with suppress(OSError):
            (self._folder / _NODE).unlink(missing_ok=True)

    @property
    def did_not_leave(self) -> bool:
        """Whether a process with this folder has joined and not signed off: it was killed, or is still there."""
        return (self._folder / _NODE).is_file()

    def killed(self) -> int | None:
        """The node of a process that has joined, not signed off, and is no more."""
        try:
            node, process = map(int, (self._folder / _NODE).read_text(encoding="ascii").split())
        except (OSError, ValueError):
            return None
        return None if process != os.getpid() and _is_alive(process) else node

    def keep(self, node: int, run: int, session: str, pieces: Mapping[str, bytes]) -> None:
        """Write an upload down before it begins; a short one, or one that the disk has no room for, is not kept."""
        if sum(map(len, pieces.values())) < _WORTH_KEEPING:
            return
        parts = {name: torch.frombuffer(bytearray(piece), dtype=torch.uint8) for name, piece in pieces.items()}
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self._folder / _DONE).unlink(missing_ok=True)
            write_whole(self._folder / _FILE, wire.encode(Upload(str(node), str(run), session, parts)), private=True)

    def sent(self, piece: str) -> None:
        """A piece has arrived."""
        with suppress(OSError):
            if (self._folder / _FILE).is_file():
                with open(self._folder / _DONE, "a", encoding="ascii") as file:
                    file.write(f"{piece}\n")

    def clear(self) -> None:
        """All of it has arrived, or none of it is wanted any more."""
        with suppress(OSError):
            for name in (_FILE, _DONE):
                (self._folder / name).unlink(missing_ok=True)

    def kept(self) -> Upload | None:
        """The upload that was cut, without the pieces that have arrived."""
        try:
            upload = wire.decode((self._folder / _FILE).read_bytes(), Upload)
            done = (self._folder / _DONE).read_text(encoding="ascii").split() if (self._folder / _DONE).exists() else []
        except (OSError, UnicodeDecodeError, wire.WireError):
            return None
        rest = {name: piece for name, piece in upload.pieces.items() if name not in done}
        return Upload(upload.node, upload.run, upload.session, rest)


def _is_alive(process: int) -> bool:
    try:
        with suppress(PermissionError):  # somebody else's, so it is there
            os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    return True


class Stubborn:
    """Makes calls again while the connection is cut, for a while."""

    def __init__(self, note: Note) -> None:
        self._note, self._until = note, 0.0

    def __call__(self, call: Callable[[], T], stored: T | None = None) -> T:
        """What the call returns; `stored` if it had arrived before, as the server then says."""
        cut = False
        while True:
            try:
                return call()
            except httpx.TransportError as error:
                now = time.monotonic()
                if not self._until:
                    self._until = now + _PATIENCE_SECONDS
                    self._note(f"the connection was cut while an answer was sent ({error}); sending the rest")
                if now > self._until:
                    raise
                cut = True
                pause(_RETRY_SECONDS)
            except ObjectPushError:
                if not cut or stored is None:
                    raise
                return stored

"""Which file of a checkpoint holds what each client keeps: a list that grows by what has changed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

from coterie.core import wire
from coterie.core.samples import ClientId

FOLDER = "checkpoint/memory"
_SPARE = 1000  # lines that may be out of date before the list is written again


class _IndexFolder(Protocol):
    """What the list needs of the folder that it is in."""

    path: Path

    def write(self, name: str, data: bytes) -> None:
        """Replace a file as a whole."""

    def extend(self, name: str, size: int, data: bytes) -> None:
        """Put bytes behind the first `size` of a file, for good."""


class MemoryIndex:
    """One line a client and change. A checkpoint names the list, how long it was and the digest of so much of it.

    A list with more lines that are out of date than clients is written again, under another name. So what a checkpoint
    writes is, on average, in proportion to the clients whose memory has changed.
    """

    def __init__(self, folder: _IndexFolder) -> None:
        self._folder = folder
        self._names: dict[ClientId, str] = {}
        self.file, self.size = "", 0
        self._lines, self._hash = 0, blake2b(digest_size=8)

    @property
    def digest(self) -> str:
        """Of the list as far as it counts."""
        return self._hash.hexdigest()

    @property
    def files(self) -> Iterable[str]:
        """The list and all files that it names."""
        return (*([self.file] if self.file else []), *self._names.values())

    def add(self, changed: Mapping[ClientId, str], number: int) -> list[str]:
        """New files of some clients, in the checkpoint before round `number`; returned are those not needed now."""
        if not changed and (self.file or not self._names):
            return []
        old = [self._names[client] for client in changed if client in self._names]
        self._names.update(changed)
        if self.file and self._lines + len(changed) <= 2 * len(self._names) + _SPARE:
            lines = _lines(changed)
            self._folder.extend(f"{FOLDER}/{self.file}", self.size, lines)
        else:
            old += [self.file] if self.file else []
            lines = _lines(self._names)
            # the digest in its name: a list that an older checkpoint names is never written over
            self.file = f"index-{number:06d}-{blake2b(lines, digest_size=8).hexdigest()}.jsonl"
            self.size, self._lines, self._hash = 0, 0, blake2b(digest_size=8)
            self._folder.write(f"{FOLDER}/{self.file}", lines)
        self.size += len(lines)
        self._lines += lines.count(b"\n")
        self._hash.update(lines)
        return sorted({*old} - {self.file, *changed.values()})

    def read(self, file: str, size: int, digest: str, known: Mapping[ClientId, str]) -> dict[ClientId, str]:
        """The list as a checkpoint says it was; `known` are the clients' files that it names itself, as it once did."""
        data = (self._folder.path / FOLDER / Path(file).name).read_bytes()[:size] if file else b""
        found = blake2b(data, digest_size=8)
        if file and (len(data) < size or found.hexdigest() != digest):
            raise wire.WireError(f"{file} is damaged")
        names = {**known} | {str(client): str(name) for client, name in map(json.loads, data.splitlines())}
        self._names, self.file, self.size, self._hash = names, file, size, found
        self._lines = data.count(b"\n")
        return names


def _lines(names: Mapping[ClientId, str]) -> bytes:
    return "".join(json.dumps([client, name]) + "\n" for client, name in names.items()).encode()

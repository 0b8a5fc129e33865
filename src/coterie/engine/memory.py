"""What a client keeps between rounds, on its own disk."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import quote

from coterie import wire
from coterie.cohort import Memory
from coterie.errors import CoterieError

_FILE = re.compile(r"(\d{8})-([0-9a-f]+)\.safetensors")
_DRAFT = ".new"


class DiskMemory:
    """One client's memory of one run: a file per era in which it kept something (see `Order`).

    A server that goes on from a checkpoint asks again, in a new session, for eras that the client has already seen;
    what it kept in them then never happened, and is removed.
    """

    def __init__(self, root: Path, run: str) -> None:
        self.path = root / quote(run, safe="")

    def recall(self, session: str, era: int) -> Memory:
        """What the client knows when asked in this era: what it kept in this session's era, or before it."""
        files = self._files()
        for number, whose, file in files:
            if number >= era and whose != session:
                file.unlink(missing_ok=True)
        usable = [file for number, whose, file in files if number < era or (number == era and whose == session)]
        if not usable:
            return {}
        try:
            return wire.decode(usable[-1].read_bytes(), Memory)
        except (OSError, wire.WireError) as error:
            raise CoterieError(
                f"The memory in {usable[-1]} cannot be read ({error}); restore it, or remove {self.path} to start anew."
            ) from error

    def keep(self, session: str, era: int, memory: Memory, safe: int) -> None:
        """Write the memory down whole; what no server can ask for any more goes."""
        target = self.path / f"{era:08d}-{session}.safetensors"
        draft = target.with_name(target.name + _DRAFT)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                with open(draft, "wb") as file:
                    file.write(wire.encode(memory))
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(draft, target)
            finally:
                draft.unlink(missing_ok=True)
        except OSError as error:
            raise CoterieError(
                f"Cannot write {target}: {error.strerror or error}; make room, or choose another --memory."
            ) from error
        older = [file for number, _, file in self._files() if number < safe]
        for old in older[:-1]:
            old.unlink(missing_ok=True)

    def _files(self) -> list[tuple[int, str, Path]]:
        found = [(match, file) for file in self.path.glob("*.safetensors") if (match := _FILE.fullmatch(file.name))]
        return sorted((int(match[1]), match[2], file) for match, file in found)

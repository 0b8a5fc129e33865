"""What a client keeps between rounds, on its own disk."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

from coterie.core import wire
from coterie.core.cohort import Memory
from coterie.core.errors import CoterieError
from coterie.core.files import digest, write_whole
from coterie.deploy.boundary import place

_FILE = re.compile(r"(\d{8})-([^=]+)(?:=([0-9a-f]{16}))?\.safetensors")  # once they were written without a digest
_FOLDER, _KEPT = "memory", 8
_MOST_RUNS = 200


class DiskMemory:
    """One client's memory of one run: a file per era in which it kept something (see `Order`).

    A server that goes on from a checkpoint asks again, in a new session, for eras that the client has already seen;
    what it kept in them then never happened, and is removed.

    A memory is for its owner alone, and bounded whatever a server says: the newest file of an era before `safe`, from
    which a server may go on, and the `_KEPT` newest since. A server that has made a checkpoint since says so in its
    next order, so it can go on from no other era.
    """

    def __init__(self, root: Path, run: str) -> None:
        # apart from what else a device keeps in its folder: a server gives runs their names
        self._root = root / _FOLDER
        earlier = place(root, run)  # where memories were in older versions
        kept = earlier.is_dir() and any(_FILE.fullmatch(file.name) for file in earlier.iterdir())
        self.path = earlier if kept else place(self._root, run)

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
            data = usable[-1].read_bytes()
            named = _FILE.fullmatch(usable[-1].name)
            if named is not None and named[3] is not None and named[3] != digest(data):
                raise wire.WireError("it is damaged")
            return wire.decode(data, Memory, header_limit=wire.OWN_HEADER_LIMIT)
        except (OSError, wire.WireError) as error:
            raise CoterieError(
                f"The memory in {usable[-1]} cannot be read ({error}); "
                f"restore it, or remove {self.path} to start again."
            ) from error

    def keep(self, session: str, era: int, memory: Memory, safe: int) -> None:
        """Write the memory down whole; what no server can ask for any more goes."""
        data = wire.encode(memory)
        target = self.path / f"{era:08d}-{place(self.path, session).name}={digest(data)}.safetensors"
        try:
            self._make_room()
            write_whole(target, data, private=True)
        except OSError as error:
            raise CoterieError(
                f"Cannot write {target}: {error.strerror or error}; make room, or choose another --memory."
            ) from error
        files = self._files()
        again = [file for number, whose, file in files if (number, whose) == (era, session) and file != target]
        older = [file for number, _, file in files if number < safe]
        newer = [file for number, _, file in files if number >= safe and file not in again]
        for old in (*again, *older[:-1], *newer[:-_KEPT]):
            old.unlink(missing_ok=True)

    def _make_room(self) -> None:
        if self.path.is_dir():
            return
        if self._root.is_dir() and sum(1 for _ in self._root.iterdir()) >= _MOST_RUNS:
            raise CoterieError(f"{self._root} holds the memories of {_MOST_RUNS} runs; remove those that are over.")
        for folder in (self._root.parent, self._root, self.path):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.chmod(0o700)  # it may have been made before memories were private

    def _files(self) -> list[tuple[int, str, Path]]:
        """Era, session and file, the oldest first; of two of one era the one that was written later is the newer."""
        found = [(match, file) for file in self.path.glob("*.safetensors") if (match := _FILE.fullmatch(file.name))]
        found.sort(key=lambda pair: (int(pair[0][1]), pair[1].stat().st_mtime_ns))
        return [(int(match[1]), unquote(match[2]), file) for match, file in found]

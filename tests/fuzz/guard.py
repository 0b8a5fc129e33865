"""The judge of a mutated case: what may come out of a boundary, how long it may take, what it may touch."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from coterie.core.errors import CoterieError

CPU_SECONDS = 4.0
MEGABYTES = 600
LONGEST_ERROR = 1000
_SAFETY = 6 << 30  # of address space above what there is: a case that would take the whole machine fails instead
_CHANGES = {
    "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod", "os.link", "os.symlink", "os.chown",
    "shutil.rmtree", "shutil.move", "shutil.copyfile",
}  # fmt: skip
_NEVER = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "socket.connect", "pty.spawn"}
_RESET, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_inside: list[Path] = []
_seen: list[str] = []


class CaughtError(AssertionError):
    """A boundary has let something through."""


def judged(open_door: Callable[[bytes], object], data: bytes, what: str) -> bool:
    """Whether a case was taken; a refusal must be a short `CoterieError`, and anything else is a fault."""
    _forget_peak()
    _seen.clear()
    memory, began = _peak(), time.process_time()
    try:
        open_door(data)
        taken = True
    except CoterieError as error:
        taken = False
        text = str(error)
        if len(text) > LONGEST_ERROR or not text:
            raise CaughtError(f"{what}: an error of {len(text)} characters: {text[:200]!r}") from error
    except Exception as error:
        raise CaughtError(f"{what}: {type(error).__name__} came out: {str(error)[:300]} [{data[:300]!r}]") from error
    seconds, grown = time.process_time() - began, _peak() - memory
    if grown > MEGABYTES:  # before the seconds: much memory takes long on a busy machine
        raise CaughtError(f"{what}: it took {grown} MB [{data[:300]!r}]")
    if seconds > CPU_SECONDS:
        raise CaughtError(f"{what}: it took {seconds:.1f} s [{data[:300]!r}]")
    if _seen:
        raise CaughtError(f"{what}: it touched {_seen[0]} [{data[:300]!r}]")
    return taken


def _forget_peak() -> None:
    """Linux counts the most memory from here on; where it does not let us, from the start of the process."""
    with suppress(OSError):
        _RESET.write_text("5")


def _peak() -> int:
    """The most memory that this process has had, in MB."""
    try:
        found = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM"))
        return int(found.split()[1]) >> 10
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


@contextmanager
def watched(folder: Path) -> Iterator[None]:
    """From here on nothing may be written outside of `folder`, and no program or connection be started."""
    if not _hooked:
        sys.addaudithook(_audit)  # it cannot be taken away again, so it is put there once
        _hooked.append(True)
    before = resource.getrlimit(resource.RLIMIT_AS)
    with suppress(OSError):
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + _SAFETY, before[1]))
    _inside.append(folder.resolve())
    try:
        yield
    finally:
        _inside.clear()
        resource.setrlimit(resource.RLIMIT_AS, before)


_hooked: list[bool] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not _inside:
        return
    if event in _NEVER:
        _seen.append(f"{event} {arguments[:2]!r}"[:200])
    elif event == "open":
        path, mode, flags = arguments
        if (isinstance(flags, int) and flags & _WRITES) or (isinstance(mode, str) and set(mode) & set("wax+")):
            _note(event, path)
    elif event in _CHANGES:
        for path in arguments[: 2 if event in ("os.rename", "os.link", "shutil.move") else 1]:
            _note(event, path)


def _note(event: str, path: Any) -> None:
    if not isinstance(path, (str, bytes, os.PathLike)):
        return
    whole = Path(os.path.realpath(os.fsdecode(path)))
    if whole != Path(os.devnull) and not whole.is_relative_to(_inside[0]):
        _seen.append(f"{event} {whole}")

"""Files that are written whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

from coterie.core.errors import Unfinished

DRAFT = ".new"
"""What the name of a file ends in while it is being written."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def private_files() -> Iterator[None]:
    """What is written meanwhile, in whatever way, can be read by its owner alone."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def digest(data: bytes) -> str:
    """Sixteen characters by which damage is found out; they do not keep anyone from forging a file."""
    return blake2b(data, digest_size=8).hexdigest()


def write_whole(target: Path, data: bytes, *, private: bool = False) -> None:
    """Replace a file as a whole: a crash leaves the old content or the new, never a part of either.

    A private file can be read by its owner alone, from the first moment on.
    """
    draft, mode = target.with_name(target.name + DRAFT), 0o600 if private else 0o666
    try:
        draft.unlink(missing_ok=True)
        with open(draft, "wb", opener=lambda path, flags: os.open(path, flags | os.O_EXCL, mode)) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, target)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def writing(path: Path, then: str) -> Iterator[None]:
    """Turn a failure to write `path` into one sentence; `then` says what to do once there is room on the disk."""
    try:
        yield
    except OSError as error:
        what = f"Cannot write {path}: {error.strerror or error}"
        if error.errno not in _FULL:
            raise Unfinished(f"{what}; choose a folder that can be written to.") from error
        raise Unfinished(f"{what}; what was saved before is intact: make room, then {then}.") from error

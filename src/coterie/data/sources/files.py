"""What every loader shares: finding a file, unpacking it, and saying in one sentence what is wrong."""

from __future__ import annotations

import bz2
import gzip
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coterie.core.errors import CoterieError
from coterie.core.samples import Samples


@dataclass(frozen=True)
class Split:
    """A dataset as its publisher splits it."""

    train: Samples
    test: Samples


def missing(what: str, folder: Path, how: str) -> CoterieError:
    """The error for files that are not there: where was looked, and how to get them."""
    return CoterieError(f"There is no {what} in {folder}; {how}.")


def corrupt(path: Path, why: str, how: str) -> CoterieError:
    """The error for a file that is there and cannot be read."""
    return CoterieError(f"{path} cannot be read ({why}); delete it and fetch it again: {how}.")


def find(folder: Path, names: Sequence[str], how: str) -> Path:
    """The first of these files that exists in the folder, or an error that names the first."""
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise missing(names[0], folder, how)


def contents(path: Path, how: str) -> bytes:
    """All bytes of a file, unpacked where its name ends in .gz or .bz2."""
    try:
        raw = path.read_bytes()
        if path.suffix == ".gz":
            return gzip.decompress(raw)
        return bz2.decompress(raw) if path.suffix == ".bz2" else raw
    except (OSError, EOFError, ValueError, zlib.error) as problem:
        raise corrupt(path, str(problem) or type(problem).__name__, how) from problem

"""A comparison as a folder: the runs it is made of, and what `compare.json` says about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.core.errors import CoterieError
from coterie.runs.folder import RunFolder, unfinished
from coterie.runs.records import COMPARE_FILE, read_object


@dataclass(frozen=True)
class CompareFolder:
    """A comparison and the runs it is made of."""

    path: Path
    summary: Mapping[str, Any]
    runs: Sequence[RunFolder]


def read_compare(path: Path) -> CompareFolder:
    """Read a comparison folder and every run it names."""
    file = path / COMPARE_FILE
    if not file.exists():
        raise unfinished(path)
    summary = read_object(file)
    if not isinstance(summary.get("rows"), list) or not isinstance(summary.get("runs"), list):
        raise CoterieError(f"{file} lacks its rows or runs; run the comparison again.")
    for row in summary["rows"]:
        if not isinstance(row, dict) or "method" not in row:
            raise CoterieError(f"{file} has a row without a method; run the comparison again.")
    return CompareFolder(path, summary, [RunFolder.of_finished(path / str(name)) for name in summary["runs"]])

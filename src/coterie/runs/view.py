"""Who follows a run: the live table, trackers, the writer of the report, or a user's own object."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from typing_extensions import override

from coterie.core.notes import Note
from coterie.runs.result import Result


class View(Protocol):
    """What follows a run. It may have the other methods of `SilentView` too."""

    def update(self, row: Mapping[str, Any]) -> None:
        """A round has ended."""

    def note(self, text: str) -> None:
        """Something worth a line has happened."""


class SilentView:
    """A view that shows nothing; a subclass overrides what it shows."""

    def started(self, config: Mapping[str, Any]) -> None:
        """A configured run begins, with the tables of its config.toml."""

    def update(self, row: Mapping[str, Any]) -> None:
        """A round has ended; the row has the columns of metrics.csv, the number of rounds and the method's log."""

    def note(self, text: str) -> None:
        """Something worth a line has happened."""

    def progress(self, what: str, done: int, asked: int) -> None:
        """So many of the clients that were asked are done with their training or evaluation."""

    def finished(self, result: Result, folder: Path | None) -> None:
        """The run has ended, and its folder is complete but for the report."""


class NotesOnly(SilentView):
    """Passes on notes, and nothing else."""

    def __init__(self, note: Note) -> None:
        self._note = note

    @override
    def note(self, text: str) -> None:
        self._note(text)


class Views(SilentView):
    """Several views as one, told in this order; without any it is silent."""

    def __init__(self, *views: View | None) -> None:
        self._views = [view for view in views if view is not None]

    def _tell(self, what: str, *values: Any) -> None:
        for view in self._views:
            listener = getattr(view, what, None)
            if listener is not None:
                listener(*values)

    @override
    def started(self, config: Mapping[str, Any]) -> None:
        self._tell("started", config)

    @override
    def update(self, row: Mapping[str, Any]) -> None:
        self._tell("update", row)

    @override
    def note(self, text: str) -> None:
        self._tell("note", text)

    @override
    def progress(self, what: str, done: int, asked: int) -> None:
        self._tell("progress", what, done, asked)

    @override
    def finished(self, result: Result, folder: Path | None) -> None:
        self._tell("finished", result, folder)

"""What follows a run besides the live table: the writer of its report, and trackers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from typing_extensions import override

from coterie.core.files import writing
from coterie.report.html import write_run_report
from coterie.report.sinks import Sink, open_sink
from coterie.runs.result import Result
from coterie.runs.view import SilentView, View, Views


class ReportWriter(SilentView):
    """Writes the report of a run when its folder is complete."""

    def finished(self, result: Result, folder: Path | None) -> None:
        """Write `report.html`."""
        if folder is not None:
            with writing(folder / "report.html", then=f"coterie report {folder}"):
                write_run_report(folder)


class Tracker(SilentView):
    """Passes a run on to a tracker, which is opened when the run begins."""

    def __init__(self, name: str, folder: Path) -> None:
        self._name, self._folder = name, folder
        self._sink: Sink | None = None

    @override
    def started(self, config: Mapping[str, Any]) -> None:
        self._sink = open_sink(self._name, self._folder)
        self._sink.start(config)

    @override
    def update(self, row: Mapping[str, Any]) -> None:
        if self._sink is not None:
            self._sink.round(row)

    @override
    def finished(self, result: Result, folder: Path | None) -> None:
        if self._sink is not None:
            self._sink.end(json.loads(result.to_json()))


def with_report(view: View | None, folder: Path, track: tuple[str, ...] = ()) -> Views:
    """A view of a run in this folder that also writes its report and passes it on to the trackers named."""
    return Views(view, ReportWriter(), *(Tracker(name, folder) for name in track))

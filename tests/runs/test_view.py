"""Who follows a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import coterie
from coterie import Result
from coterie.data.own import OwnPopulation
from coterie.runs.folder import RunFolder
from coterie.runs.options import RunOptions
from coterie.runs.simulate import simulate
from coterie.runs.view import NotesOnly, SilentView, Views
from tests.tiny import small_net


class TwoMethods:
    """What a user's own view must have, and no more."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def update(self, row: Mapping[str, Any]) -> None:
        self.heard.append(f"round {row['round']}")

    def note(self, text: str) -> None:
        self.heard.append("note")


class Everything(SilentView):
    """A view that keeps the names of what it is told."""

    def __init__(self, heard: list[str]) -> None:
        self.heard = heard

    def progress(self, what: str, done: int, asked: int) -> None:
        self.heard.append("progress")

    def finished(self, result: Result, folder: Path | None) -> None:
        assert folder is None or RunFolder.of_finished(folder).result["accuracy"] == result.accuracy
        self.heard.append("finished")


def test_a_view_is_told_of_rounds_then_of_the_end(digits: OwnPopulation, tmp_path: Path) -> None:
    """Two rounds: a note which path trains (and perhaps warnings), the rounds, the end once the folder is complete."""
    view, heard = TwoMethods(), list[str]()
    coterie.run("fedavg", digits, small_net, rounds=2, out=tmp_path / "run", view=Views(None, view, Everything(heard)))
    assert view.heard[0] == "note"
    assert [each for each in view.heard if each != "note"] == ["round 1", "round 2"]
    assert heard.count("finished") == 1
    assert heard[-1] == "finished"
    assert "progress" in heard


def test_only_coterie_run_writes_the_report(digits: OwnPopulation, tmp_path: Path) -> None:
    """The loop does not know the report: it is a view above it."""
    simulate("fedavg", digits, small_net, RunOptions(rounds=1), out=tmp_path / "run")
    assert (tmp_path / "run" / "result.json").is_file()
    assert not (tmp_path / "run" / "report.html").exists()
    coterie.run("fedavg", digits, small_net, rounds=1, out=tmp_path / "reported", view=TwoMethods())
    assert (tmp_path / "reported" / "report.html").is_file()


def test_notes_alone() -> None:
    said: list[str] = []
    view = Views(NotesOnly(said.append))
    view.update({})
    view.progress("training", 1, 2)
    view.note("x")
    assert said == ["x"]

"""Trackers follow a run of the command line from its start to its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coterie.report import sinks
from tests.conftest import Command
from tests.runs.test_resume import SMALL


class Fake:
    """A tracker that keeps what it is told."""

    opened: list[Fake]

    def __init__(self, folder: Path) -> None:
        self.heard: list[Any] = [folder]
        self.opened.append(self)

    def start(self, config: Any) -> None:
        self.heard.append(("start", config["method"]))

    def round(self, row: Any) -> None:
        self.heard.append(("round", row["round"]))

    def end(self, result: Any) -> None:
        assert (self.heard[0] / "report.html").is_file(), "the report is written first"
        self.heard.append(("end", result["rounds"]))


def test_a_tracker_hears_the_start_the_rounds_and_the_end(
    coterie: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second call that is refused (the run is finished) opens no tracker."""
    Fake.opened = []
    monkeypatch.setitem(sinks.SINKS, "fake", Fake)
    out = tmp_path / "run"
    said = coterie("run", "fedavg", *SMALL, "--rounds", 2, "--set", "track=fake", "--out", out)
    assert said.code == 0, said.err
    (one,) = Fake.opened
    assert one.heard == [out, ("start", "fedavg"), ("round", 1), ("round", 2), ("end", 2)]
    assert "is finished" in coterie("resume", out).err
    assert len(Fake.opened) == 1

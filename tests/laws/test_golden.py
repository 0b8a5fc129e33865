"""Nothing that a user sees changes when code is moved: results, old checkpoints, old configurations."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from coterie.methods import METHODS
from coterie.runs.config import from_tables, read_tables
from coterie.runs.experiment import resume
from coterie.runs.records import read_metrics

from .golden import differences, simulate

OLD = Path(__file__).with_name("old_runs")
"""Runs that version 0.1 left after two of four rounds."""
OLD_ACCURACY = {"fedavg": 0.7375, "panm": 0.7375, "scaffold": 0.3625}


@pytest.mark.parametrize("name", sorted(METHODS))
def test_results_are_those_on_record(name: str) -> None:
    assert differences(f"simulated {name}", simulate(name)) == []


@pytest.mark.parametrize("name", sorted(OLD_ACCURACY))
def test_an_old_run_is_resumed(name: str, tmp_path: Path) -> None:
    """The checkpoint and config.toml of 0.1 are read, and the run ends as in 0.1 (one of 80 test images may differ)."""
    folder = tmp_path / name
    shutil.copytree(OLD / name, folder)
    before = read_metrics(folder)
    result = resume(folder)
    assert result.rounds == 4
    assert read_metrics(folder)[: len(before)] == before
    assert result.accuracy == pytest.approx(OLD_ACCURACY[name], abs=0.0126)


def test_an_old_configuration_means_the_same() -> None:
    config = from_tables(read_tables(OLD / "panm" / "config.toml"))
    assert (config.method, config.rounds, config.seed, config.model) == ("panm", 4, 3, "digits-mlp")
    assert config.scenario.clients == 4
    assert config.settings == {"epochs": 8, "lr": 0.05}
    assert config.faults.dropout == 0.1
    assert (
        from_tables(read_tables(OLD / "panm" / "config.toml")).to_toml() == (OLD / "panm" / "config.toml").read_text()
    )

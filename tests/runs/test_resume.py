"""Going on with a run: only with its checkpoint, and only with the settings it was made with."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from coterie import run
from coterie.core.errors import CoterieError
from coterie.data.own import OwnPopulation
from coterie.runs.records import read_metrics
from tests.conftest import Command, Said
from tests.tiny import StopAt, made, small_net

SMALL = ("--clients", 6, "--samples", 8, "--groups", 2, "--set", "epochs=1", "--set", "scenario.test_samples=10")


@pytest.fixture
def unfinished(coterie: Command, tmp_path: Path) -> Path:
    """A run of 3 rounds that is all but finished."""
    out = tmp_path / "run"
    assert coterie("run", "ifca", *SMALL, "--rounds", 3, "--set", "k=2", "--out", out).code == 0
    (out / "result.json").unlink()
    return out


def edit(run: Path, old: str, new: str) -> None:
    text = (run / "config.toml").read_text()
    assert old in text
    (run / "config.toml").write_text(text.replace(old, new))


def refused(said: Said, run: Path, before: dict[Path, bytes]) -> str:
    assert said.code == 2, said.out
    assert len(said.err.strip().splitlines()) == 1
    assert files(run) == before
    return said.err.strip().removeprefix("coterie: ")


def files(run: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}


@pytest.mark.parametrize("without", ["", "metrics.csv", "events.jsonl"])
def test_a_lost_checkpoint_does_not_cost_the_logs(without: str, coterie: Command, unfinished: Path) -> None:
    shutil.rmtree(unfinished / "checkpoint")
    if without:
        (unfinished / without).unlink()
    before = files(unfinished)
    assert refused(coterie("resume", unfinished), unfinished, before) == (
        f"The logs in {unfinished} reach round 3 but there is no checkpoint; restore {unfinished / 'checkpoint'}, "
        "or start again with another --out."
    )


def test_there_is_a_checkpoint_before_the_first_round(digits: OwnPopulation, tmp_path: Path) -> None:
    """So that a run killed in its first seconds goes on although it has rounds in its logs."""
    seen = []

    class Look(StopAt):
        def update(self, row: object) -> None:
            seen.append(json.loads((tmp_path / "run" / "checkpoint" / "latest.json").read_text())["next_round"])

    run(made("fedavg"), digits, small_net, rounds=2, out=tmp_path / "run", view=Look(9))
    assert seen == [0, 1]  # and one before the last, from which a longer run would go on


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("k = 2", "k = 3", "settings.k"),
        ("seed = 0", "seed = 1", "seed"),
        ("clients = 6", "clients = 8", "scenario.clients"),
        ("epochs = 1", "epochs = 1\nlr = 0.3", "settings.lr"),
    ],
)
def test_other_settings_are_refused(old: str, new: str, key: str, coterie: Command, unfinished: Path) -> None:
    edit(unfinished, old, new)
    before = files(unfinished)
    assert refused(coterie("resume", unfinished), unfinished, before) == (
        f"{unfinished / 'config.toml'} has been changed since the checkpoint was made ({key}); put it back as it was, "
        "or start a new run with another --out."
    )


def test_fewer_rounds_than_reached_are_refused(coterie: Command, unfinished: Path) -> None:
    edit(unfinished, "rounds = 3", "rounds = 1")
    before = files(unfinished)
    assert refused(coterie("resume", unfinished), unfinished, before) == (
        f"1 rounds are wanted but the run in {unfinished} has reached round 2; set rounds to at least that."
    )


def test_a_finished_run_goes_on_to_more_rounds(coterie: Command, unfinished: Path) -> None:
    assert coterie("resume", unfinished).code == 0
    said = coterie("resume", unfinished, "--rounds", 5)
    assert said.code == 0, said.err
    assert len(read_metrics(unfinished)) == json.loads((unfinished / "result.json").read_text())["rounds"] == 5
    assert "rounds = 5\n" in (unfinished / "config.toml").read_text()
    for rounds, why in (
        (5, "is finished"),
        (4, "has reached round 5; set --rounds to more than that"),
        (0, "at least 1"),
    ):
        ended = coterie("resume", unfinished, "--rounds", rounds)
        assert ended.code == 2
        assert why in ended.err
    assert len(read_metrics(unfinished)) == 5


def test_what_does_not_change_a_round_may_change(coterie: Command, unfinished: Path) -> None:
    edit(unfinished, "rounds = 3", "rounds = 4")
    edit(unfinished, "checkpoint_seconds = 10.0", "checkpoint_seconds = 99.0")
    with open(unfinished / "config.toml", "a") as file:
        file.write("\n[engine]\nworkers = 1\n")
    said = coterie("resume", unfinished)
    assert said.code == 0, said.err
    assert len(read_metrics(unfinished)) == 4


def test_a_checkpoint_of_before_knows_no_settings(coterie: Command, unfinished: Path) -> None:
    latest = unfinished / "checkpoint" / "latest.json"
    progress = json.loads(latest.read_text())
    del progress["config"], progress["digest"]
    latest.write_text(json.dumps(progress))
    assert coterie("resume", unfinished).code == 0


def test_python_too_is_refused_fewer_rounds(digits: OwnPopulation, tmp_path: Path) -> None:
    with pytest.raises(CoterieError):
        run(made("fedavg"), digits, small_net, rounds=4, out=tmp_path / "run", view=StopAt(2))
    with pytest.raises(CoterieError, match=r"1 rounds are wanted but the run in .* has reached round 2"):
        run(made("fedavg"), digits, small_net, rounds=1, out=tmp_path / "run", resume=True)


def test_a_run_whose_report_could_not_be_written_says_how_to_make_it(
    coterie: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that was full at the very end left "finished; see report.html", and no report.html."""

    def full(folder: Path) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))

    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("coterie.report.observers.write_run_report", full)
        said = coterie("run", "fedavg", *SMALL, "--rounds", 1, "--out", out)
    assert (said.code, f"make room, then coterie report {out}." in said.err) == (2, True), said.err
    assert f"has no report yet; write it: coterie report {out}" in coterie("resume", out).err
    assert coterie("report", out).code == 0
    assert f"is finished; see {out / 'report.html'}." in coterie("resume", out).err
    with monkeypatch.context() as patch:  # a run that goes on has no report of fewer rounds beside its result
        patch.setattr("coterie.report.observers.write_run_report", full)
        assert coterie("resume", out, "--rounds", 2).code == 2
    assert f"has no report yet; write it: coterie report {out}" in coterie("resume", out).err


@pytest.mark.parametrize("name", ["metrics.csv", "events.jsonl"])
def test_a_run_does_not_go_on_from_logs_that_were_changed(name: str, digits: OwnPopulation, tmp_path: Path) -> None:
    """An accuracy of 9999.5 stayed in the history of a run that was resumed."""
    out = tmp_path / "run"
    with pytest.raises(CoterieError):
        run(made("fedavg"), digits, small_net, rounds=4, out=out, view=StopAt(2))
    log = out / name
    log.write_bytes(log.read_bytes().replace(b"0.", b"9.", 1))
    with pytest.raises(CoterieError, match=r"metrics\.csv in .* has been changed since the checkpoint was made"):
        run(made("fedavg"), digits, small_net, rounds=4, out=out, resume=True)
    log.write_bytes(log.read_bytes().replace(b"9.", b"0.", 1))
    assert run(made("fedavg"), digits, small_net, rounds=4, out=out, resume=True).rounds == 4

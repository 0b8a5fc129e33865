"""A run that is killed, stopped, damaged or out of disk space: nothing is lost, and it says how to go on."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from coterie import run
from coterie.core.errors import CoterieError
from coterie.data.own import OwnPopulation
from coterie.runs.experiment import config_of, resume
from coterie.runs.folder import RunFolder
from coterie.runs.records import read_metrics
from tests import forked
from tests.conftest import Command
from tests.tiny import StopAt, fingerprint, made, small_net

from .test_run import PATIENCE, SMALL, models_in


class Process:
    """The command line as a process of its own, which writes its errors beside the folder of its run."""

    def __init__(self, *arguments: object, out: Path) -> None:
        root = Path(__file__).parents[2]
        environment = {**os.environ, "PYTHONPATH": str(root / "src"), "COLUMNS": "200"}
        command = [sys.executable, "-m", "coterie", *map(str, arguments), "--out", str(out)]
        self.out, self.errors = out, out.with_suffix(".err")
        with self.errors.open("wb") as errors:
            self.process = forked.Process(command, stderr=errors, env=environment)

    def wait_for_rounds(self, rounds: int) -> None:
        """Until that many rounds are in metrics.csv."""
        end, metrics = time.monotonic() + PATIENCE, self.out / "metrics.csv"
        while not metrics.exists() or len(metrics.read_text().splitlines()) <= rounds:
            assert self.process.poll() is None, f"it ended before round {rounds}: {self.errors.read_text()}"
            assert time.monotonic() < end, "it does not come to its rounds"
            time.sleep(0.01)

    def end(self) -> tuple[int, str]:
        return self.process.wait(PATIENCE), self.errors.read_text()


LONG = (*SMALL, "--rounds", 300, "--set", "checkpoint_seconds=0", "--set", "evaluate_every=1000", "--workers", 2)


def undisturbed(out: Path, rounds: int) -> Path:
    """The same run as below, never disturbed, in this process."""
    from coterie.cli.runs import tables_of
    from coterie.runs.config import from_tables
    from coterie.runs.experiment import execute

    assignments = ["epochs=1", "scenario.test_samples=10", "evaluate_every=1000", "checkpoint_seconds=1000000"]
    tables = tables_of(None, "scaffold", assignments, clients=6, samples=8, groups=2, rounds=rounds, workers=2)
    execute(from_tables(tables), out)
    return out


@pytest.mark.parametrize("after", [0, 1, 20])
def test_killed_at_any_moment_and_resumed(after: int, coterie: Command, tmp_path: Path) -> None:
    """`kill -9` in the middle of 300 rounds with a checkpoint after each; then `resume` comes to the same end."""
    out = tmp_path / "run"
    process = Process("run", "scaffold", *LONG, out=out)
    process.wait_for_rounds(after)
    process.process.kill()
    code, _ = process.end()
    assert code == -signal.SIGKILL
    assert not (out / "result.json").exists()
    # from here on only the end counts: it may take its time with checkpoints, and need not be 300 rounds away
    rounds = len(read_metrics(out)) + 20
    text = (out / "config.toml").read_text().replace("checkpoint_seconds = 0.0", "checkpoint_seconds = 1000.0")
    (out / "config.toml").write_text(text.replace("rounds = 300", f"rounds = {rounds}"))
    said = coterie("resume", out)
    assert said.code == 0, said.err
    whole = undisturbed(tmp_path / "whole", rounds)
    assert models_in(out) == models_in(whole)
    results = [json.loads((folder / "result.json").read_text()) for folder in (out, whole)]
    for result in results:
        result.pop("seconds")
    assert results[0] == results[1]
    assert results[0]["rounds"] == rounds
    assert [row["bytes_up"] for row in read_metrics(out)] == [row["bytes_up"] for row in read_metrics(whole)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_cleanly_and_says_how_to_resume(number: signal.Signals, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = Process("run", "scaffold", *LONG, out=out)
    process.wait_for_rounds(3)
    process.process.send_signal(number)
    code, err = process.end()
    assert code == 130
    assert "Traceback" not in err
    sentence = err.strip().splitlines()[-1]
    assert sentence.startswith("Stopped after ")
    assert sentence.endswith(f"of 300 rounds; nothing is lost: coterie resume {out}")
    reached = int(sentence.split()[2])
    latest = json.loads((out / "checkpoint" / "latest.json").read_text())
    assert latest["next_round"] == reached == len(read_metrics(out))


def stopped(digits: OwnPopulation, out: Path) -> None:
    with pytest.raises(CoterieError):
        run(made("scaffold"), digits, small_net, rounds=4, seed=7, out=out, view=StopAt(2))


def test_a_folder_whose_run_died_at_its_very_start(digits: OwnPopulation, tmp_path: Path) -> None:
    """Killed while it made its folder: whatever is there by then, it can be run or resumed."""
    out, whole = tmp_path / "run", tmp_path / "whole"
    expected = run(made("local"), digits, small_net, rounds=2, out=whole, config="a = 1\n")
    out.mkdir()
    (out / "config.toml.new").write_bytes(b"a =")
    assert fingerprint(run(made("local"), digits, small_net, rounds=2, out=out)) == fingerprint(expected)
    for present in ({"config.toml"}, {"config.toml", "metrics.csv"}, {"config.toml", "metrics.csv", "events.jsonl"}):
        early = tmp_path / f"with{len(present)}"
        early.mkdir()
        for name in present:
            (early / name).write_bytes((whole / name).read_bytes().splitlines(keepends=True)[0])  # no round yet
        result = run(made("local"), digits, small_net, rounds=2, out=early, resume=True)
        assert fingerprint(result) == fingerprint(expected)
        assert len(read_metrics(early)) == 2


def test_logs_written_after_the_checkpoint_are_written_again(digits: OwnPopulation, tmp_path: Path) -> None:
    """A killed run may have logged rounds, or half a line, that its checkpoint does not know."""
    out = tmp_path / "run"
    expected = run(made("scaffold"), digits, small_net, rounds=4, seed=7, out=tmp_path / "whole")
    stopped(digits, out)
    with open(out / "metrics.csv", "a") as metrics, open(out / "events.jsonl", "a") as events:
        metrics.write("3,0.5,0.4")
        events.write('{"event": "round", "rou')
    (out / "checkpoint" / "state-000003.safetensors.new").write_bytes(b"half")
    result = run(made("scaffold"), digits, small_net, rounds=4, seed=7, out=out, resume=True)
    assert fingerprint(result) == fingerprint(expected)
    assert [row["round"] for row in read_metrics(out)] == [1.0, 2.0, 3.0, 4.0]
    assert not list((out / "checkpoint").rglob("*.new"))


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "delete"])
@pytest.mark.parametrize("which", ["state", "memory", "latest.json"])
def test_a_damaged_checkpoint_is_found_out(which: str, damage: str, digits: OwnPopulation, tmp_path: Path) -> None:
    out = tmp_path / "run"
    stopped(digits, out)
    victim = next(
        file
        for file in sorted((out / "checkpoint").rglob("*"))
        if file.is_file() and (which in file.name or which == file.parent.name)
    )
    data = bytearray(victim.read_bytes())
    if damage == "delete":
        victim.unlink()
    elif damage == "flip":
        place = data.index(b'"') if which == "latest.json" else len(data) - 5
        data[place] ^= 0x10
        victim.write_bytes(data)
    else:
        victim.write_bytes(data[: 0 if damage == "empty" else len(data) // 2])
    lost = which == "latest.json" and damage == "delete"
    says = "reach round 2 but there is no" if lost else r"in .* cannot be read \(.*\); restore it, or start"
    before = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    with pytest.raises(CoterieError, match=says):
        run(made("scaffold"), digits, small_net, rounds=4, seed=7, out=out, resume=True)
    assert {file: file.read_bytes() for file in out.rglob("*") if file.is_file()} == before


def test_a_checkpoint_of_another_method(digits: OwnPopulation, tmp_path: Path) -> None:
    """The settings in config.toml show it; a config.toml of the caller's own may not, but the checkpoint does."""
    stopped(digits, tmp_path / "run")
    with pytest.raises(CoterieError, match=r"began with other settings \(method, "):
        run(made("fedavg"), digits, small_net, rounds=4, seed=7, out=tmp_path / "run", resume=True)
    out, own = tmp_path / "own", "a = 1\n"
    with pytest.raises(CoterieError):
        run(made("scaffold"), digits, small_net, rounds=4, seed=7, out=out, config=own, view=StopAt(2))
    with pytest.raises(CoterieError, match=r"is of scaffold, not of fedavg; run fedavg with another --out"):
        run(made("fedavg"), digits, small_net, rounds=4, seed=7, out=out, config=own, resume=True)


@pytest.mark.parametrize("name", ["events.jsonl", "metrics.csv"])
def test_logs_shorter_than_the_checkpoint_says(name: str, digits: OwnPopulation, tmp_path: Path) -> None:
    out = tmp_path / "run"
    stopped(digits, out)
    (out / name).write_bytes(b"short")
    with pytest.raises(CoterieError, match=f"{name} is shorter than its checkpoint says"):
        run(made("scaffold"), digits, small_net, rounds=4, seed=7, out=out, resume=True)
    (out / name).unlink()
    with pytest.raises(CoterieError, match=f"{name} is shorter than its checkpoint says"):
        run(made("scaffold"), digits, small_net, rounds=4, seed=7, out=out, resume=True)


@pytest.mark.parametrize(
    "what", ["state-000002", "latest.json", "metrics.csv", "events.jsonl", "result.json", "report"]
)
def test_a_full_disk_loses_nothing(
    what: str, digits: OwnPopulation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing one file fails from the second round on; after room is made, resume ends as if nothing had been."""
    expected = run(made("scaffold"), digits, small_net, rounds=4, seed=7, out=tmp_path / "whole")
    out = tmp_path / "run"
    written = {"metrics.csv": 0, "events.jsonl": 0}
    open_, append = open, RunFolder.append

    def full(path: object, *arguments: object, **how: object) -> object:
        if what in str(path) and "w" in str(arguments[:1]) and str(tmp_path) in str(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return open_(path, *arguments, **how)  # type: ignore[call-overload]

    def appended(self: RunFolder, name: str, text: str) -> None:
        if name == what:
            written[name] += 1
            if written[name] > 2:
                with self.writing(self.path / name):
                    append(self, name, text[:5])
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
        append(self, name, text)

    with monkeypatch.context() as patch:
        if what in written:
            patch.setattr(RunFolder, "append", appended)
        else:
            patch.setattr("builtins.open", full)
            patch.setattr(Path, "write_text", lambda self, *a, **k: full(self, "w"))
        with pytest.raises(CoterieError, match=r"No space left on device.*make room"):
            run(made("scaffold"), digits, small_net, rounds=4, seed=7, out=out, checkpoint_seconds=0)
    again = run(made("scaffold"), digits, small_net, rounds=4, seed=7, out=out, checkpoint_seconds=0, resume=True)
    assert fingerprint(again) == fingerprint(expected)
    rows = read_metrics(out)
    assert [row["round"] for row in rows] == [1.0, 2.0, 3.0, 4.0]
    for line in (out / "events.jsonl").read_text().splitlines():
        json.loads(line)


def test_a_file_too_large_for_the_system_is_one_sentence(tmp_path: Path) -> None:
    """A limit on the size of files, as a quota has it, in a process of its own."""
    root = Path(__file__).parents[2]
    out = tmp_path / "run"
    script = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000));"
        "from coterie.cli.main import main; main()"
    )
    arguments = ["run", "fedavg", *map(str, SMALL), "--rounds", "2", "--out", str(out)]
    environment = {**os.environ, "PYTHONPATH": str(root / "src")}
    ended = forked.run([sys.executable, "-c", script, *arguments], env=environment, timeout=PATIENCE)
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert ended.stderr.startswith("coterie: Cannot write ")
    assert "File too large" in ended.stderr
    result = resume(out)
    assert result.rounds == 2
    assert config_of(out).method == "fedavg"


def test_a_folder_that_cannot_be_written(coterie: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        said = coterie("run", "fedavg", *SMALL, "--rounds", 1, "--out", out)
        assert said.code == 2
        assert len(said.err.strip().splitlines()) == 1
        assert "make room" not in said.err
    assert (tmp_path / "file").read_text() == "mine"

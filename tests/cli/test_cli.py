"""The commands that only show something, and the demo."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from coterie import __version__
from coterie.data import SCENARIOS
from coterie.methods import METHODS
from coterie.models import MODELS
from coterie.runs.config import RunConfig
from coterie.simulation.faults import Faults
from tests.conftest import Command

SMALL = ("--clients", 6, "--samples", 8, "--groups", 2, "--rounds", 1, "--set", "epochs=1")


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")


def test_list_shows_everything(coterie: Command) -> None:
    said = coterie("list")
    assert said.code == 0
    for name in (*METHODS, *SCENARIOS, *MODELS):
        assert name in said.out


@pytest.mark.parametrize(("what", "names"), [("methods", METHODS), ("scenarios", SCENARIOS), ("models", MODELS)])
def test_list_one_kind(coterie: Command, what: str, names: dict[str, object]) -> None:
    said = coterie("list", what)
    assert all(name in said.out for name in names)
    others = {"methods": "lenet5-wide", "scenarios": "scaffold", "models": "scaffold"}[what]
    assert others not in said.out


@pytest.mark.parametrize("name", sorted(METHODS))
def test_list_a_method_explains_every_setting(coterie: Command, name: str) -> None:
    said = coterie("list", name)
    assert said.code == 0
    for field in dataclasses.fields(METHODS[name]):
        assert field.metadata.get("help"), f"{name}.{field.name} has no explanation"
        assert field.name in said.out


def test_list_says_what_a_preset_without_changes_is(coterie: Command) -> None:
    assert re.search(r"preset=robust\W+the defaults", coterie("list", "fedcg").out)


def test_help_begins_with_what_a_new_user_needs(coterie: Command) -> None:
    commands = coterie("--help").out.partition("Commands:")[2]
    places = [
        commands.index(f"\n  {name} ") for name in ("list", "run", "compare", "serve", "join", "encoder", "attack")
    ]
    assert places == sorted(places)
    assert "..." not in commands, "what a command does is not cut off"


def test_list_faults_explains_every_setting(coterie: Command) -> None:
    said = coterie("list", "faults")
    assert said.code == 0
    for field in dataclasses.fields(Faults):
        assert f"faults.{field.name} " in said.out
        assert field.metadata["help"] in said.out


@pytest.mark.parametrize("what", [(), ("scenarios",), ("methods",), ("models",)])
def test_names_stay_whole_in_a_narrow_terminal(
    what: tuple[str, ...], coterie: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = coterie("list", *what)
    names = {"scenarios": [*SCENARIOS], "methods": [*METHODS], "models": [*MODELS]}
    for name in names[what[0]] if what else (*METHODS, *SCENARIOS, *MODELS):
        assert f"\u2502 {name} " in said.out


@pytest.mark.parametrize("columns", [80, 120, 200])
def test_no_word_of_a_list_is_cut(columns: int, coterie: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of scenarios was 134 lines at 80 columns, its words cut after eight letters."""
    monkeypatch.setenv("COLUMNS", str(columns))
    said = coterie("list", "scenarios")
    lines = said.out.splitlines()
    assert all(len(line) <= columns for line in lines)
    words = set(said.out.split())
    for each in SCENARIOS.values():
        assert {each.name, *each.summary.split()} <= words
    assert len(lines) <= 4 * len(SCENARIOS)


def test_data_describes_a_scenario(coterie: Command) -> None:
    said = coterie("data", "rotated-digits", "--clients", 8, "--samples", 20, "--groups", 2)
    assert said.code == 0, said.err
    assert "8" in said.out
    assert "4 in 0, 4 in 1" in said.out
    assert "1 x 8 x 8" in said.out


def test_data_without_a_name_shows_what_is_there(coterie: Command, tmp_path: Path) -> None:
    said = coterie("data", "--root", tmp_path)
    assert said.code == 0
    assert "missing: mnist" in said.out
    assert "embedded" in said.out


def test_report_is_written_anew(coterie: Command, tmp_path: Path) -> None:
    run, both = tmp_path / "run", tmp_path / "both"
    coterie("run", "fedavg", *SMALL, "--out", run)
    coterie("compare", "fedavg", "local", *SMALL, "--out", both)
    for folder in (run, both):
        (folder / "report.html").unlink()
        said = coterie("report", folder)
        assert said.code == 0, said.err
        assert said.out.strip() == f"wrote {folder / 'report.html'}"
        assert (folder / "report.html").stat().st_size > 1000


def test_the_demo_never_removes_a_folder_the_user_named(
    coterie: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Path] = []
    held_out: dict[str, float] = {}

    def noted(configs: list[RunConfig], seeds: list[int], folder: Path, target: float) -> None:
        kept.append(folder)
        held_out.update({config.method: config.scenario.validation for config in configs})

    monkeypatch.setattr("coterie.cli.runs.compare", noted)
    monkeypatch.chdir(tmp_path)
    for folder in (tmp_path / "mine", tmp_path / "runs" / "demo"):
        folder.mkdir(parents=True)
        (folder / "compare.json").write_text("{}")
    assert coterie("demo", "--out", "mine").code == 0
    assert (tmp_path / "mine" / "compare.json").exists()
    assert coterie("demo").code == 0
    assert not (tmp_path / "runs" / "demo" / "compare.json").exists()
    assert kept == [Path("mine"), Path("runs/demo")]
    assert held_out == {**dict.fromkeys(METHODS, 0.0), "fedfomo": 0.2}


def test_without_a_command_there_is_help(coterie: Command) -> None:
    said = coterie("--help")
    assert said.code == 0
    for command in ("list", "run", "compare", "resume", "report", "data", "demo"):
        assert command in said.out


@pytest.mark.parametrize(
    ("command", "argument"),
    [
        (["compare"], "METHODS...  two or more names of `coterie list methods`  [required]"),
        (["resume"], "FOLDER  folder of an interrupted run, or with --rounds of a finished one  [required]"),
        (["report"], "FOLDER  folder of a finished run or comparison  [required]"),
        (["certs"], "FOLDER  where to put them; a CA that is there already is used  [required]"),
        (["list"], "[WHAT]  methods, scenarios, models, faults, or a method's name"),
        (["run"], "[METHOD]  a name of `coterie list methods`"),
        (["attack", "reconstruction"], "[RUN]  folder of a finished `embedding` run"),
    ],
)
def test_help_explains_arguments(command: list[str], argument: str, coterie: Command) -> None:
    said = coterie(*command, "--help")
    assert said.code == 0
    assert " ".join(said.out.split()).count(" ".join(argument.split())) == 1  # lines break where they must
    assert "\\[" not in said.out


def test_help_names_the_default_scenario(coterie: Command) -> None:
    assert "(default: rotated-digits)" in " ".join(coterie("compare", "--help").out.split())
    assert "[default: 0]" in coterie("compare", "--help").out


def test_the_version(coterie: Command) -> None:
    said = coterie("--version")
    assert (said.code, said.out) == (0, f"coterie {__version__}\n")


def test_a_closed_pipe_is_no_error() -> None:
    """`coterie list | head -1`."""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root / "src")}
    ended = subprocess.run(
        f"{sys.executable} -m coterie list | head -1",
        shell=True,
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )
    assert "Traceback" not in ended.stderr

"""What the commands that run methods share. It needs torch, so a command imports it when it is called."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from coterie.core.errors import CoterieError, Interrupted
from coterie.core.settings import coerce, from_settings, split_assignments
from coterie.core.targets import TaskName
from coterie.methods import chosen_method
from coterie.report.live import LiveView
from coterie.report.live_compare import CompareView
from coterie.report.observers import with_report
from coterie.report.results import print_compare_table, print_result
from coterie.runs.compare import SomeFailed
from coterie.runs.compare import compare as compare_all
from coterie.runs.config import RunConfig, ScenarioConfig, merge, read_tables
from coterie.runs.options import check_seed
from coterie.runs.view import View


def tables_of(
    config: Path | None, method: str | None, assignments: Sequence[str] | None, **options: Any
) -> dict[str, Any]:
    """The file's tables, with the options of the command line laid over them."""
    tables = read_tables(config) if config is not None else {}
    if method is not None:
        tables = {**tables, "method": method}
    if "method" not in tables:
        raise CoterieError("Name a method, such as `coterie run fedavg`, or set method in the --config file.")
    given = {key: value for key, value in options.items() if value is not None}
    scenario = {key: given.pop(key) for key in list(given) if key in ScenarioConfig.__dataclass_fields__}
    if "scenario" in given:
        scenario["name"] = given.pop("scenario")
    workers = given.pop("workers", None)
    tables = {**tables, **given}
    assigned: dict[str, Any] = {f"scenario.{key}": value for key, value in scenario.items()}
    if workers is not None:
        assigned["engine.workers"] = workers
    assigned |= split_assignments(assignments or [])
    merged = merge(tables, assigned, chosen_method(coerce(str, tables["method"], "method")).name)
    if "scenario.name" in assigned and merged["scenario"].get("data"):
        raise CoterieError("--data are your own data and --scenario names ready ones; give one of the two.")
    return merged


def reading_of(
    assignments: Sequence[str] | None, code: list[str] | None = None, **options: Any
) -> tuple[ScenarioConfig, TaskName]:
    """Whose data, and what is predicted of them, where there is no run yet: options, `--set scenario.key=value`.

    Where there is a list for `code`, the run is another machine's: `--set loss=file.py:function` and `--set metric=...`
    go into the list, and what only the run can say is refused.
    """
    settings = {key: value for key, value in options.items() if value is not None}
    task: TaskName = "auto"
    for key, value in split_assignments(assignments or []).items():
        table, _, name = key.partition(".")
        if key == "task":
            task = coerce(TaskName, value, "task")
        elif code is not None and key in ("scenario.classes", "scenario.tests"):
            raise CoterieError(f"{key} is for the run's own configuration to say; leave it out here.")
        elif table == "scenario" and name:
            settings[name] = value
        elif code is not None and key in ("loss", "metric"):
            code.append(str(value))
        else:
            raise CoterieError(f"--set {key} says nothing about data; write scenario.KEY=VALUE or task=KIND here.")
    return from_settings(ScenarioConfig, settings, "scenario"), task


def compare(configs: Sequence[RunConfig], seeds: Sequence[int], folder: Path, target: float | None) -> None:
    """Run a comparison with the live table, print its table, and say where its report is."""
    jobs = [(config.label, seed) for config in configs for seed in seeds]
    title = f"{len(configs)} methods on {subject(configs[0])}"
    with the_same_command_goes_on(), CompareView(title, jobs, configs[0].rounds) as view:
        failure = None
        try:
            rows = compare_all(configs, seeds, folder, view, target=target)
        except SomeFailed as failed:
            rows, failure = failed.rows, failed
    print_compare_table(rows, target=target)
    Console().print(f"report: {folder / 'report.html'}", markup=False, highlight=False, soft_wrap=True)
    if failure is not None:
        raise failure


@contextmanager
def the_same_command_goes_on() -> Iterator[None]:
    """Where many runs are one command, a user who stops it is told that command, not the one for a single run."""
    command = shlex.join(["coterie", *sys.argv[1:]])
    try:
        yield
    except Interrupted as stop:
        raise Interrupted(stop.what, command) from None
    except KeyboardInterrupt:  # while data are read or a report is written
        raise Interrupted("Stopped between two runs; nothing is lost", command) from None


@contextmanager
def watched(config: RunConfig, folder: Path, track: tuple[str, ...] = ()) -> Iterator[View]:
    """The view of a run inside the block: live table, report, trackers. Then print its result and where the report is.

    Trackers follow runs in the simulator alone.
    """
    with LiveView(f"{config.label} on {subject(config)}", config.rounds) as live:
        yield with_report(live, folder, track)
    if live.result is not None:
        print_result(json.loads(live.result.to_json()))
    Console().print(f"report: {folder / 'report.html'}", markup=False, highlight=False, soft_wrap=True)


def numbers(seeds: str) -> list[int]:
    """The seeds of `--seeds 0,1,2`."""
    try:
        numbers = list(dict.fromkeys(int(seed) for seed in seeds.split(",")))
    except ValueError:
        raise CoterieError(f"--seeds takes whole numbers joined by commas, such as 0,1,2, not {seeds!r}.") from None
    for number in numbers:
        check_seed(number)
    return numbers


def fitting(method: str, methods: Sequence[str], assignments: Sequence[str]) -> list[str]:
    """The assignments meant for one of several methods: bare keys where it has them, METHOD.key for itself."""
    fields = {chosen_method(name).name: set(chosen_method(name).__dataclass_fields__) for name in methods}
    method = chosen_method(method).name
    plain = set(RunConfig.__dataclass_fields__)
    kept = []
    for key, value in split_assignments(assignments).items():
        owner = key.partition(".")[0]
        if owner in fields and owner != method:
            continue
        known = any(key in names for names in fields.values())
        if "." in key or key in plain or key in fields[method] or not known:
            kept.append(f"{key}={value}")
    return kept


def subject(config: RunConfig) -> str:
    """What a run is about: the scenario, or the name of the user's folder."""
    return Path(config.scenario.data).name if config.scenario.data is not None else config.scenario.name

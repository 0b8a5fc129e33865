"""A run as a folder: configuration, events, metrics, checkpoint, models, result."""

from __future__ import annotations

import json
import os
import shutil
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import Any
from urllib.parse import quote as percent_encoded

from coterie.core.errors import CoterieError, Unfinished
from coterie.core.files import DRAFT, write_whole, writing
from coterie.core.panels import Panel, load_panels, save_panels
from coterie.core.samples import ClientId
from coterie.core.states import State
from coterie.core.task import Task
from coterie.deploy.boundary import place
from coterie.methods.local_training import TITLES
from coterie.runs.checkpoint import Checkpoint, changed_settings
from coterie.runs.records import (
    COMPARE_FILE,
    CONFIG_FILE,
    EVENTS_FILE,
    METRICS,
    METRICS_FILE,
    REPORT_FILE,
    RESULT_FILE,
    Row,
    metrics_line,
    read_events,
    read_metrics,
    read_result,
    rounds_logged,
)
from coterie.runs.saved import encode_model

KIND_FILE = "kind.txt"
_PANELS_FILE = "panels.json"
IN_PYTHON = "own data in Python"
"""The scenario in config.toml where data and model were given to `coterie.run`: only that program has them."""


class RunKind(StrEnum):
    """How a run's folder was made: only the command that began a run can go on with it."""

    SIMULATION = "simulation"
    SERVED = "served run"
    PEER = "peer"
    NETWORK = "network of peers"
    HOST = "process of several peers"
    CLIENT = "client of a served run"

    def go_on(self, path: Path) -> str:
        """What to do to go on with a run of this kind; a network can only be begun again."""
        match self:
            case RunKind.SIMULATION:
                return f"coterie resume {quote(str(path))}"
            case RunKind.SERVED:
                return f"coterie serve --resume {quote(str(path))}"
            case RunKind.PEER | RunKind.HOST:
                return f"the same coterie peer command with --out {path}"
            case RunKind.NETWORK:
                return "coterie peers with another --out"
            case RunKind.CLIENT:
                return "the same coterie join command"

    def again(self, config: str, out: str, clients: int) -> str:
        """The command that begins a run of this kind once more, with the settings of a run's config.toml."""
        match self:
            case RunKind.SIMULATION:
                return f"coterie run --config {config} --out {out}"
            case RunKind.SERVED:
                return f"coterie serve --config {config} --clients {clients} --out {out}, with --certs as before"
            case RunKind.PEER:
                return (
                    f"coterie peer --config {config} --out {out}, with --name, --data, --listen and --seeds as before"
                )
            case RunKind.HOST:
                return (
                    f"coterie peer --config {config} --out {out}, with --names, --data, --listen and --seeds as before"
                )
            case RunKind.NETWORK:
                return f"coterie peers --config {config} --local {clients} --out {out}"
            case RunKind.CLIENT:
                return "coterie join, with --server, --name and --data as before"


def home_of(out: Path, name: ClientId) -> Path:
    """The folder of one peer of several, in theirs; older versions have written its name as it is."""
    now, older = place(out / "peers", name), out / "peers" / name
    return older if older.is_dir() else now


def kind_of(path: Path) -> RunKind:
    """What a run's folder says it holds; one from before folders said so is known by its other files."""
    try:
        return RunKind((path / KIND_FILE).read_text(encoding="utf-8").strip())
    except (OSError, ValueError):
        pass
    if (path / "deployment.json").is_file() or (path / "superlink.log").is_file():
        return RunKind.SERVED
    if (path / "peers").is_dir():
        return RunKind.NETWORK
    try:
        return RunKind.PEER if '"peers over zenoh"' in (path / EVENTS_FILE).read_text() else RunKind.SIMULATION
    except (OSError, ValueError):
        return RunKind.SIMULATION


def check_kind(path: Path, wanted: RunKind) -> None:
    """Refuse to go on with a run of another kind."""
    made = kind_of(path)
    if made is RunKind.NETWORK and made is not wanted:
        raise CoterieError(f"{path} holds a {made}, which nothing can go on with; begin again: {made.go_on(path)}.")
    if made is not wanted:
        raise CoterieError(f"{path} holds a {made}; go on with it: {made.go_on(path)}.")


class RunFolder:
    """Writes and reads the folder of one run. Every file is written whole, but for the two logs."""

    def __init__(self, path: Path, kind: RunKind | None = None) -> None:
        self.path = path
        self.kind = kind or kind_of(path)
        self.checkpoint = Checkpoint(self)

    @classmethod
    def create(cls, path: Path, config: str, kind: RunKind = RunKind.SIMULATION) -> RunFolder:
        """A folder for a new run; one that holds anything else is left alone."""
        # all that a run killed at its very start has left
        begun = {KIND_FILE, f"{KIND_FILE}{DRAFT}", f"{CONFIG_FILE}{DRAFT}"}
        if path.exists() and (not path.is_dir() or any(file.name not in begun for file in path.iterdir())):
            if (path / RESULT_FILE).is_file():
                raise CoterieError(f"{path} already holds a run that is finished; choose another --out.")
            held = kind_of(path)
            lasting = held is not RunKind.NETWORK and (path / CONFIG_FILE).is_file()
            how = f", or go on with it: {held.go_on(path)}" if lasting else ""
            raise CoterieError(f"{path} already holds something; choose another --out{how}.")
        folder = cls(path, kind)
        folder.write(KIND_FILE, f"{kind}\n".encode())
        folder.write(CONFIG_FILE, config.encode())
        folder.restart()
        return folder

    @classmethod
    def reopen(cls, path: Path, kind: RunKind = RunKind.SIMULATION) -> RunFolder:
        """The folder of a run to go on with, which must be of the same kind."""
        check_kind(path, kind)
        return cls(path, kind)

    @classmethod
    def of_finished(cls, path: Path) -> RunFolder:
        """The folder of a finished run, all its files read; events, panels and config may be missing."""
        if not (path / RESULT_FILE).exists():
            raise unfinished(path)
        folder = cls(path)
        _ = folder.result, folder.metrics, folder.events, folder.from_python, folder.panels
        return folder

    @property
    def go_on(self) -> str:
        """What to do to go on with the run."""
        return self.kind.go_on(self.path)

    @contextmanager
    def starting(self, resume: bool) -> Iterator[None]:
        """Leave nothing behind of a new run that is refused before its first round."""
        try:
            yield
        except Unfinished:
            raise
        except CoterieError:
            events = self.path / EVENTS_FILE
            if not resume and events.is_file() and not events.stat().st_size:
                self.discard()
            raise

    def writing(self, path: Path) -> AbstractContextManager[None]:
        """Turn a failure to write into one sentence."""
        return writing(path, self.go_on)

    def write(self, name: str, data: bytes) -> None:
        """Replace a file as a whole."""
        target = self.path / name
        with self.writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            write_whole(target, data)

    def extend(self, name: str, size: int, data: bytes) -> None:
        """Put bytes behind the first `size` of a file, for good; what was behind them was never counted."""
        target = self.path / name
        with self.writing(target), open(target, "r+b") as file:
            file.truncate(size)
            file.seek(size)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def append(self, name: str, text: str) -> None:
        """Add lines to a log."""
        with self.writing(self.path / name), open(self.path / name, "a", encoding="utf-8") as file:
            file.write(text)

    def log_event(self, event: str, **values: Any) -> None:
        """Add a line to the log of events."""
        self.append(EVENTS_FILE, json.dumps({"event": event, **values}) + "\n")

    def log_metrics(self, row: Row) -> None:
        """Add a round's line to metrics.csv."""
        self.append(METRICS_FILE, metrics_line(["" if row.get(name) is None else row[name] for name in METRICS]))

    def restart(self) -> None:
        """Empty logs: of a new run, or of one that died before its first checkpoint, so before its first round."""
        reached = rounds_logged(self.path)
        if reached:
            raise CoterieError(
                f"The logs in {self.path} reach round {reached} but there is no checkpoint; "
                f"restore {self.path / 'checkpoint'}, or start again with another --out."
            )
        self.write(METRICS_FILE, metrics_line(METRICS).encode())
        self.write(EVENTS_FILE, b"")

    def discard(self) -> None:
        """Remove the folder of a run that never began, so that its place is free for another try."""
        shutil.rmtree(self.path, ignore_errors=True)

    def write_models(self, models: Mapping[str, State], task: Task) -> None:
        """One file per model, with the normalisation of its inputs and outputs; `coterie.load_model` reads it."""
        for name, state in models.items():
            data = encode_model(state, task.normalise, task.target_scale)
            self.write(f"models/{percent_encoded(name, safe='')}.safetensors", data)

    def write_panels(self, panels: Sequence[Panel]) -> None:
        """What the method adds to the report."""
        with self.writing(self.path):
            if panels:
                save_panels(self.path / _PANELS_FILE, panels)

    def check_same(self, config: str) -> None:
        """Refuse to go on, from Python, with other settings than the run began with."""
        if f'name = "{IN_PYTHON}"' not in self.config:  # older folders hold none of them
            return
        changed = changed_settings(self.config, config)
        if changed:
            raise CoterieError(
                f"The run in {self.path} began with other settings ({', '.join(changed)}); go on with the same "
                "ones, or start a new run with another folder."
            )

    @cached_property
    def config(self) -> str:
        """The text of config.toml when this object first read it."""
        file = self.path / CONFIG_FILE
        return file.read_text(encoding="utf-8") if file.is_file() else ""

    @cached_property
    def result(self) -> Mapping[str, Any]:
        """What result.json holds; the title of a method that this process does not know is taken from there."""
        found = read_result(self.path)
        TITLES.setdefault(str(found["method"]), str(found.get("title") or found["method"]))
        return found

    @cached_property
    def metrics(self) -> Sequence[Row]:
        """The rows of metrics.csv."""
        return read_metrics(self.path)

    @cached_property
    def events(self) -> Sequence[Mapping[str, Any]]:
        """The log of events."""
        return read_events(self.path)

    @cached_property
    def panels(self) -> Sequence[Panel]:
        """What the method adds to the report."""
        file = self.path / _PANELS_FILE
        return load_panels(file) if file.exists() else []

    def column(self, name: str) -> list[float | None]:
        """A column of metrics.csv, one value a round; all unknown where the column is missing."""
        return [row.get(name) for row in self.metrics]

    @property
    def from_python(self) -> bool:
        """Whether only a program of the user's has the data and the model."""
        try:
            scenario = tomllib.loads(self.config).get("scenario", {})
        except (OSError, ValueError) as error:
            raise CoterieError(
                f"{self.path / CONFIG_FILE} is not readable TOML ({error}); run it again into a new folder."
            ) from error
        return isinstance(scenario, dict) and scenario.get("name") == IN_PYTHON


def holds_comparison(path: Path) -> bool:
    """Whether a folder is that of a comparison, finished or not."""
    return (path / COMPARE_FILE).is_file() or any(path.glob(f"*-seed*/{CONFIG_FILE}"))


def finished(path: Path) -> CoterieError:
    """What to say of a run that is over, whether or not its report could be written."""
    report = path / REPORT_FILE
    if report.is_file():
        return CoterieError(f"The run in {path} is finished; see {report}.")
    return CoterieError(f"The run in {path} is finished but has no report yet; write it: coterie report {path}")


def unfinished(path: Path) -> CoterieError:
    """Why there is nothing to report in a folder, and what to do about it."""
    if not path.is_dir():
        return CoterieError(f"There is no folder {path}; name the folder of a run or of a comparison.")
    if (path / CONFIG_FILE).is_file():
        return CoterieError(f"The run in {path} is not finished; go on with it: {kind_of(path).go_on(path)}.")
    if holds_comparison(path):
        return CoterieError(
            f"The comparison in {path} is not finished; the same `coterie compare` command goes on with it."
        )
    return CoterieError(f"{path} is neither a run nor a comparison; name another folder.")

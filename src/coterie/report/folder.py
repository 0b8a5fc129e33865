"""Reading what a run left behind, with one clear sentence when it is not what a run leaves behind."""

from __future__ import annotations

import csv
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.core.errors import CoterieError
from coterie.core.panels import Panel, load_panels
from coterie.runs.folder import holds_comparison
from coterie.runs.kind import IN_PYTHON, Kind, kind_of

Column = list[float | None]
_RESULT_KEYS = ("method", "scenario", "seed", "rounds", "clients", "accuracy", "worst_accuracy")


@dataclass(frozen=True)
class RunFolder:
    """The files of one finished run."""

    path: Path
    result: Mapping[str, Any]
    metrics: Mapping[str, Column]
    events: Sequence[Mapping[str, Any]]
    config: str
    panels: Sequence[Panel]

    def column(self, name: str) -> Column:
        """A column of metrics.csv, one value a round; all unknown where the column is missing."""
        return self.metrics.get(name, [None] * len(self.rounds))

    @property
    def kind(self) -> Kind:
        """How the run was made."""
        return kind_of(self.path)

    @property
    def from_python(self) -> bool:
        """Whether only a program of the user's has the data and the model."""
        scenario = tomllib.loads(self.config).get("scenario", {})
        return isinstance(scenario, dict) and scenario.get("name") == IN_PYTHON

    @property
    def rounds(self) -> Column:
        """The round numbers that metrics.csv has."""
        return self.metrics.get("round", [])


@dataclass(frozen=True)
class CompareFolder:
    """A comparison and the runs it is made of."""

    path: Path
    summary: Mapping[str, Any]
    runs: Sequence[RunFolder]


def read_run(path: Path) -> RunFolder:
    """Read a run folder; events, panels and config may be missing, the result may not."""
    result = _object(path / "result.json")
    missing = [key for key in _RESULT_KEYS if key not in result]
    if missing:
        raise CoterieError(
            f"{path / 'result.json'} lacks {', '.join(missing)}; run the experiment again into a new folder."
        )
    for key in ("clients", "rounds"):
        if not isinstance(result[key], int):
            raise CoterieError(
                f"{path / 'result.json'} has {key} = {result[key]!r}, which is no whole number; "
                "run the experiment again into a new folder."
            )
    _check_lengths(path, result)
    panels = path / "panels.json"
    return RunFolder(
        path=path,
        result=result,
        metrics=_metrics(path / "metrics.csv"),
        events=_events(path / "events.jsonl"),
        config=_config(path / "config.toml"),
        panels=load_panels(panels) if panels.exists() else [],
    )


def read_compare(path: Path) -> CompareFolder:
    """Read a comparison folder and every run it names."""
    summary = _object(path / "compare.json")
    if not isinstance(summary.get("rows"), list) or not isinstance(summary.get("runs"), list):
        raise CoterieError(f"{path / 'compare.json'} lacks its rows or runs; run the comparison again.")
    for row in summary["rows"]:
        if not isinstance(row, dict) or "method" not in row:
            raise CoterieError(f"{path / 'compare.json'} has a row without a method; run the comparison again.")
    return CompareFolder(path, summary, [read_run(path / str(name)) for name in summary["runs"]])


def _unfinished(folder: Path) -> CoterieError:
    """Why there is nothing to report in a folder, and what to do about it."""
    if not folder.is_dir():
        return CoterieError(f"There is no folder {folder}; name the folder of a run or of a comparison.")
    if (folder / "config.toml").is_file():
        return CoterieError(f"The run in {folder} is not finished; go on with it: {kind_of(folder).go_on(folder)}.")
    if holds_comparison(folder):
        return CoterieError(
            f"The comparison in {folder} is not finished; the same `coterie compare` command goes on with it."
        )
    return CoterieError(f"{folder} is neither a run nor a comparison; name another folder.")


def _object(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise _unfinished(path.parent)
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CoterieError(f"{path} cannot be read ({error}); run it again into a new folder.") from error
    if not isinstance(value, dict):
        raise CoterieError(f"{path} is not a JSON object; run it again into a new folder.")
    return value


def _check_lengths(path: Path, result: Mapping[str, Any]) -> None:
    """Lists by client must agree with each other."""
    lists = {key: result.get(key) for key in ("client_ids", "clusters", "truth", "per_client_accuracy")}
    lengths = {key: len(value) if isinstance(value, list) else -1 for key, value in lists.items() if value is not None}
    if -1 in lengths.values() or len(set(lengths.values())) > 1:
        raise CoterieError(
            f"The lists by client in {path / 'result.json'} do not agree in length; "
            "run the experiment again into a new folder."
        )


def _metrics(path: Path) -> dict[str, Column]:
    if not path.exists():
        return {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            columns: dict[str, Column] = {name: [] for name in reader.fieldnames or ()}
            for row in reader:
                for name, values in columns.items():
                    values.append(float(row[name]) if row[name] else None)
    except (OSError, ValueError, csv.Error, KeyError, TypeError) as error:
        raise CoterieError(
            f"{path} cannot be read as a table of numbers ({error}); run `coterie resume {path.parent}`."
        ) from error
    if columns and "round" not in columns:
        raise CoterieError(f"{path} has no column 'round'; run the experiment again into a new folder.")
    return columns


def _events(path: Path) -> list[dict[str, Any]]:
    """The events that can be read: a run that was killed may have left half a last line."""
    if not path.exists():
        return []
    events: list[dict[str, Any]] = []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for index, line in enumerate(lines):
        try:
            event = json.loads(line)
        except ValueError as error:
            if index == len(lines) - 1:
                break
            raise CoterieError(
                f"Line {index + 1} of {path} is not JSON ({error}); run `coterie resume {path.parent}`."
            ) from error
        if isinstance(event, dict):
            events.append(event)
    return events


def _config(path: Path) -> str:
    """The text of config.toml, which must at least be TOML."""
    if not path.exists():
        return ""
    try:
        text = path.read_text(encoding="utf-8")
        tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise CoterieError(f"{path} is not readable TOML ({error}); run it again into a new folder.") from error
    return text

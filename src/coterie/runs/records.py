"""The records of a run: a line of metrics and one of events per round, and its result. Written and read here alone."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.core.errors import CoterieError

METRICS = (
    "round", "accuracy", "worst_accuracy", "score", "worst_score", "loss", "n_clusters", "ari", "unseen_accuracy",
    "bytes_down", "bytes_up",
    "bytes_evaluation", "failures", "seconds",
)  # fmt: skip
METRICS_FILE, EVENTS_FILE, RESULT_FILE, CONFIG_FILE = "metrics.csv", "events.jsonl", "result.json", "config.toml"
COMPARE_FILE = "compare.json"
REPORT_FILE = "report.html"
_RESULT_KEYS = ("method", "scenario", "seed", "rounds", "clients", "accuracy", "worst_accuracy")
_BY_CLIENT = ("client_ids", "clusters", "truth", "per_client_accuracy")
Row = dict[str, Any]


def metrics_line(cells: Sequence[Any]) -> str:
    """A line of metrics.csv."""
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()


def read_metrics(folder: Path) -> list[Row]:
    """The rows of a run's metrics.csv; an empty cell is None. Without the file there are none."""
    path = folder / METRICS_FILE
    if not path.exists():
        return []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            names = list(reader.fieldnames or ())
            rows = [{name: float(row[name]) if row[name] else None for name in names} for row in reader]
    except (OSError, ValueError, csv.Error, KeyError, TypeError) as error:
        raise CoterieError(
            f"{path} cannot be read as a table of numbers ({error}); restore it, or delete it and do without: "
            f"`coterie report {folder}`."
        ) from error
    if names and "round" not in names:
        raise CoterieError(f"{path} has no column 'round'; run the experiment again into a new folder.")
    return rows


def read_events(folder: Path) -> list[dict[str, Any]]:
    """The events of a run that can be read: a run that was killed may have left half a last line."""
    path = folder / EVENTS_FILE
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
                f"Line {index + 1} of {path} is not JSON ({error}); run `coterie resume {folder}`."
            ) from error
        if isinstance(event, dict):
            events.append(event)
    return events


def rounds_logged(folder: Path) -> int:
    """How many rounds the logs hold, even if the last one is half a line."""
    files = (folder / name for name in (METRICS_FILE, EVENTS_FILE))
    metrics, events = (file.read_text(errors="replace").splitlines() if file.is_file() else [] for file in files)
    return max(len(metrics[1:]), sum(line.startswith('{"event": "round"') for line in events))


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CoterieError(f"{path} cannot be read ({error}); run it again into a new folder.") from error
    if not isinstance(value, dict):
        raise CoterieError(f"{path} is not a JSON object; run it again into a new folder.")
    return value


def read_result(folder: Path) -> Mapping[str, Any]:
    """The result of a finished run, with all that a report needs."""
    path = folder / RESULT_FILE
    result = read_object(path)
    missing = [key for key in _RESULT_KEYS if key not in result]
    if missing:
        raise CoterieError(f"{path} lacks {', '.join(missing)}; run the experiment again into a new folder.")
    for key in ("clients", "rounds"):
        if not isinstance(result[key], int):
            raise CoterieError(
                f"{path} has {key} = {result[key]!r}, which is not a whole number; "
                "run the experiment again into a new folder."
            )
    lists = {key: result[key] for key in _BY_CLIENT if result.get(key) is not None}
    lengths = {len(value) if isinstance(value, list) else -1 for value in lists.values()}
    if -1 in lengths or len(lengths) > 1:
        raise CoterieError(
            f"The lists by client in {path} do not agree in length; run the experiment again into a new folder."
        )
    return result

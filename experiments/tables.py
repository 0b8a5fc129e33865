"""A table of a paper, made again: rows x seeds of runs, the paper's number beside ours."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.report.observers import ReportWriter
from coterie.runs.compare import once
from coterie.runs.config import from_tables
from coterie.runs.records import read_events, read_metrics
from coterie.runs.view import NotesOnly, Views

Note = Callable[[str], None]
_COLUMNS = {
    "accuracy": ("accuracy %", 100.0, 2),
    "worst_accuracy": ("worst client %", 100.0, 2),
    "unseen_accuracy": ("unseen clients %", 100.0, 2),
    "unseen_sample_accuracy": ("images of unseen clients %", 100.0, 2),
    "ari": ("ARI", 1.0, 2),
    "n_clusters": ("clusters", 1.0, 1),
    "bytes_down": ("MB down", 1e-6, 1),
    "bytes_up": ("MB up", 1e-6, 1),
    "seconds": ("seconds", 1.0, 0),
    "rounds_to_target": ("rounds to target", 1.0, 1),
    "bytes_to_target": ("MB to target", 1e-6, 1),
    "seconds_to_target": ("seconds to target", 1.0, 0),
    "precision": ("precision", 1.0, 3),
    "recall": ("recall", 1.0, 3),
    "received": ("models received per peer", 1.0, 1),
    "lambda": ("lambda", 1.0, 2),
    "evenness": ("evenness", 1.0, 2),
    "largest domain": ("largest domain", 1.0, 2),
}
_LISTS = {
    "domains": "samples by domain, largest first",
    "adjacency": "A: diagonal; the rest",
}
"""Columns whose values are lists: shares of the domains, and a square matrix row by row."""
DOMAIN_COLUMNS = ("lambda", "evenness", "largest domain", "domains", "adjacency")
"""What FedCG logs in every round."""
_LOGGED = ("precision", "recall", "received", *DOMAIN_COLUMNS)
"""What a method logs in every round: peer-to-peer ones, and those with domains."""
_AS_WRITTEN: Mapping[str, Any] = {"settings": {"aggregate": "mean"}}
"""Papers average plainly, and so do the rows of their tables unless they say otherwise."""
_TO_TARGET = "to_target"
_SHOWN = 8


def tables_of(paper: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tables of a paper's file; one that names another in `rows_of` has its rows."""
    tables = paper.get("table", [])
    rows = {table["name"]: table["row"] for table in tables if "row" in table}
    return [{"row": rows[table.get("rows_of", table["name"])], **table} for table in tables]


def run_table(table: Mapping[str, Any], out: Path, seeds: Sequence[int], note: Note) -> str:
    """Run every row with every seed (finished runs are kept) and set the means beside the paper's numbers.

    A `[[table.row]]` has a `label`, the configuration it adds to the table's `[table.base]`, and maybe `paper`, the
    published numbers by metric. With a `target` accuracy, columns may tell what reaching it cost.
    """
    columns = list(table.get("columns", ["accuracy", "ari", "seconds"]))
    lines = []
    for row in table["row"]:
        config = from_tables(_merged(_merged(_AS_WRITTEN, table.get("base", {})), row.get("run", {})))
        results = []
        for seed in seeds:
            folder = out / _folder(row["label"]) / f"seed{seed}"
            results.append(
                {
                    **once(config, seed, folder, Views(NotesOnly(note), ReportWriter())),
                    **_cost(folder, table.get("target")),
                    **logged(folder),
                }
            )
            note(f"{row['label']}, seed {seed}: accuracy {results[-1]['accuracy']:.4f}, ARI {results[-1]['ari']}")
        cells = [cell(column, [result[column] for result in results]) for column in columns]
        paper = row.get("paper", {})
        published = [str(paper.get(column, "")) for column in columns if _cited(table, column)]
        lines.append([row["label"], *published, *cells])
    cited = [f"paper: {heading(column)}" for column in columns if _cited(table, column)]
    text = markdown(["", *cited, *map(heading, columns)], lines)
    (out / "table.md").write_text(text)
    return text


def logged(folder: Path) -> dict[str, Any]:
    """What the method logged in the last round."""
    last: Mapping[str, Any] = next(
        (event["log"] for event in reversed(read_events(folder)) if event["event"] == "round"), {}
    )
    return {name: last.get(name) for name in _LOGGED}


def _cost(folder: Path, target: float | None) -> dict[str, float | None]:
    """Rounds, bytes both ways (without evaluation) and seconds until the mean accuracy first reached the target."""
    names = [f"{what}_{_TO_TARGET}" for what in ("rounds", "bytes", "seconds")]
    for row in read_metrics(folder) if target is not None else []:
        if (row["accuracy"] or 0.0) >= float(target or 0):
            sent = (row["bytes_down"] or 0.0) + (row["bytes_up"] or 0.0)
            return dict(zip(names, (row["round"], sent, row["seconds"]), strict=True))
    return dict.fromkeys(names)


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def spread(values: Sequence[float], digits: int) -> str:
    """Mean and, over several seeds, the standard deviation."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean


def heading(column: str) -> str:
    """What a column is called."""
    return _LISTS[column] if column in _LISTS else _COLUMNS[column][0]


def cell(column: str, values: Sequence[Any]) -> str:
    """The values of all seeds in one cell; None where a run has none."""
    if column in _LISTS:
        lists = [value for value in values if value is not None]
        return (_shares if column == "domains" else _matrices)(lists) if lists else "–"
    _, scale, digits = _COLUMNS[column]
    known = [value * scale for value in values if value is not None]
    if column.endswith(_TO_TARGET) and len(known) < len(values):
        return f"{len(known)} of {len(values)} seeds" if known else "never"
    return spread(known, digits) if known else "–"


def _shares(histograms: Sequence[Sequence[float]]) -> str:
    """Means over the seeds, place by place: the numbers of the domains mean nothing across seeds."""
    places = zip(*(sorted(shares, reverse=True) for shares in histograms), strict=True)
    means = [f"{statistics.fmean(place):.2f}" for place in places]
    return " ".join(means[:_SHOWN]) + " …" * (len(means) > _SHOWN)


def _matrices(matrices: Sequence[Sequence[float]]) -> str:
    """The smallest and the largest entry over all seeds, of the diagonal and of the rest."""
    size = math.isqrt(len(matrices[0]))
    diagonal = [entry for matrix in matrices for entry in matrix[:: size + 1]]
    rest = [entry for matrix in matrices for place, entry in enumerate(matrix) if place % (size + 1)]
    return "; ".join(_range(part) for part in (diagonal, rest) if part)


def _range(values: Sequence[float]) -> str:
    least, most = f"{min(values):.3f}", f"{max(values):.3f}"
    return least if least == most else f"{least} to {most}"


def _cited(table: Mapping[str, Any], column: str) -> bool:
    return any(column in row.get("paper", {}) for row in table["row"])


def _merged(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    merged = json.loads(json.dumps(base))
    for key, value in own.items():
        merged[key] = {**merged.get(key, {}), **value} if isinstance(value, Mapping) else value
    return merged  # type: ignore[no-any-return]


def _folder(label: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in label)

"""The stress matrix: every method under every condition, in points lost against Oracle, ARI and bytes."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from coterie.core.errors import CoterieError, Unfinished
from coterie.methods import METHODS
from coterie.report.page import Page, card
from coterie.runs.config import from_tables
from coterie.runs.experiment import execute
from experiments.conditions import CONDITIONS, KINDS, Condition, Kind
from experiments.heat_map import Cell, heat_map
from experiments.parallel import side_by_side
from experiments.registry import experiment
from experiments.tables import Note, markdown

_KEPT = ("accuracy", "finetuned_accuracy", "worst_accuracy", "ari", "n_clusters", "bytes_down", "bytes_up", "seconds")
Record = Mapping[str, Any]


def records(file: Path) -> list[dict[str, Any]]:
    """The runs that a file of results holds, one a line."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


def run_cell(kind: Kind, condition: Condition, method: str, seed: int) -> dict[str, Any]:
    """One run; a method that refuses the condition says why."""
    where = {"data": kind.name, "condition": condition.name, "method": method, "seed": seed}
    return {**where, **run_tables({**condition.tables(method, kind), "seed": seed})}


def run_tables(tables: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of one run; why it was refused, if it was."""
    try:
        result = execute(from_tables(tables), None)
    except Unfinished:
        raise
    except CoterieError as error:
        return {"refused": str(error)}
    found = json.loads(result.to_json())
    return {key: found[key] for key in _KEPT if key in found}


def run_missing(
    file: Path, kind: Kind, methods: Iterable[str], seeds: Sequence[int], note: Note, where: Sequence[str] = ()
) -> None:
    """Run what the file does not hold yet, a process for each core, and write each run to it as soon as it is finished.

    `where` names conditions; without it there are all of them.
    """
    there = {(r["data"], r["condition"], r["method"], r["seed"]) for r in records(file)}
    chosen = [condition for condition in CONDITIONS if not where or condition.name in where]
    missing = [
        (kind, condition, method, seed)
        for seed, condition, method in product(seeds, chosen, methods)
        if (kind.name, condition.name, method, seed) not in there
    ]
    for (_, condition, method, seed), found in side_by_side(run_cell, missing):
        with file.open("a") as lines:
            lines.write(json.dumps(found) + "\n")
        said = found.get("refused") or f"accuracy {100 * found['accuracy']:.1f} %, ARI {found['ari']}"
        note(f"{kind.name}, {condition.name}, {method}, seed {seed}: {said}")


def summarised(found: Sequence[Record], kind: str) -> dict[tuple[str, str], Cell]:
    """A cell for each method and condition: means over the seeds for which Oracle was run too."""
    by: dict[tuple[str, str], dict[int, Record]] = defaultdict(dict)
    for record in found:
        if record["data"] == kind:
            by[record["method"], record["condition"]][record["seed"]] = record
    cells = {}
    for (method, condition), runs in by.items():
        oracle = by.get(("oracle", condition), {})
        fine = {s: r for s, r in runs.items() if "accuracy" in r and "accuracy" in oracle.get(s, {})}
        if not fine:
            cells[method, condition] = Cell(None, None, None, len(runs))
            continue
        lost = [100 * (oracle[s]["accuracy"] - r["accuracy"]) for s, r in fine.items()]
        ari = [r["ari"] for r in fine.values() if r["ari"] is not None]
        sent = [r["bytes_down"] + r["bytes_up"] for r in fine.values()]
        cells[method, condition] = Cell(
            statistics.fmean(lost), statistics.fmean(ari) if ari else None, statistics.fmean(sent), len(fine)
        )
    return cells


def tables(cells: Mapping[tuple[str, str], Cell]) -> str:
    """Two tables, points lost and ARI; a row a method, a column a condition."""
    methods = [m for m in METHODS if any(key[0] == m for key in cells)]
    conditions = [c for c in CONDITIONS if any(key[1] == c.name for key in cells)]
    lost, ari = [], []
    for method in methods:
        row = [cells.get((method, condition.name)) for condition in conditions]
        lost.append([method, *("–" if c is None or c.lost is None else f"{c.lost:.1f}" for c in row)])
        ari.append([method, *("–" if c is None or c.ari is None else f"{c.ari:.2f}" for c in row)])
    head = ["", *(condition.label for condition in conditions)]
    return f"Points lost against Oracle\n\n{markdown(head, lost)}\nARI\n\n{markdown(head, ari)}"


def _stress(kind: Kind, out: Path, seeds: Sequence[int], note: Note) -> str:
    file = out / "runs.jsonl"
    run_missing(file, kind, METHODS, seeds, note)
    return drawn(file, kind, out)


def drawn(file: Path, kind: Kind, out: Path) -> str:
    """Tables, and the heat map as a picture and as a page, from stored results."""
    cells = summarised(records(file), kind.name)
    picture = heat_map(cells, [m for m in METHODS if any(k[0] == m for k in cells)], CONDITIONS, kind.label)
    (out / f"stress-{kind.name}.svg").write_text(picture)
    page = Page(
        title="Stress matrix · coterie",
        eyebrow="coterie · stress matrix",
        headline=f"Every method where its paper never went: {kind.label}",
        meta=f"{sum(cell.runs for cell in cells.values())} runs",
    )
    note = "Points of mean accuracy lost against Oracle under the same condition and seed; below it the ARI."
    page.section("Heat map", [card("Points lost", f"<div class='scroll'>{picture}</div>", note, wide=True)])
    page.write(out / f"stress-{kind.name}.html")
    text = tables(cells)
    (out / f"table-{kind.name}.md").write_text(text)
    return text


@experiment("stress-digits", "the stress matrix on 8 x 8 digits", minutes=25, seeds=(0, 1, 2))
def digits(out: Path, seeds: Sequence[int], note: Note) -> str:
    """Every method under every condition, digits."""
    return _stress(KINDS[0], out, seeds, note)


@experiment("stress-fashion", "the stress matrix on Fashion-MNIST, made small", minutes=120, seeds=(0, 1, 2))
def fashion(out: Path, seeds: Sequence[int], note: Note) -> str:
    """Every method under every condition, Fashion-MNIST."""
    return _stress(KINDS[1], out, seeds, note)


@experiment("stress-mnist", "the stress matrix on MNIST with LeNet-5, made small", minutes=240, seeds=(0, 1, 2))
def mnist(out: Path, seeds: Sequence[int], note: Note) -> str:
    """Every method under every condition, MNIST."""
    return _stress(KINDS[2], out, seeds, note)

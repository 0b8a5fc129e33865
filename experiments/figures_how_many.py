"""`k = "auto"`: how many groups methods find that are told nothing, and what it costs (docs/results/how-many.md)."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from coterie.runs.config import from_tables
from coterie.runs.experiment import execute
from experiments.conditions import CONDITIONS, GIVEN_K, KINDS, Condition
from experiments.figures_stress import records
from experiments.registry import experiment
from experiments.tables import Note, markdown

_GROUPS = ("home", "two-groups", "eight", "one", "one-skewed")
_ALSO = ("swap",)
_ASKING = ("ifca", "fedsem", "md-icfl", "fedcg")
_ROUNDS_OF_FEW, _FEW = 60, 0.2
Record = Mapping[str, Any]


def conditions() -> list[Condition]:
    """As in the stress matrix, with everybody in every round and with a fifth of the clients."""
    named = [condition for condition in CONDITIONS if condition.name in (*_GROUPS, *_ALSO)]
    named.sort(key=lambda condition: (*_GROUPS, *_ALSO).index(condition.name))
    few = [replace(each, name=f"{each.name}-fifth", rounds=_ROUNDS_OF_FEW, fraction=_FEW) for each in named]
    return [*named, *few]


class _Listening:
    """Remembers in which round the number was known."""

    def __init__(self, method: str) -> None:
        self.method, self.round = method, 0

    def update(self, row: Record) -> None: ...

    def note(self, text: str) -> None:
        if text.startswith(f"{self.method}, round "):
            self.round = int(text.split("round ")[1].split(":")[0])


def found(condition: Condition, method: str, seed: int) -> dict[str, Any]:
    """One run of a method that is told nothing; FedAvg needs to be told nothing."""
    tables = condition.tables(method, KINDS[0])
    if method in GIVEN_K:
        tables["settings"][GIVEN_K[method]] = "auto"
    view = _Listening(method)
    result = execute(from_tables({**tables, "seed": seed}), None, view=view)
    return {
        "condition": condition.name,
        "method": method,
        "seed": seed,
        "accuracy": result.accuracy,
        "ari": result.ari,
        "groups": result.state.number if method in GIVEN_K else None,
        "known": view.round,
        "bytes": result.bytes_down + result.bytes_up,
    }


@experiment(
    "how-many", "methods with a number of groups that are told nothing, on 8 x 8 digits", minutes=15, seeds=(0, 1, 2)
)
def how_many(out: Path, seeds: Sequence[int], note: Note) -> str:
    """Runs what is not stored yet, then the table."""
    file = out / "runs.jsonl"
    there = {(r["condition"], r["method"], r["seed"]) for r in records(file)}
    for seed in seeds:
        for condition in conditions():
            for method in ("fedavg", *_ASKING):
                if (condition.name, method, seed) not in there:
                    made = found(condition, method, seed)
                    with file.open("a") as lines:
                        lines.write(json.dumps(made) + "\n")
                    note(f"{condition.name}, {method}, seed {seed}: {made['groups']} groups, ARI {made['ari']}")
    text = table(records(file))
    (out / "table.md").write_text(text)
    return text


def table(runs: Sequence[Record]) -> str:
    """A row a condition: FedAvg, then each method: groups found, ARI, accuracy, bytes in units of FedAvg's."""
    lines = []
    for condition in conditions():
        mine = [r for r in runs if r["condition"] == condition.name]
        plain = {r["seed"]: r for r in mine if r["method"] == "fedavg"}
        line = [f"{condition.label}{'; a fifth a round' if condition.fraction < 1 else ''}", str(condition.groups)]
        line.append(_percent(list(plain.values())))
        for method in _ASKING:
            own = [r for r in mine if r["method"] == method and r["seed"] in plain]
            numbers = " ".join(str(r["groups"]) for r in own)
            ari = " ".join(f"{r['ari']:.2f}" for r in own)
            rounds = " ".join(str(r["known"]) for r in own)
            sent = statistics.fmean(r["bytes"] / plain[r["seed"]]["bytes"] for r in own) if own else 0.0
            line += [f"{numbers} ({rounds})", ari, _percent(own), f"{sent:.2f}"]
        lines.append(line)
    parts = ("groups (round)", "ARI", "%", "bytes")
    head = ["condition", "groups", "FedAvg %", *(f"{method}: {part}" for method in _ASKING for part in parts)]
    return markdown(head, lines)


def _percent(runs: Sequence[Record]) -> str:
    return f"{100 * statistics.fmean(r['accuracy'] for r in runs):.1f}" if runs else "–"

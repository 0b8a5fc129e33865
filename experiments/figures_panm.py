"""PANM's figures 2 and 3: which neighbours stage one finds, round by round, with which metric, against Theorem 1."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.report.observers import ReportWriter
from coterie.runs.compare import once
from coterie.runs.config import from_tables
from coterie.runs.records import read_events
from coterie.runs.view import NotesOnly, Views
from experiments.panm_theory import confidence, simulated_confidence
from experiments.registry import experiment
from experiments.tables import Note, markdown

_CANDIDATES, _NEIGHBOURS = 10, 5
_SHOWN = (1, 2, 3, 4, 5, 7, 10, 15, 20, 30)


@dataclass(frozen=True)
class _Setting:
    """Whose data, how many peers, and how they train."""

    scenario: str
    peers: int
    training: Mapping[str, float]


_FASHION = _Setting("rotated-fashion", 100, {"epochs": 3, "batch": 128, "lr": 0.08, "lr_decay": 0.99, "momentum": 0.9})
_DIGITS = _Setting("rotated-digits", 40, {"epochs": 5, "lr_decay": 0.99})


def _stage_one(
    setting: _Setting,
    folder: Path,
    seed: int,
    note: Note,
    *,
    method: str,
    groups: int,
    rounds: int,
    settings: Mapping[str, Any],
) -> list[dict[str, float]]:
    """What a method logs in each round of its stage one."""
    config = from_tables(
        {
            "method": method,
            "rounds": rounds,
            "evaluate_every": rounds,
            "checkpoint_seconds": 300.0,
            "scenario": {"name": setting.scenario, "groups": groups},
            "settings": {**setting.training, "t1": rounds + 1, "l": _CANDIDATES, "k": _NEIGHBOURS, **settings},
        }
    )
    once(config, seed, folder, Views(NotesOnly(note), ReportWriter()))
    return [event["log"] for event in read_events(folder) if event["event"] == "round"]


def _columns(rounds: int) -> list[int]:
    return [number for number in _SHOWN if number <= rounds]


def _row(label: str, values: Sequence[float], rounds: int) -> list[str]:
    return [label, *(f"{values[number - 1]:.3f}" for number in _columns(rounds))]


def _means(runs: Sequence[Sequence[Mapping[str, float]]], name: str) -> list[float]:
    return [statistics.fmean(run[number][name] for run in runs) for number in range(len(runs[0]))]


@experiment("panm-figure2", "PANM Figure 2: theta1, theta2 or both, on Fashion-MNIST in two rotations", minutes=4)
def figure_2(out: Path, seeds: Sequence[int], note: Note) -> str:
    """Precision of the neighbours over the rounds of stage one, with each part of the metric and with both."""
    return _written(out, _metrics(_FASHION, out, seeds, note, groups=2, rounds=30))


@experiment("panm-figure3", "PANM Figure 3: stage one against Theorem 1, two and four rotations", minutes=6)
def figure_3(out: Path, seeds: Sequence[int], note: Note) -> str:
    """Precision, and the share of peers with none but own neighbours, beside the theorem's probability of that."""
    return _written(out, "\n".join(_theory(_FASHION, out, seeds, note, groups=groups, rounds=15) for groups in (2, 4)))


@experiment(
    "panm-digits-figures", "PANM Figures 2 and 3 on scikit-learn's digits: 40 peers, two and four rotations",
    minutes=2, seeds=range(3),
)  # fmt: skip
def digits_figures(out: Path, seeds: Sequence[int], note: Note) -> str:
    """The same small, without any download."""
    parts = []
    for groups in (2, 4):
        parts.append(_theory(_DIGITS, out, seeds, note, groups=groups, rounds=15))
        parts.append(_metrics(_DIGITS, out / f"metrics-{groups}", seeds, note, groups=groups, rounds=15))
    return _written(out, "\n".join(parts))


def _written(out: Path, text: str) -> str:
    (out / "table.md").write_text(text)
    return text


def _metrics(setting: _Setting, out: Path, seeds: Sequence[int], note: Note, *, groups: int, rounds: int) -> str:
    lines = []
    for label, alpha in (("theta1 and theta2", 0.5), ("theta1", 1.0), ("theta2", 0.0)):
        runs = [
            _stage_one(
                setting, out / f"alpha{alpha:g}" / f"seed{seed}", seed, note,
                method="panm", groups=groups, rounds=rounds, settings={"alpha": alpha, "weigh": "fixed"},
            )
            for seed in seeds
        ]  # fmt: skip
        lines.append(_row(label, _means(runs, "precision"), rounds))
        note(f"{label}: {lines[-1]}")
    return markdown([f"{groups} rotations: precision in round", *map(str, _columns(rounds))], lines)


def _theory(setting: _Setting, out: Path, seeds: Sequence[int], note: Note, *, groups: int, rounds: int) -> str:
    numbers = (setting.peers, setting.peers // groups, _CANDIDATES, _NEIGHBOURS)
    lines = [
        _row("Theorem 1: all k of its own group", confidence(*numbers, rounds), rounds),
        _row("the same, simulated", simulated_confidence(*numbers, rounds, trials=2000, seed=0), rounds),
        _row("Theorem 1 for PENS", confidence(*numbers, 1) * rounds, rounds),
    ]
    for label, method, settings in (
        ("PANMGrad", "panm", {"metric": "grad", "weigh": "fixed"}),
        ("PANMLoss", "panm", {"metric": "loss"}),
        ("PENS", "pens", {}),
    ):
        runs = [
            _stage_one(
                setting, out / f"{label}-{groups}" / f"seed{seed}", seed, note,
                method=method, groups=groups, rounds=rounds, settings=settings,
            )
            for seed in seeds
        ]  # fmt: skip
        lines.append(_row(f"{label}: all k of its own group", _means(runs, "pure"), rounds))
        lines.append(_row(f"{label}: precision", _means(runs, "precision"), rounds))
        note(f"{groups} groups, {label}: {lines[-1]}")
    return markdown([f"{groups} rotations, round", *map(str, _columns(rounds))], lines)

"""auto on a small table whose columns are measured otherwise in half of the clinics (docs/results/auto.md)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer
from torch import nn

import coterie
from coterie.data.own import OwnPopulation, from_arrays
from experiments.registry import experiment
from experiments.tables import Note, markdown

CLINICS, ROUNDS = 14, 30
METHODS = ("auto", "fedavg", "oracle", "local")
Table = NDArray[np.float64]
Labels = NDArray[np.int64]


def _units(x: Table, y: Labels, whole: Table) -> tuple[Table, Labels]:
    """Ten columns counted from the other end, ten in units ten times as large."""
    return np.hstack([whole[:, :10].max(0) - x[:, :10], x[:, 10:20], 0.1 * x[:, 20:]]), y


SHIFTS: dict[str, Callable[[Table, Labels, Table], tuple[Table, Labels]]] = {
    "units": _units,
    "offset": lambda x, y, whole: (x + 0.7 * whole.std(0), y),
    "labels": lambda x, y, _: (x, 1 - y),
    "none": lambda x, y, _: (x, y),
}


def clinics(shift: str, seed: int) -> OwnPopulation:
    """569 patients dealt to the clinics; every second clinic has the shift."""
    data = load_breast_cancer()
    parts = np.array_split(np.random.default_rng(seed).permutation(len(data.target)), CLINICS)
    clients, groups = {}, {}
    for number, part in enumerate(parts):
        x, y = data.data[part], data.target[part]
        if number % 2:
            x, y = SHIFTS[shift](x, y, data.data)
        clients[f"c{number:02d}"], groups[f"c{number:02d}"] = (x.astype(np.float32), y), number % 2
    return from_arrays(clients, groups=groups, seed=seed)


def network() -> nn.Module:
    """For the 30 columns."""
    return nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Linear(32, 2))


@experiment("auto-clinics", "auto where half of the clinics measure otherwise", minutes=3, seeds=range(700, 706))
def against(out: Path, seeds: Sequence[int], note: Note) -> str:
    """Mean accuracies of auto, FedAvg, Oracle and local training, and how many groups auto has found."""
    lines = []
    for shift in SHIFTS:
        found: dict[str, list[float]] = {name: [] for name in METHODS}
        groups = []
        for seed in seeds:
            population = clinics(shift, seed)
            for name in METHODS:
                result = coterie.run(name, population, network, rounds=ROUNDS, seed=seed)
                found[name].append(100 * result.accuracy)
                if name == "auto":
                    groups.append(str(result.n_clusters))
        lines.append([shift, *(f"{statistics.fmean(found[name]):.1f}" for name in METHODS), " ".join(groups)])
        note(" | ".join(lines[-1]))
    text = markdown(["shift", *METHODS, "groups of auto"], lines)
    (out / "table.md").write_text(text)
    return text

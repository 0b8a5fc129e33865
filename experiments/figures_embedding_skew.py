"""Embedding clustering of clients that lack classes: what the default rule finds (docs/results/embedding.md)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from sklearn.metrics import adjusted_rand_score

from coterie.core.task import Task
from coterie.data import build
from coterie.data.scenarios import SCENARIOS
from coterie.methods.embedding.method import Embedding
from coterie.models import build_model
from coterie.simulation.simulator import Simulator
from experiments.registry import experiment
from experiments.tables import Note, markdown

_SMALL: dict[str, Any] = {"clients": 40, "samples": 200, "test_samples": 20}
_FLIPS = {"rotated digits, P = 0.15": 0.15}
_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "rotated digits": ("rotated-digits", {}),
    "rotated digits, P = 0.15": ("rotated-digits", {}),
    "rotated digits, alpha = 3": ("rotated-digits", {"alpha": 3.0}),
    "rotated digits, alpha = 0.5": ("rotated-digits", {"alpha": 0.5}),
    "rotated digits, shards": ("rotated-digits", {"partition": "shards"}),
    "rotated digits, one group": ("rotated-digits", {"groups": 1}),
    "rotated digits, one group, alpha = 0.5": ("rotated-digits", {"groups": 1, "alpha": 0.5}),
    "rotated Fashion-MNIST, alpha = 3": ("rotated-fashion", {**_SMALL, "alpha": 3.0}),
    "rotated Fashion-MNIST, one group, alpha = 3": ("rotated-fashion", {**_SMALL, "alpha": 3.0, "groups": 1}),
    "rotated MNIST, alpha = 3": ("rotated-mnist", {**_SMALL, "alpha": 3.0}),
}


@experiment("embedding-skew", "clients that lack classes: ARI of the default rule", minutes=6, seeds=range(61, 66))
def skew(out: Path, seeds: Sequence[int], note: Note) -> str:
    """P = 0.1 but where another is said, a federated autoencoder; seeds that served for no choice."""
    lines = []
    for case in _CASES:
        found = [_kept(out, case, seed, note) for seed in seeds]
        cells = ", ".join(f"{ari:.2f} ({groups})" for ari, groups in found)
        lines.append([case, f"{median(ari for ari, _ in found):.2f}", cells])
    text = markdown(["data", "median", "ARI (groups found)"], lines)
    (out / "table.md").write_text(text)
    return text


def _kept(out: Path, case: str, seed: int, note: Note) -> tuple[float, int]:
    file = out / f"{list(_CASES).index(case)}-seed{seed}.json"
    if not file.is_file():
        file.write_text(json.dumps(_found(case, seed)))
    ari, groups = json.loads(file.read_text())
    note(f"{case}, seed {seed}: ARI {ari:.2f}, {groups} groups")
    return ari, groups


def _found(case: str, seed: int) -> tuple[float, int]:
    scenario, how = _CASES[case]
    population = build(scenario, seed=seed, **how)
    model = SCENARIOS[scenario].model
    task = Task.of(lambda: build_model(model, population.shape, population.classes), population)
    method = Embedding(flip=_FLIPS.get(case, 0.1))
    fed = Simulator(method, task, population, seed=seed)
    try:
        labels = method.init(fed).of(population.ids)
    finally:
        fed.close()
    truth = [population.group(client) for client in population.ids]
    return float(adjusted_rand_score(truth, labels)), len(set(labels))

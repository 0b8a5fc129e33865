"""Embedding clustering of clients that lack classes: what three rules find (docs/results/embedding.md)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
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
_RULES = ("halves", "mixture", "either")
_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "rotated digits": ("rotated-digits", {}),
    "rotated digits, alpha = 3": ("rotated-digits", {"alpha": 3.0}),
    "rotated digits, alpha = 0.5": ("rotated-digits", {"alpha": 0.5}),
    "rotated digits, shards": ("rotated-digits", {"partition": "shards"}),
    "rotated digits, one group": ("rotated-digits", {"groups": 1}),
    "rotated digits, one group, alpha = 0.5": ("rotated-digits", {"groups": 1, "alpha": 0.5}),
    "rotated Fashion-MNIST, alpha = 3": ("rotated-fashion", {**_SMALL, "alpha": 3.0}),
    "rotated Fashion-MNIST, one group, alpha = 3": ("rotated-fashion", {**_SMALL, "alpha": 3.0, "groups": 1}),
    "rotated MNIST, alpha = 3": ("rotated-mnist", {**_SMALL, "alpha": 3.0}),
}


@experiment("embedding-skew", "clients that lack classes: ARI of three rules", minutes=12, seeds=range(31, 36))
def skew(out: Path, seeds: Sequence[int], note: Note) -> str:
    """P = 0.1, a federated autoencoder; seeds that served for no choice."""
    lines = []
    for case in _CASES:
        cells = [", ".join(_kept(out, case, rule, seed, note) for seed in seeds) for rule in _RULES]
        lines.append([case, *cells])
    text = markdown(["data", *(f"`{rule}`" for rule in _RULES)], lines)
    (out / "table.md").write_text(text)
    return text


def _kept(out: Path, case: str, rule: str, seed: int, note: Note) -> str:
    file = out / f"{list(_CASES).index(case)}-{rule}-seed{seed}.json"
    if not file.is_file():
        file.write_text(json.dumps(_found(case, rule, seed)))
    ari, groups = json.loads(file.read_text())
    note(f"{case}, {rule}, seed {seed}: ARI {ari:.2f}, {groups} groups")
    return f"{ari:.2f} ({groups})"


def _found(case: str, rule: str, seed: int) -> tuple[float, int]:
    scenario, how = _CASES[case]
    population = build(scenario, seed=seed, **how)
    model = SCENARIOS[scenario].model
    task = Task.of(lambda: build_model(model, population.shape, population.classes), population)
    method = Embedding(rule=rule)  # type: ignore[arg-type]
    fed = Simulator(method, task, population, seed=seed)
    try:
        labels = method.init(fed).of(population.ids)
    finally:
        fed.close()
    truth = [population.group(client) for client in population.ids]
    return float(adjusted_rand_score(truth, labels)), len(set(labels))

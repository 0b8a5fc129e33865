"""How LADD's amplitudes and missing classes change its clusters (docs/results/embedding.md)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import get_args, get_type_hints

from sklearn.metrics import adjusted_rand_score

from coterie.core.cohort import Cohort
from coterie.core.federation import Nothing
from coterie.core.task import Task
from coterie.data import SCENARIOS
from coterie.methods.ladd import LADD
from coterie.models import build_model
from coterie.runs.config import ScenarioConfig
from coterie.runs.experiment import population_of
from experiments.registry import experiment
from experiments.tables import Note, markdown

_SCENARIOS = (
    ScenarioConfig("cycled-cifar10"),
    ScenarioConfig("rotated-mnist"),
    ScenarioConfig("rotated-digits"),
    ScenarioConfig("pacs", image_size=32),
)


@experiment(
    "embedding-ladd",
    "LADD's clusters with raw, standardised and log amplitudes, and with missing classes filled in two ways",
    minutes=3,
    seeds=range(3),
)
def ladd(out: Path, seeds: Sequence[int], note: Note) -> str:
    """ARI by seed and clusters found, with K = 4 and with K by the silhouette."""
    lines = [line for scenario in _SCENARIOS for line in _lines(scenario, seeds, note)]
    head = ["scenario", "amplitudes", "missing classes", "ARI, K = 4", "ARI (clusters), K by silhouette"]
    text = markdown(head, lines)
    (out / "table.md").write_text(text)
    return text


def _lines(scenario: ScenarioConfig, seeds: Sequence[int], note: Note) -> list[list[str]]:
    chosen = [get_args(get_type_hints(LADD)[key]) for key in ("amplitudes", "missing")]
    given: dict[tuple[str, str], list[str]] = {pair: [] for pair in product(*chosen)}
    free: dict[tuple[str, str], list[str]] = {pair: [] for pair in given}
    for seed in seeds:
        population = population_of(scenario, seed)
        shape, classes = tuple(population.shape), population.classes
        model = SCENARIOS[scenario.name].model
        task = Task.of(lambda m=model, s=shape, c=classes: build_model(m, s, c), population)  # type: ignore[misc]
        ids = tuple(sorted(population.ids))
        cohort = Cohort(ids, task, tuple(population.client(client) for client in ids), seed=seed)
        truth = [population.group(client) for client in ids]
        sent = {missing: LADD(missing=missing).describe(cohort, Nothing()) for missing in chosen[1]}
        for amplitudes, missing in given:
            for found, k in ((given, 4), (free, 0)):
                method = LADD(k=k, amplitudes=amplitudes, missing=missing)  # type: ignore[arg-type]
                labels, centres, _ = method.group(sent[missing], seed)
                size = "" if k else f" ({len(centres)})"
                found[amplitudes, missing].append(f"{adjusted_rand_score(truth, labels):.2f}{size}")
        note(f"{scenario.name}, seed {seed}: {given}")
    return [[scenario.name, *pair, ", ".join(given[pair]), ", ".join(free[pair])] for pair in given]

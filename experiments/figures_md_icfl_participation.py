"""MD-ICFL with few clients a round and with clients that change group (docs/results/md-icfl.md)."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sklearn.metrics import adjusted_rand_score

from coterie.core.task import Task
from coterie.data import Drift, build
from coterie.data.scenarios import SCENARIOS
from coterie.methods.base import ServerMethod
from coterie.models import build_model
from coterie.runs.config import from_tables
from coterie.simulation.simulator import Simulator
from experiments.registry import experiment
from experiments.tables import Note, markdown

_SCENARIO = "rotated-digits"
_WHEN = 15
_CASES: dict[str, tuple[dict[str, Any], int, Drift | None]] = {
    "all of 40 clients a round": ({}, 20, None),
    "half": ({"fraction": 0.5}, 40, None),
    "a fifth": ({"fraction": 0.2}, 60, None),
    "a tenth": ({"fraction": 0.1}, 100, None),
    "two clients": ({"fraction": 2}, 200, None),
    "all; a fifth of the clients changes group in round 15": ({}, 25, Drift(_WHEN, 0.2)),
    "all; everybody changes group in round 15": ({}, 25, Drift(_WHEN, 1.0)),
    "half; a fifth of the clients changes group in round 15": ({"fraction": 0.5}, 35, Drift(_WHEN, 0.2)),
    "a fifth; a fifth of the clients changes group in round 40": ({"fraction": 0.2}, 80, Drift(40, 0.2)),
}
"""Settings, rounds and drift of each row."""


@experiment(
    "md-icfl-participation",
    "rotated digits with few clients a round, and with clients that change group: ARI by round",
    minutes=4,
    seeds=range(201, 206),
)
def participation(out: Path, seeds: Sequence[int], note: Note) -> str:
    """The recommended setting of MD-ICFL beside IFCA; no client is evaluated, since only the groups matter here."""
    lines = []
    for case, (_, rounds, drift) in _CASES.items():
        for method in ("md-icfl", "ifca"):
            scores = [_kept(out, method, case, seed, note) for seed in seeds]
            after = rounds if drift is None else drift.round + 10
            cells = [_shown([each[number - 1] for each in scores]) for number in (min(after, rounds), rounds)]
            lines.append([case, method, str(rounds), *cells, _first(scores, 0 if drift is None else drift.round)])
    head = [
        "clients a round",
        "method",
        "rounds",
        "ARI 10 rounds after the change, or at the end",
        "ARI at the end",
        "",
    ]
    text = markdown([*head[:-1], "0.95 for good from round"], lines)
    (out / "table.md").write_text(text)
    return text


def _kept(out: Path, method: str, case: str, seed: int, note: Note) -> list[float]:
    file = out / f"{method}-{list(_CASES).index(case)}-seed{seed}.json"
    if not file.is_file():
        file.write_text(json.dumps(_scores(method, case, seed)))
    found: list[float] = json.loads(file.read_text())
    note(f"{method}, {case}, seed {seed}: ARI {found[-1]:.2f}")
    return found


def _scores(method: str, case: str, seed: int) -> list[float]:
    settings, rounds, drift = _CASES[case]
    scenario = SCENARIOS[_SCENARIO]
    config = from_tables({"method": method, "settings": {"k": 4, **settings}, "scenario": {"name": _SCENARIO}})
    chosen = config.build_method(scenario.training)
    assert isinstance(chosen, ServerMethod)
    population = build(_SCENARIO, seed=seed, drift=drift)
    task = Task.of(lambda: build_model(scenario.model, population.shape, population.classes), population)
    fed = Simulator(chosen, task, population, seed=seed)
    scores = []
    try:
        state = chosen.init(fed)
        for number in range(rounds):
            fed.begin(number)
            state, _ = chosen.step(state, fed)
            fed.commit()
            truth = [population.group(client, number) for client in population.ids]
            found = chosen.clusters(state, population.ids)
            scores.append(float(adjusted_rand_score(truth, found or [0] * len(truth))))
    finally:
        fed.close()
    return scores


def _shown(scores: Sequence[float]) -> str:
    return f"{statistics.median(scores):.2f} ({' '.join(f'{score:.2f}' for score in scores)})"


def _first(runs: Sequence[Sequence[float]], since: int) -> str:
    """The round from which on a run's ARI is never below 0.95 again, by seed."""
    found = []
    for scores in runs:
        low = max((number for number, score in enumerate(scores, 1) if score < 0.95), default=0)
        found.append("–" if low == len(scores) else str(max(low + 1, since + 1)))
    return " ".join(found)

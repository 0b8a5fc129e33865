"""Clients whose data change while embedding clustering runs (docs/results/embedding.md)."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from sklearn.metrics import adjusted_rand_score

from coterie.core.rng import rng
from coterie.core.samples import (
    ClientData,
    ClientId,
    Normalise,
    Population,
)
from coterie.core.task import Task
from coterie.data import Drift, build
from coterie.methods.embedding.method import Embedding
from coterie.models import build_model
from coterie.simulation.simulator import Simulator
from experiments.registry import experiment
from experiments.tables import Note, markdown

_WHEN, _ROUNDS, _CLIENTS, _NEW = 5, 15, 100, 3
_CASES: dict[str, list[Drift]] = {
    "nobody": [],
    "20 clients, to other groups": [Drift(_WHEN, 0.2)],
    "25 clients, to a rotation nobody had": [
        Drift(0, groups={f"{i:02d}": 0 for i in range(_NEW, _CLIENTS, 4)}),
        Drift(_WHEN, groups={f"{i:02d}": _NEW for i in range(_NEW, _CLIENTS, 4)}),
    ],
}


@dataclass(frozen=True)
class _FreshHalf:
    """Clients that hold another random half of their training samples in every round: no drift, but no rest either."""

    whole: Population
    seed: int

    @property
    def ids(self) -> Sequence[ClientId]:
        """As they are."""
        return self.whole.ids

    @property
    def shape(self) -> tuple[int, ...]:
        """As it is."""
        return self.whole.shape

    @property
    def classes(self) -> int:
        """As they are."""
        return self.whole.classes

    @property
    def normalise(self) -> Normalise:
        """As it is."""
        return self.whole.normalise

    def client(self, client: ClientId, round: int = 0) -> ClientData:
        """Half of the training samples of that round."""
        data = self.whole.client(client, round)
        order = rng(self.seed, "fresh half", round, client).permutation(len(data.train))
        return ClientData(data.train.take(torch.from_numpy(order[: len(order) // 2])), data.test)

    def group(self, client: ClientId, round: int = 0) -> int | None:
        """As it is."""
        return self.whole.group(client, round)


@experiment(
    "embedding-drift",
    "clients that change group at round 5: rounds until they sit right, and false moves",
    minutes=10,
    seeds=range(2),
)
def drift(out: Path, seeds: Sequence[int], note: Note) -> str:
    """Rotated MNIST, 100 clients, P = 0.1, an autoencoder trained on Fashion-MNIST."""
    lines = []
    for fresh in (False, True):
        for case in _CASES:
            for every in (1, 3):
                runs = [_kept(out, case, every, fresh, seed, note) for seed in seeds]
                cells = [_mean([run[key] for run in runs]) for key in ("late", "false", "founded", "ari")]
                lines.append([case, "a fresh half each round" if fresh else "the same", str(every), *cells])
    head = [
        "who moves at round 5",
        "data of the others",
        "re-embed every",
        "rounds until all sit right",
        "false moves",
        "clusters founded",
        "ARI at the end",
    ]
    text = markdown(head, lines)
    (out / "table.md").write_text(text)
    return text


def _kept(out: Path, case: str, every: int, fresh: bool, seed: int, note: Note) -> dict[str, Any]:
    file = out / f"{list(_CASES).index(case)}-every{every}{'-fresh' if fresh else ''}-seed{seed}.json"
    if not file.is_file():
        file.write_text(json.dumps(_follow(out, case, every, fresh, seed)))
    found: dict[str, Any] = json.loads(file.read_text())
    note(f"{case}, every {every} rounds, {'fresh halves' if fresh else 'same data'}, seed {seed}: {found}")
    return found


def _follow(out: Path, case: str, every: int, fresh: bool, seed: int) -> dict[str, float | None]:
    """Who sits where, round by round: no evaluation and little training, which do not matter here."""
    whole = build("rotated-mnist", seed=seed, clients=_CLIENTS, drift=_CASES[case])
    population: Population = _FreshHalf(whole, seed) if fresh else whole
    task = Task.of(lambda: build_model("lenet5", (1, 28, 28), 10), population)
    method = Embedding(encoder=_encoder(out, seed, task), reembed=every, fraction=2, epochs=1)
    fed = Simulator(method, task, population, seed=seed)
    ids = list(population.ids)
    first = [population.group(client, 0) for client in ids]
    moves = founded = 0
    right: int | None = None
    try:
        state = method.init(fed)
        before = state.of(ids)
        for number in range(_ROUNDS):
            fed.round = number
            state, log = method.step(state, fed)
            fed.commit()
            truth = [population.group(client, number) for client in ids]
            now = state.of(ids)
            # a move is false where the client's group is what it always was
            moves += sum(a != b and t == f for a, b, t, f in zip(before, now, truth, first, strict=True))
            founded += int(str(log.get("founded", 0)))
            score = float(adjusted_rand_score(truth, now))
            right = number - _WHEN + 1 if number >= _WHEN and right is None and score == 1.0 else right
            before = now
    finally:
        fed.close()
    return {"late": right if case != "nobody" else None, "false": moves, "founded": founded, "ari": score}


def _encoder(out: Path, seed: int, task: Task) -> str:
    """An autoencoder's file, trained once per seed."""
    from coterie.methods.embedding.pretraining import read_public, train_on_public

    file = out / f"encoder-seed{seed}.safetensors"
    if not file.is_file():
        blank = Embedding().fresh(task, seed)
        train_on_public(blank, read_public("fashion-mnist", (1, 28, 28)), epochs=5, seed=seed).save(file)
    return str(file)


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    missing = f" ({len(known)} of {len(values)} seeds)" if known and len(known) < len(values) else ""
    return f"{statistics.fmean(known):.2f}{missing}" if known else "–"

"""What the tests of embedding clustering share."""

from __future__ import annotations

from typing import Any

import torch
from sklearn.metrics import adjusted_rand_score

from coterie.core.samples import (
    Population,
)
from coterie.core.task import Task
from coterie.methods.embedding.messages import EmbeddedClusters
from coterie.methods.embedding.method import Embedding
from coterie.models import build_model
from coterie.simulation.faults import Faults
from coterie.simulation.simulator import EngineOptions, Simulator

QUICK: dict[str, Any] = {"epochs": 1, "fraction": 0.2, "flip": 0.05}
ROUNDS = 4


def net() -> torch.nn.Module:
    return build_model("digits-mlp", (1, 8, 8), 10)


def federation(method: Embedding, population: Population, *, seed: int = 0, faults: Faults | None = None) -> Simulator:
    task = Task.of(net, population)
    return Simulator(method, task, population, seed=seed, faults=faults, options=EngineOptions(workers=1))


def truth(population: Population, ids: list[str], at: int = 0) -> list[int | None]:
    return [population.group(client, at) for client in ids]


def ari(population: Population, state: EmbeddedClusters, at: int = 0) -> float:
    ids = sorted(state.cluster)
    return float(adjusted_rand_score(truth(population, ids, at), state.of(ids)))

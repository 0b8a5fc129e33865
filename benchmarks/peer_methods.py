"""Peer-to-peer methods: what finding neighbours costs beside local training, and how a round grows with the peers."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from multiprocessing import get_context
from typing import Any

import torch
from torch import nn

from benchmarks.timing import peak_megabytes
from coterie.core.samples import ClientData, Normalise, Samples
from coterie.core.task import Task
from coterie.methods.p2p.simulation import Simulated
from coterie.methods.panm.method import PANM
from coterie.models import build_model
from coterie.simulation.simulator import EngineOptions, Simulator

_SETTINGS: dict[str, Any] = {"epochs": 3, "batch": 128, "lr": 0.08, "lr_decay": 0.99}


@dataclass(frozen=True)
class _Crowd:
    """Any number of peers that share a few sets of random images: training time does not depend on what is in them."""

    peers: int
    shape: tuple[int, ...]
    samples: int
    classes: int = 10
    normalise: Normalise = field(default_factory=lambda: Normalise(scale=1 / 255))

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(f"{i:05d}" for i in range(self.peers))

    @cached_property
    def _sets(self) -> list[ClientData]:
        made = []
        for seed in range(8):
            g = torch.Generator().manual_seed(seed)
            x = torch.randint(256, (self.samples, *self.shape), generator=g, dtype=torch.uint8)
            samples = Samples(x, torch.randint(self.classes, (self.samples,), generator=g))
            made.append(ClientData(samples, samples.take(torch.arange(1))))
        return made

    def client(self, client: str, round: int = 0) -> ClientData:
        return self._sets[int(client) % len(self._sets)]

    def group(self, client: str, round: int = 0) -> int | None:
        return int(client) % 4


class _Timed(Simulator):
    """Knows how much processor time went into local training."""

    training = 0.0

    def ask(self, function: Callable[..., Any], ids: Any, **how: Any) -> Any:
        start = time.process_time()
        replies = super().ask(function, ids, **how)
        if function.__name__ == "train":
            self.training += time.process_time() - start
        return replies


def _network(peers: int, model: Callable[[], nn.Module], shape: tuple[int, ...], samples: int, **settings: Any) -> Any:
    crowd = _Crowd(peers, shape, samples)
    method = Simulated(PANM(**{**_SETTINGS, **settings}))
    task = Task.of(model, crowd)
    fed = _Timed(method, task, crowd, seed=0, options=EngineOptions())
    return method, fed, method.init(fed)


def overhead(rounds: int = 5) -> list[dict[str, object]]:
    """PANM-grad on 100 peers with an MLP 784-200-200-10 and 200 images each, beside its own local training.

    Processor seconds of all threads, medians over rounds: on a shared machine wall time says little.
    """
    rows: list[dict[str, object]] = []
    for stage, settings in (
        ("one", {"t1": 10**6}),
        ("two, gossip", {"t1": 1, "tau": 10**6}),
        ("two, matching", {"t1": 1, "tau": 1}),
    ):
        shape = (1, 28, 28)
        method, fed, state = _network(100, lambda: build_model("mlp", (1, 28, 28), 10), shape, 200, **settings)
        spent: list[tuple[float, float]] = []
        for number in range(rounds + 2):
            fed.round, fed.training = number, 0.0
            start = time.process_time()
            state, _ = method.step(state, fed)
            fed.commit()
            spent.append((time.process_time() - start, fed.training))
        fed.close()
        whole, training = (statistics.median(part) for part in zip(*spent[2:], strict=True))
        rows.append(
            {
                "stage": stage,
                "training, s": round(training, 3),
                "round, s": round(whole, 3),
                "ratio": round(statistics.median(a / b for a, b in spent[2:]), 3),
            }
        )
    return rows


def scaling(sizes: tuple[int, ...] = (100, 1000, 10000), rounds: int = 4) -> list[dict[str, object]]:
    """A round of PANM-grad (stage one) on more and more peers with a small MLP (64-32-10) and 20 images each.

    Each size in a process of its own, so that its peak of memory is its own.
    """
    rows: list[dict[str, object]] = []
    for peers in sizes:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
            rows.append(fresh.submit(_grown, peers, rounds).result())
    return rows


def _grown(peers: int, rounds: int) -> dict[str, object]:
    method, fed, state = _network(peers, _small, (1, 8, 8), 20, t1=3, tau=2, batch=20)
    spent = []
    for number in range(rounds):
        fed.round = number
        start = time.process_time()
        state, _ = method.step(state, fed)
        fed.commit()
        spent.append(time.process_time() - start)
    fed.close()
    median = statistics.median(spent)
    return {
        "peers": peers,
        "CPU ms a round": round(1e3 * median, 1),
        "CPU µs a peer": round(1e6 * median / peers, 1),
        "peak memory, MB": peak_megabytes(),
    }


def _small() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

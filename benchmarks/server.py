"""The server's side: averaging states, and a round among very many registered clients."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import torch

from benchmarks.timing import take_turns
from coterie.core.states import Stack, mean, stack
from coterie.models import build_model

REGISTERED = """
import sys, time
from benchmarks.timing import peak_megabytes
from coterie.data import build
from coterie.methods.fedavg import FedAvg
from coterie.models import build_model
from coterie import run
clients = int(sys.argv[1])
population = build("rotated-digits", seed=0, clients=clients, samples=35, partition="dirichlet-client", alpha=10.0)
method = FedAvg(fraction=50, epochs=1, batch=16)
times = []
class Clock:
    def update(self, row): times.append(time.perf_counter())
    def note(self, text): pass
run(method, population, lambda: build_model("digits-mlp", (1, 8, 8), 10), rounds=12, view=Clock(), evaluate_clients=50)
each = sorted(b - a for a, b in zip(times, times[1:]))
print(each[len(each) // 2], peak_megabytes())
"""


def aggregation(turns: int = 7) -> list[dict[str, object]]:
    """The weighted mean of 100 states against a loop over dictionaries."""
    rows: list[dict[str, object]] = []
    for name, shape, classes in (("mlp", (1, 28, 28), 10), ("lenet5", (1, 28, 28), 10), ("pens-cnn", (3, 32, 32), 10)):
        states = [build_model(name, shape, classes).state_dict() for _ in range(100)]
        models, weights = stack(states), torch.arange(1.0, 101.0)
        timing = take_turns({"loop over dicts": _loop(states, weights), "ours": _ours(models, weights)}, turns)
        rows.append({"aggregation of 100": name, "times faster than a loop": round(timing.ratio["ours"], 1)})
    return rows


def _loop(states: list[dict[str, torch.Tensor]], weights: torch.Tensor) -> Callable[[], object]:
    total = float(weights.sum())
    return lambda: {
        name: sum(state[name] * (float(w) / total) for state, w in zip(states, weights, strict=True))
        for name in states[0]
    }


def _ours(models: Stack, weights: torch.Tensor) -> Callable[[], object]:
    return lambda: mean(models, weights)


def registered() -> list[dict[str, object]]:
    """A round with 50 sampled clients among 1,000 and among 100,000 registered, each in a fresh process."""
    rows: list[dict[str, object]] = []
    for clients in (1_000, 100_000):
        made = subprocess.run(
            [sys.executable, "-c", REGISTERED, str(clients)], capture_output=True, text=True, check=True, timeout=600
        )
        seconds, memory = map(float, made.stdout.split())
        rows.append({"registered": clients, "ms a round (50 sampled)": round(1000 * seconds, 1), "MB": round(memory)})
    return rows

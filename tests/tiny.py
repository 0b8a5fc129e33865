"""What the tests of the core share: a dozen clients with a handful of digits each, and nets of a few weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from coterie import Result
from coterie.core import wire
from coterie.core.cohort import Cohort
from coterie.core.samples import ClientData, Normalise, Samples
from coterie.core.states import Stack
from coterie.core.task import Task
from coterie.data import build
from coterie.data.own import OwnPopulation
from coterie.methods import METHODS
from coterie.methods.base import RoundMethod
from coterie.methods.p2p.base import Answers
from coterie.methods.p2p.simulation import in_simulator
from coterie.methods.p2p.topology import NO_PEER

TRAINING: dict[str, Any] = {"epochs": 2, "batch": 4, "lr": 0.05}
OVERRIDES: dict[str, dict[str, Any]] = {
    "ifca": {"k": 3},
    "fedsem": {"k": 3},
    "fedsoft": {"k": 3},
    "embedding": {"encoder_rounds": 2, "encoder_steps": 8},
}
"""Settings that a method needs on the tiny population; a law needs no well trained autoencoder."""


@lru_cache(maxsize=1)
def tiny_digits() -> OwnPopulation:
    """Nine clients in three rotation groups with 7 to 11 training digits: batches of 4 leave ragged ends."""
    whole = build("rotated-digits", seed=5, clients=9, samples=14, test_samples=12, groups=3, validation=0.2)
    clients = {}
    for number, client in enumerate(whole.ids):
        data = whole.client(client)
        train = data.train.take(torch.arange(len(data.train) - number % 5))
        clients[f"c{client}"] = ClientData(train, data.test, data.valid)
    groups = {f"c{client}": whole.group(client) or 0 for client in whole.ids}
    return OwnPopulation(clients, whole.shape, whole.classes, whole.normalise, groups)


def six_digits() -> OwnPopulation:
    """Two clients of each group, for laws that hold for every method: what they compare costs a run each."""
    return only(tiny_digits(), tiny_digits().ids[:6])


def only(population: OwnPopulation, ids: Sequence[str]) -> OwnPopulation:
    """The same clients in another order, or some of them."""
    return replace(population, clients={client: population.clients[client] for client in ids})


def rows(*clients: tuple[Sequence[float], Sequence[int]], groups: Sequence[int] = ()) -> OwnPopulation:
    """Clients a, b, ... that have one-number inputs and whole-number targets, the same for training and testing."""
    data = {}
    for name, (x, y) in zip("abcdefgh", clients, strict=False):
        samples = Samples(torch.tensor(x, dtype=torch.float64)[:, None], torch.tensor(y))
        data[name] = ClientData(samples, samples)
    truth = dict(zip(data, groups, strict=True)) if groups else {}
    return OwnPopulation(data, (1,), 10, Normalise(), truth)


def small_net() -> nn.Module:
    """An MLP that the kernel takes."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))


def batchnorm_net() -> nn.Module:
    """A net with buffers, floating and whole, which only torch takes."""
    return nn.Sequential(
        nn.Conv2d(1, 2, 3, stride=2), nn.BatchNorm2d(2), nn.LeakyReLU(), nn.Flatten(), nn.Linear(18, 10)
    )


def compiled_batchnorm_net() -> nn.Module:
    """The same with an activation that the kernel knows, so it takes the whole."""
    return nn.Sequential(nn.Conv2d(1, 2, 3, stride=2), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(18, 10))


def one_weight(weight: float = 0.0) -> nn.Module:
    """The output is weight * input."""
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, weight)
    return layer


def made(name: str, **settings: Any) -> Any:
    """A method with short local training; with a server or of peers, which only the caller knows.

    Models are not fine-tuned for a last look at them, unless this is asked for: it would be a good part of such a run.
    """
    tuning = {} if "personalise" in settings else {"finetune_epochs": 0}
    return METHODS[name](**{**TRAINING, **tuning, **OVERRIDES.get(name, {}), **settings})


def driven(name: str, **settings: Any) -> RoundMethod[Any]:
    """The same as the simulator runs it."""
    return in_simulator(made(name, **settings))


def cohort(population: OwnPopulation, task: Task, ids: Sequence[str] | None = None, round: int = 0) -> Cohort:
    """Clients at work, outside any simulator."""
    chosen = tuple(population.ids if ids is None else ids)
    return Cohort(chosen, task, tuple(population.client(client) for client in chosen), round=round, seed=11)


def fingerprint(result: Result) -> dict[str, Any]:
    """All that must be equal, bit for bit, where two ways of computing are one."""
    return {
        "state": wire.encode(result.state),
        "models": {name: wire.encode(model) for name, model in result.models.items()},
        "clusters": result.clusters,
        "accuracy": result.per_client_accuracy,
        "bytes": (result.bytes_down, result.bytes_up, result.bytes_evaluation),
        "failures": result.failures,
    }


def largest_gap(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """The largest difference between two models."""
    assert a.keys() == b.keys()
    return max(float((a[name].double() - b[name].double()).abs().max()) for name in a)


class Rows:
    """Watches a run and remembers what it was told."""

    def __init__(self) -> None:
        self.rows: list[Mapping[str, Any]] = []
        self.notes: list[str] = []

    def update(self, row: Mapping[str, Any]) -> None:
        self.rows.append(row)

    def note(self, text: str) -> None:
        self.notes.append(text)


class StopAt:
    """Watches a run and presses Ctrl-C at the end of a round."""

    def __init__(self, round: int) -> None:
        self.round = round
        self.notes: list[str] = []

    def update(self, row: Mapping[str, Any]) -> None:
        if row["round"] == self.round:
            raise KeyboardInterrupt

    def note(self, text: str) -> None:
        self.notes.append(text)


def answer_of(model: Stack, start: Stack | None, heard: Sequence[int] = (), width: int = 0) -> Answers:
    """What one peer answers (a leading axis of one), hearsay filled up to `width`."""
    told = torch.full((1, width), NO_PEER, dtype=torch.int64)
    told[0, : len(heard)] = torch.tensor(heard, dtype=torch.int64)
    return Answers(model, start, told)

"""Methods that are one and the same at the edge of their settings."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from coterie import run
from coterie.core.rng import rng
from coterie.core.states import State
from coterie.core.task import Task
from coterie.data.own import OwnPopulation
from coterie.simulation.simulator import EngineOptions

from ..tiny import largest_gap, made, only, small_net


def trained(name: str, population: OwnPopulation, kernel: bool = True, **settings: object) -> State:
    """The one model after three rounds with half of the clients in each."""
    method = made(name, **{"fraction": 0.5, **settings})
    result = run(method, population, small_net, rounds=3, seed=1, engine=EngineOptions(kernel=kernel, workers=1))
    assert len(result.models) == 1
    return next(iter(result.models.values()))


@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize(("name", "settings"), [("ifca", {"k": 1}), ("fedsem", {"k": 1}), ("fedprox", {"mu": 0.0})])
def test_is_fedavg_bit_for_bit(name: str, settings: dict[str, object], digits: OwnPopulation, kernel: bool) -> None:
    assert largest_gap(trained(name, digits, kernel, **settings), trained("fedavg", digits, kernel)) == 0


def test_oracle_with_one_group_is_fedavg(digits: OwnPopulation) -> None:
    together = OwnPopulation(
        digits.clients, digits.shape, digits.classes, digits.normalise, dict.fromkeys(digits.clients, 0)
    )
    assert largest_gap(trained("oracle", together), trained("fedavg", digits)) == 0


def test_fedprox_with_a_term_is_not_fedavg(digits: OwnPopulation) -> None:
    assert largest_gap(trained("fedprox", digits, mu=1.0), trained("fedavg", digits)) > 1e-4


def plain_sgd(population: OwnPopulation, momentum: float, rounds: int) -> State:
    """Ordinary training of one client, written out: a fresh optimiser every round, two epochs of batches of 4."""
    task = Task(small_net, population.shape, population.classes, population.normalise, dtype=torch.float64)
    samples = population.client("c3").train
    module = small_net().double()
    module.load_state_dict(task.init(1))
    for number in range(rounds):
        optimiser = torch.optim.SGD(module.parameters(), lr=0.05, momentum=momentum)
        generator = rng(1, "batches", number, "c3")
        for _ in range(2):
            for batch in torch.from_numpy(generator.permutation(len(samples))).split(4):
                x = population.normalise(samples.x[batch], torch.float64)
                optimiser.zero_grad()
                F.cross_entropy(module(x), samples.y[batch]).backward()
                optimiser.step()
    return dict(module.state_dict())


@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize("name", ["local", "fedavg", "scaffold", "ifca", "oracle", "fedsem"])
def test_one_client_is_plain_sgd(name: str, digits: OwnPopulation, kernel: bool) -> None:
    """SCAFFOLD too: with one client c = c_i, so the correction is zero."""
    alone = OwnPopulation(only(digits, ["c3"]).clients, digits.shape, digits.classes, digits.normalise, {"c3": 0})
    settings = {"k": 1} if name in ("ifca", "fedsem") else {}
    method = made(name, **settings)
    result = run(
        method, alone, small_net, rounds=3, seed=1, dtype=torch.float64, engine=EngineOptions(kernel=kernel, workers=1)
    )
    expected = plain_sgd(digits, method.momentum, rounds=3)
    assert largest_gap(next(iter(result.models.values())), expected) < 1e-12

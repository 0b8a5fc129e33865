"""What is learnt: initial models, checks of the net against the data."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie import run
from coterie.core.compiled import Refusal
from coterie.core.errors import CoterieError
from coterie.core.samples import ClientData
from coterie.core.task import Task
from coterie.data.own import OwnPopulation
from coterie.kernel.bridge import KernelTask
from tests.tiny import (
    batchnorm_net,
    largest_gap,
    made,
    small_net,
)


def test_initial_models_depend_on_seed_and_number_alone(digits: OwnPopulation) -> None:
    task = Task.of(small_net, digits)
    torch.manual_seed(0)
    first = task.init(3)
    torch.manual_seed(1)
    assert largest_gap(task.init(3), first) == 0
    assert largest_gap(task.init(4), first) > 0
    assert largest_gap(task.init(3, 1), first) > 0


def test_initial_models_are_the_same_in_every_thread(digits: OwnPopulation) -> None:
    """torch has one generator for all threads: two that draw at the same time must not disturb each other."""
    task = Task.of(small_net, digits)
    alone = task.init(5)
    with ThreadPoolExecutor(8) as pool:
        for state in pool.map(lambda _: (task.module, task.init(5))[1], range(200)):
            assert largest_gap(state, alone) == 0


@pytest.mark.parametrize("wrap", [lambda net: net, lambda net: lambda: net], ids=["ready", "lambda"])
def test_a_ready_network_is_the_start(wrap: Callable[[nn.Module], nn.Module], digits: OwnPopulation) -> None:
    """It is the shared start; further models of the same run are drawn again; it is itself never trained."""
    net = small_net()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    task = Task.of(wrap(net), digits)
    assert largest_gap(task.init(1), before) == 0
    assert largest_gap(task.init(1, 1), before) > 0
    run(made("fedavg"), digits, wrap(net), rounds=1)
    assert largest_gap(dict(net.state_dict()), before) == 0


def test_a_ready_network_with_weights_of_its_own_cannot_be_drawn_anew(digits: OwnPopulation) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(64, 10))

        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1) @ self.weight

    with pytest.raises(CoterieError, match="pass a function that builds the model"):
        run(made("ifca"), digits, Own(), rounds=1)


def test_a_net_that_does_not_fit_is_refused_before_the_first_round(digits: OwnPopulation) -> None:
    with pytest.raises(CoterieError, match=r"fails on a batch of shape \(2, 1, 8, 8\).*choose a model"):
        Task.of(lambda: nn.Linear(7, 10), digits)
    with pytest.raises(CoterieError, match="5 outputs but the data have 10 classes; give it 10"):
        Task.of(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 5)), digits)


def test_the_first_client_may_have_no_samples(digits: OwnPopulation) -> None:
    data = digits.client("c0")
    poor = ClientData(data.train.take(torch.arange(0)), data.test)
    population = OwnPopulation({"c": poor, "d": data}, digits.shape, 10, digits.normalise)
    result = run(made("fedavg"), population, small_net, rounds=1)
    assert result.accuracy >= 0
    alone = OwnPopulation({"c": poor}, digits.shape, 10, digits.normalise)
    result = run(made("fedavg"), alone, small_net, rounds=2, seed=3)
    assert largest_gap(result.models["global"], Task.of(small_net, alone).init(3)) == 0


def test_the_path_is_chosen_by_the_net(digits: OwnPopulation) -> None:
    assert isinstance(Task.of(small_net, digits).compiled, KernelTask)
    assert isinstance(Task.of(batchnorm_net, digits).compiled, Refusal)
    own = Task.of(small_net, digits, loss=lambda output, target: F.cross_entropy(output, target))
    assert isinstance(own.compiled, Refusal)
    assert "loss" in own.compiled.reason


def test_a_loss_of_the_users_own_is_used(digits: OwnPopulation) -> None:
    doubled = run(
        made("fedavg", lr=0.05),
        digits,
        small_net,
        rounds=1,
        loss=lambda o, t: 2 * F.cross_entropy(o, t),
        dtype=torch.float64,
    )
    faster = run(made("fedavg", lr=0.1), digits, small_net, rounds=1, dtype=torch.float64)
    assert largest_gap(doubled.models["global"], faster.models["global"]) < 1e-9


def test_parameters_and_buffers_are_told_apart(digits: OwnPopulation) -> None:
    task = Task.of(batchnorm_net, digits)
    assert "1.weight" in task.parameters
    assert "1.running_mean" not in task.parameters
    assert "1.running_mean" in task.template

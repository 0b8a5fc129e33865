"""Ditto, FedPer, FedRep, APFL, FedBN and pFedMe, by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from coterie.core.cohort import Cohort
from coterie.core.errors import CoterieError
from coterie.core.states import State
from coterie.core.task import Task
from coterie.data.own import OwnPopulation
from coterie.methods import METHODS
from coterie.methods.base import Models
from coterie.methods.personal import PersonalMethod
from coterie.simulation.simulator import EngineOptions, Simulator

from ..tiny import Rows, largest_gap, made, one_weight, rows, small_net

PLAIN: dict[str, Any] = {"lr": 0.1, "momentum": 0.0, "batch": 0, "epochs": 1, "aggregate": "mean"}


def hand(name: str, **settings: Any) -> Any:
    """A method with plain gradient steps on all samples at once."""
    return METHODS[name](**{**PLAIN, **settings})


def task_of(build: Callable[[], nn.Module], population: OwnPopulation) -> Task:
    return Task(build, (1,), 10, population.normalise, loss="mse", dtype=torch.float64)


def alone(build: Callable[[], nn.Module], **memory: Any) -> Cohort:
    """One client with one sample: x = 1, y = 3."""
    population = rows(([1.0], [3]))
    return Cohort(("a",), task_of(build, population), (population.client("a"),), memory=(memory,) if memory else ())


def weight(value: float) -> State:
    return {"weight": torch.full((1, 1), value, dtype=torch.float64)}


def one_round(method: PersonalMethod, build: Callable[[], nn.Module], population: OwnPopulation) -> tuple[Any, Any]:
    """The state after one round, and the federation."""
    fed = Simulator(
        method, method.task(task_of(build, population)), population, seed=0, options=EngineOptions(workers=1)
    )
    state, _ = method.step(method.init(fed), fed)
    fed.commit()
    return state, fed


def product(head: float = 1.0) -> nn.Module:
    """The output is b * a * input: a is the base, b the head; both begin as 1."""
    return nn.Sequential(one_weight(1.0), one_weight(head))


def number(kept: Any) -> float:
    assert isinstance(kept, Tensor)
    return float(kept)


def test_ditto() -> None:
    """One sample, loss (w - 3)^2, w = v = 0, lr = 0.1, lambda = 0.5, two steps.

    w1 = 0 + 0.1 * 2 * 3 = 0.6, w2 = 0.6 + 0.1 * 2 * 2.4 = 1.08; v is held near w^t = 0: v1 = 0.6,
    v2 = 0.6 - 0.1 (2 (0.6 - 3) + 0.5 * 0.6) = 1.05. A step in the next round, from w^t = 1.08:
    v3 = 1.05 - 0.1 (2 (1.05 - 3) + 0.5 (1.05 - 1.08)) = 1.4415.
    """
    c = alone(one_weight)
    trained = hand("ditto", epochs=2).train(c, Models(weight(0.0)))
    assert number(trained.model["weight"]) == pytest.approx(1.08)
    assert number(c.kept["model"]["weight"]) == pytest.approx(1.05)  # type: ignore[index]
    later = alone(one_weight, model=weight(1.05))
    hand("ditto").train(later, Models(weight(1.08)))
    assert number(later.kept["model"]["weight"]) == pytest.approx(1.4415)  # type: ignore[index]


def test_fedper() -> None:
    """Loss (b a - y)^2 with a = b = 1 and lr = 0.1. Client a (y = 3): both gradients 2 (1 - 3) = -4, a = b = 1.4.

    Client b (y = -1, three samples): both gradients 4, a = b = 0.6. The bases' mean by samples is
    (1.4 + 3 * 0.6) / 4 = 0.8; the heads stay where they are, so a client uses 0.8 * 1.4 = 1.12, and b 0.8 * 0.6 = 0.48.
    """
    state, fed = one_round(hand("fedper"), product, rows(([1.0], [3]), ([1.0] * 3, [-1] * 3)))
    assert number(state.model["0.weight"]) == pytest.approx(0.8)
    assert number(state.model["1.weight"]) == 1.0
    own = hand("fedper").own_models(state, fed.memory)
    assert {c: number(m["0.weight"] * m["1.weight"]) for c, m in own.items()} == pytest.approx({"a": 1.12, "b": 0.48})
    judged = hand("fedper").assess(state, fed, ("a", "b")).value
    assert judged is not None
    assert judged.loss.tolist() == pytest.approx([(3 - 1.12) ** 2, (0.48 + 1) ** 2])


def test_fedrep() -> None:
    """As for FedPer, but first the head alone: 1.4 and 0.6 as there, then the base under that head.

    Client a: gradient 2 (1.4 - 3) 1.4 = -4.48, a = 1.448. Client b: 2 (0.6 + 1) 0.6 = 1.92, a = 0.808.
    The plain mean is 1.128, though b has three samples.
    """
    state, fed = one_round(hand("fedrep", head_epochs=1), product, rows(([1.0], [3]), ([1.0] * 3, [-1] * 3)))
    assert number(state.model["0.weight"]) == pytest.approx(1.128)
    heads = {client: number(kept["part"]["1.weight"]) for client, kept in fed.memory.items()}
    assert heads == pytest.approx({"a": 1.4, "b": 0.6})


def test_apfl() -> None:
    """Loss (w - 3)^2, w = v = 0, alpha = 0.5, lr = 0.1, two steps; v-bar = alpha v + (1 - alpha) w.

    Step 1: w = 0.6; at v-bar = 0 the gradient is -6, v = 0.1 * 0.5 * 6 = 0.3, and alpha stays, for v = w.
    Step 2: w = 1.08; v-bar = 0.45, gradient -5.1, v = 0.3 + 0.1 * 0.5 * 5.1 = 0.555,
    alpha = 0.5 - 0.1 (0.3 - 0.6) (-5.1) = 0.347. With w = 1 the client uses 0.347 * 0.555 + 0.653 = 0.845585.
    """
    c = alone(one_weight)
    method = hand("apfl", epochs=2)
    trained = method.train(c, Models(weight(0.0)))
    assert number(trained.model["weight"]) == pytest.approx(1.08)
    assert number(c.kept["own"]["weight"]) == pytest.approx(0.555)  # type: ignore[index]
    assert number(c.kept["alpha"]) == pytest.approx(0.347)
    kept = {"own": {"weight": c.kept["own"]["weight"][0]}, "alpha": c.kept["alpha"][0]}  # type: ignore[index]
    assert number(method.personal(weight(1.0), kept)["weight"]) == pytest.approx(0.845585)


def test_apfl_without_adaptation_keeps_alpha_and_a_large_step_stays_in_its_range() -> None:
    """v = 1, w = 0: the gradient of f at v-bar = 0.5 is -5 and that of alpha (1 - 0) (-5), so alpha would be 5.5."""
    for adapt, alpha in ((False, 0.5), (True, 1.0)):
        c = alone(one_weight, own=weight(1.0), alpha=torch.tensor(0.5, dtype=torch.float64))
        hand("apfl", adapt=adapt, lr=1.0).train(c, Models(weight(0.0)))
        assert number(c.kept["alpha"]) == alpha


def normalised() -> nn.Module:
    return nn.Sequential(one_weight(1.0), nn.BatchNorm1d(1))


def test_fedbn() -> None:
    """After one batch of inputs 1, 3 the running mean is 0.9 * 0 + 0.1 * 2 and the variance 0.9 + 0.1 * 2; of 10, 30:

    0.1 * 20 and 0.9 + 0.1 * 200. Both stay with their clients, and the server's are the initial ones.
    """
    state, fed = one_round(hand("fedbn"), normalised, rows(([1.0, 3.0], [0, 1]), ([10.0, 30.0], [0, 1])))
    own = hand("fedbn").own_models(state, fed.memory)
    means = {client: number(model["1.running_mean"]) for client, model in own.items()}
    variances = {client: number(model["1.running_var"]) for client, model in own.items()}
    assert means == pytest.approx({"a": 0.2, "b": 2.0})
    assert variances == pytest.approx({"a": 1.1, "b": 20.9})
    assert number(state.model["1.running_mean"]) == 0.0
    assert sorted(fed.memory["a"]["part"]) == [
        *("1.bias", "1.num_batches_tracked", "1.running_mean", "1.running_var", "1.weight")
    ]
    assert number(own["a"]["0.weight"]) == number(state.model["0.weight"]) == number(own["b"]["0.weight"])


def test_fedbn_without_batchnorm_says_what_it_is(digits: OwnPopulation) -> None:
    task = Task(small_net, digits.shape, digits.classes, digits.normalise, dtype=torch.float64)
    notes, method = Rows(), made("fedbn")
    fed = Simulator(method, task, digits, seed=0, options=EngineOptions(workers=1), note=notes.note)
    method.step(method.init(fed), fed)
    assert notes.notes == [
        "fedbn: the network has no BatchNorm layer, so this is FedAvg in which all clients weigh alike."
    ]
    assert fed.memory == {}


def test_pfedme() -> None:
    """Loss (theta - 3)^2, w = theta = 0, lambda = 2, eta = 0.25, lr = 0.1, K = 2, the same batch twice.

    theta: 0.6, then 0.6 - 0.1 (-4.8 + 1.2) = 0.96; w = 0 + 0.5 * 0.96 = 0.48. Then 0.96 - 0.1 (-4.08 + 0.96) = 1.272,
    1.272 - 0.1 (-3.456 + 1.584) = 1.4592; w = 0.48 + 0.5 (1.4592 - 0.48) = 0.9696. The server goes half the way.
    """
    method = hand("pfedme", lam=2.0, outer_lr=0.25, steps=2, epochs=2, server_lr=0.5)
    state, fed = one_round(method, one_weight, rows(([1.0], [3])))
    assert number(fed.memory["a"]["model"]["weight"]) == pytest.approx(1.4592)
    assert number(state.model["weight"]) == pytest.approx(0.4848)


@pytest.mark.parametrize("name", ["fedper", "fedrep", "fedbn"])
def test_a_newcomer_trains_its_own_part_alone(name: str) -> None:
    """The base is 1 and the head 1 before a step on (b - 3)^2: b = 1.4, and the base stays 1."""
    build = normalised if name == "fedbn" else product
    population = rows(([1.0, 1.0], [3, 3]))
    method = hand(name)
    fed = Simulator(method, method.task(task_of(build, population)), population, seed=0)
    state = method.init(fed)
    assert method.admit(state, fed, ("a",)) is state
    fed.commit()
    own = method.own_models(state, fed.memory)["a"]
    assert number(own["0.weight"]) == 1.0
    if name == "fedbn":
        assert number(own["1.running_mean"]) == pytest.approx(0.1)
    else:
        assert number(own["1.weight"]) == pytest.approx(1.4)


@pytest.mark.parametrize(
    ("settings", "build", "said"),
    [
        ({}, one_weight, "fedper shares all layers but the head, and this network has one layer with weights; "),
        ({"head": "7"}, product, "there is no layer '7' with weights; set head to last, or to some of 0, 1,"),
        ({"head": "0, 1"}, product, "the head is the whole network, so nothing is shared; name fewer layers in head."),
    ],
)
def test_a_head_that_cannot_be_is_one_sentence(
    settings: dict[str, Any], build: Callable[[], nn.Module], said: str
) -> None:
    with pytest.raises(CoterieError) as error:
        one_round(hand("fedper", **settings), build, rows(([1.0], [3])))
    assert said in str(error.value)


def test_a_head_with_a_shared_weight_is_one_sentence() -> None:
    def tied() -> nn.Module:
        layers = [nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 1)]
        layers[2].weight = layers[0].weight
        return nn.Sequential(*layers)

    with pytest.raises(CoterieError, match="the head shares a weight with layer '0'"):
        one_round(hand("fedper"), tied, rows(([1.0], [3])))


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("ditto", {"lam": -1.0}, "ditto: lam must be at least 0"),
        ("ditto", {"own_epochs": -1}, "ditto: own_epochs must be at least 0"),
        ("fedrep", {"head_epochs": 0}, "fedrep: head_epochs must be at least 1"),
        ("apfl", {"alpha": 1.5}, r"apfl: alpha must lie in \[0, 1\]"),
        ("pfedme", {"lam": 30.0, "outer_lr": 0.01}, "pfedme: lam must be below 2 / lr = 20, or steps on theta diverge"),
        ("pfedme", {"lam": 4.0, "outer_lr": 0.5}, r"pfedme: outer_lr must lie in \(0, 1 / lam = 0.25\]"),
    ],
)
def test_settings_are_checked(name: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(CoterieError, match=said):
        hand(name, **settings)


def test_other_layers_can_be_the_head() -> None:
    state, fed = one_round(hand("fedper", head="0"), product, rows(([1.0], [3])))
    assert list(fed.memory["a"]["part"]) == ["0.weight"]
    assert number(state.model["1.weight"]) == pytest.approx(1.4)


@pytest.mark.parametrize("name", ["ditto", "apfl"])
def test_the_common_model_is_fedavgs(name: str) -> None:
    """What is personal does not reach it, where clients have as many samples each."""
    population = rows(([1.0, 2.0], [3, 1]), ([2.0, 1.0], [0, 2]))
    own, _ = one_round(hand(name, epochs=3, batch=1), one_weight, population)
    common, _ = one_round(hand("fedavg", epochs=3, batch=1), one_weight, population)
    assert largest_gap(own.model, common.model) < 1e-12

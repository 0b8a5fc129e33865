"""No result depends on the device: every method on a stand-in for an accelerator (tests/accelerator), which refuses
tensors that are somewhere else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from coterie import METHODS, run
from coterie.core import devices, side_by_side
from coterie.core.aggregate import RULES, Rule, combined
from coterie.core.cohort import Cohort
from coterie.core.errors import CoterieError
from coterie.core.optimiser import Optimiser
from coterie.core.states import cosine, spread
from coterie.core.task import Task
from coterie.core.training import local_sgd
from coterie.data.own import OwnPopulation
from coterie.simulation.simulator import EngineOptions
from tests.accelerator.device import COMPILER, NAME, spawned_net
from tests.conftest import Command
from tests.tiny import batchnorm_net, cohort, largest_gap, made, only, small_net

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler to build the stand-in with")
CPU, THERE = EngineOptions(workers=1, kernel=False), EngineOptions(workers=1, device=NAME)


def dropout_net() -> nn.Module:
    """A net that draws in its forward pass."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.5), nn.Linear(8, 10))


def test_accelerator_takes_no_tensor_of_the_cpu() -> None:
    """What makes the other tests worth something: a missed move fails, by operation and by address."""
    x = torch.ones(2, 3, device=NAME)
    with pytest.raises(RuntimeError, match="all tensors to be on"):
        x + torch.ones(2, 3)
    with pytest.raises(RuntimeError, match="all tensors to be on"):
        torch.cat([x, torch.ones(2, 3)])
    with pytest.raises(RuntimeError, match="all tensors to be on"):
        nn.Linear(3, 1)(x)
    with pytest.raises(TypeError, match="numpy"):
        x.numpy()
    assert (x + 1).sum().item() == 12
    assert x.cpu().device.type == "cpu"


@pytest.mark.parametrize("name", METHODS)
def test_accelerator_gives_the_results_of_the_cpu(name: str, digits: OwnPopulation) -> None:
    net: Callable[[], nn.Module] = batchnorm_net if name in ("fedavg", "fedbn", "gossip") else small_net
    some = only(digits, digits.ids[:6])  # two of each group
    method = made(name, epochs=1, finetune_epochs=int(name == "fedavg"))
    expected = run(method, some, net, rounds=2, engine=CPU)
    result = run(method, some, net, rounds=2, engine=THERE)
    assert result.clusters == expected.clusters
    assert result.per_client_accuracy == pytest.approx(expected.per_client_accuracy, abs=1e-6)
    assert result.per_client_finetuned_accuracy == pytest.approx(expected.per_client_finetuned_accuracy, abs=1e-6)
    assert result.models.keys() == expected.models.keys()
    for which, model in result.models.items():
        assert all(tensor.device.type == "cpu" for tensor in model.values()), "results are back"
        assert largest_gap(model, expected.models[which]) < 1e-5


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "scaffold", "ifca", "auto", "panm"])
def test_accelerator_trains_several_clients_at_once(
    name: str, digits: OwnPopulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the trial says that it pays, which here it is made to say."""
    together: list[int] = []
    trained = side_by_side.trained

    def counted(c: Cohort, *rest: Any) -> Any:
        together.append(len(c))
        return trained(c, *rest)

    monkeypatch.setattr(side_by_side, "pays", lambda *_: True)
    monkeypatch.setattr(side_by_side, "trained", counted)
    some = only(digits, digits.ids[:6])
    method = made(name, epochs=1, finetune_epochs=0)
    expected = run(method, some, small_net, rounds=2, engine=CPU)
    result = run(method, some, small_net, rounds=2, engine=THERE)
    assert max(together) > 1
    assert result.clusters == expected.clusters
    for which, model in result.models.items():
        assert largest_gap(model, expected.models[which]) < 1e-5


@pytest.mark.parametrize("settings", [{"optimiser": "adam"}, {"aggregate": "median"}, {"aggregate": "krum"}])
def test_accelerator_knows_every_setting_of_the_training(settings: dict[str, str], digits: OwnPopulation) -> None:
    expected = run(made("fedavg", **settings), digits, dropout_net, rounds=2, engine=CPU)
    result = run(made("fedavg", **settings), digits, dropout_net, rounds=2, engine=THERE)
    assert largest_gap(result.models["global"], expected.models["global"]) < 1e-5


@pytest.mark.parametrize("rule", RULES)
def test_accelerator_averages(rule: Rule) -> None:
    numbers = torch.Generator().manual_seed(1)
    models = {"w": torch.randn(9, 4, 5, generator=numbers), "n": torch.arange(9)}
    models["w"][3] *= 50
    previous = {name: tensor[:2] for name, tensor in models.items()}
    groups, weights = torch.arange(9) % 2, torch.arange(1.0, 10.0)
    expected = combined(rule, models, weights, groups, previous)
    with devices.computing_on(torch.device(NAME)):
        found = combined(rule, models, weights, groups, previous)
        assert torch.allclose(cosine(models["w"][:, 0]), cosine(models["w"][:, 0].clone()))
    assert largest_gap(found, expected) < 1e-6


def test_accelerator_shared_by_processes_that_are_spawned(digits: OwnPopulation) -> None:
    """Two processes on one device; a fork would not have survived it."""
    expected = run(made("scaffold"), digits, small_net, rounds=2, engine=CPU)
    result = run(made("scaffold"), digits, spawned_net, rounds=2, engine=EngineOptions(workers=2, device=NAME))
    assert "2 processes" in result.engine
    assert largest_gap(result.models["global"], expected.models["global"]) < 1e-5


def test_accelerator_is_chosen_by_name(coterie: Command, digits: OwnPopulation) -> None:
    assert devices.chosen("auto").type == NAME, "it is the one that torch finds"
    assert devices.all_of(torch.device(NAME)) == [torch.device(NAME, 0)]
    assert devices.chosen("cpu") == torch.device("cpu")
    for name in ("cuda", "no-such-device"):
        with pytest.raises(CoterieError, match=f"engine.device = {name} cannot be used here"):
            devices.chosen(name)
    said = coterie("run", "fedavg", "--set", "engine.device=cuda:7")
    assert said.code == 2
    assert "use cpu, or auto" in said.err


def test_accelerator_or_cpu_in_mixed_precision(digits: OwnPopulation) -> None:
    """Forward in bfloat16 (8 bits of mantissa, so errors of about 2^-8), weights and states in full precision."""
    full = Task.of(batchnorm_net, digits)
    start = full.init(3)
    trained = []
    for task in (replace(full, use_kernel=False), replace(full, precision="bfloat16")):
        c = cohort(digits, task, ["c1"])
        trained.append(local_sgd(c, spread(start, 1), Optimiser(epochs=2, batch=4, lr=0.05)))
    gap = largest_gap(trained[0], trained[1])
    assert 0 < gap < 0.1
    assert {name: tensor.dtype for name, tensor in trained[1].items()} == {n: t.dtype for n, t in start.items()}
    result = run(made("fedavg"), digits, small_net, rounds=1, engine=EngineOptions(workers=1, precision="bfloat16"))
    assert "precision bfloat16" in result.engine

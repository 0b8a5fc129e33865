"""How the clients are shared out never changes what comes out: for every method there is."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from coterie import Result, run
from coterie.core.states import row, spread
from coterie.core.task import Task
from coterie.core.training import local_sgd
from coterie.data.own import OwnPopulation
from coterie.methods import METHODS
from coterie.methods.base import RoundMethod
from coterie.simulation.simulator import EngineOptions

from ..tiny import (
    batchnorm_net,
    cohort,
    compiled_batchnorm_net,
    driven,
    fingerprint,
    largest_gap,
    made,
    only,
    six_digits,
    small_net,
)

EVERY = sorted(METHODS)
TORCH_ALONE = ("apfl", "fedrep")
"""Methods that train in ways that the kernel does not know."""


def play(name: str, population: OwnPopulation, net: Any = small_net, **options: Any) -> Result:
    """Two short rounds; the models are fine-tuned at the end, for one epoch instead of five."""
    dtype = options.pop("dtype", torch.float32)
    method = made(name, epochs=1, finetune_epochs=1)
    return run(method, population, net, rounds=2, seed=1, dtype=dtype, engine=EngineOptions(**options))


@pytest.fixture
def six() -> OwnPopulation:
    return six_digits()


@pytest.mark.parametrize("name", EVERY)
def test_lanes_and_threads_change_nothing_in_the_kernel(name: str, six: OwnPopulation) -> None:
    alone = play(name, six, lanes=1, workers=1)
    assert alone.engine.startswith("compiled kernel") or type(driven(name)).task is not RoundMethod.task
    for lanes, workers in ((2, 2), (len(six.ids), 1)):
        other = play(name, six, lanes=lanes, workers=workers)
        assert fingerprint(other) == fingerprint(alone), (lanes, workers)


@pytest.mark.parametrize("name", EVERY)
def test_lanes_and_processes_change_nothing_in_torch(name: str, six: OwnPopulation) -> None:
    """With BatchNorm: its statistics are in the saved models too, and have moved."""
    alone = play(name, six, batchnorm_net, lanes=1, workers=1)
    assert "torch, 1 thread" in alone.engine
    shared = play(name, six, batchnorm_net, lanes=2, workers=2)
    assert "torch, 2 processes" in shared.engine
    assert fingerprint(shared) == fingerprint(alone)
    entries = [{entry.rsplit(".", 1)[-1]: tensor for entry, tensor in model.items()} for model in alone.models.values()]
    known = [buffers for buffers in entries if {"running_mean", "running_var", "num_batches_tracked"} <= buffers.keys()]
    # a method with a net of its own beside the user's may save that too
    assert len(known) == len(entries) > 0 or type(driven(name)).task is not RoundMethod.task
    moved = sum(float(buffers["running_mean"].abs().sum()) for buffers in known)
    assert moved > 0


@pytest.mark.parametrize("name", ["fedavg", "fedbn", "fedprox", "scaffold", "ifca", "gossip"])
def test_the_kernel_keeps_the_laws_with_statistics(name: str, six: OwnPopulation) -> None:
    alone = play(name, six, compiled_batchnorm_net, lanes=1, workers=1)
    assert alone.engine.startswith("compiled kernel")
    shared = play(name, six, compiled_batchnorm_net, lanes=2, workers=2)
    assert fingerprint(shared) == fingerprint(alone)
    compiled, plain = (
        play(name, six, compiled_batchnorm_net, dtype=torch.float64, workers=1, kernel=kernel)
        for kernel in (True, False)
    )
    for model in compiled.models:
        assert largest_gap(compiled.models[model], plain.models[model]) < 1e-9
        counters = [tensor for key, tensor in plain.models[model].items() if key.endswith("num_batches_tracked")]
        assert name == "fedbn" or any(int(counter.sum()) > 0 for counter in counters)  # its clients keep theirs


@pytest.mark.parametrize("name", EVERY)
def test_kernel_and_torch_agree_in_float64(name: str, six: OwnPopulation) -> None:
    compiled = play(name, six, dtype=torch.float64, workers=1)
    plain = play(name, six, dtype=torch.float64, workers=1, kernel=False)
    assert compiled.engine != plain.engine or name in TORCH_ALONE
    assert compiled.clusters == plain.clusters
    assert compiled.models.keys() == plain.models.keys()
    for model in compiled.models:
        assert largest_gap(compiled.models[model], plain.models[model]) < 1e-9


@pytest.mark.parametrize("use_kernel", [True, False])
@pytest.mark.parametrize("absent", ["c0", "c4", "c8"])
def test_an_absent_client_changes_nobody_elses_training(digits: OwnPopulation, absent: str, use_kernel: bool) -> None:
    task = Task(small_net, digits.shape, digits.classes, digits.normalise, use_kernel=use_kernel)
    start, opt = task.init(1), made("fedavg").opt
    everyone = local_sgd(cohort(digits, task), spread(start, 9), opt)
    rest = [client for client in digits.ids if client != absent]
    others = local_sgd(cohort(digits, task, rest), spread(start, 8), opt)
    for place, client in enumerate(rest):
        assert largest_gap(row(others, place), row(everyone, list(digits.ids).index(client))) == 0


def test_an_absent_client_changes_nobody_elses_order_of_clients(digits: OwnPopulation) -> None:
    """What clients do in later rounds is theirs too: without communication, one leaving changes nothing at all."""
    everyone = play("local", digits)
    rest = play("local", only(digits, [client for client in digits.ids if client != "c3"]))
    for model, state in rest.models.items():
        assert largest_gap(state, everyone.models[model]) == 0

"""No arithmetic of a client depends on the number of threads, wherever it runs, nor on which engine carries it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from threadpoolctl import threadpool_info  # type: ignore[import-untyped]
from torch import Tensor

import coterie
from coterie.core.cohort import Cohort
from coterie.core.federation import Federation, Nothing, on_client
from coterie.core.task import Task
from coterie.core.threads import one_thread, one_thread_everywhere, worker_pool
from coterie.data.own import OwnPopulation
from coterie.methods import METHODS
from coterie.methods.fedavg import FedAvg
from coterie.simulation.simulator import EngineOptions, Simulator

from ..deploy.wiring import Here, devices, federation
from ..tiny import batchnorm_net, small_net

THREADS = 4


@pytest.fixture(autouse=True)
def _many_threads() -> Iterator[None]:
    """A machine whose torch uses four threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    yield
    torch.set_num_threads(before)


def threads_of_torch() -> int:
    """How many threads a parallel sum would use in this thread now.

    Asked of OpenMP, not of torch: torch's own answer sets the number in a thread that is new.
    """
    found = [each for each in threadpool_info() if each["user_api"] == "openmp" and "torch" in each["filepath"]]
    if not found:
        pytest.skip("torch brings no OpenMP of its own here")
    return max(int(each["num_threads"]) for each in found)


@dataclass(frozen=True)
class Count:
    threads: Tensor


@dataclass(frozen=True)
class Table:
    """A bare tensor for everyone, and a number for each."""

    table: Tensor
    own: Tensor


@dataclass(frozen=True)
class Seen:
    total: Tensor
    own: Tensor


@dataclass(frozen=True)
class Probe(FedAvg):
    name: ClassVar[str] = "probe"

    @on_client
    def count_threads(self, c: Cohort, sent: Nothing) -> Count:
        return Count(torch.full((len(c),), threads_of_torch()))

    @on_client
    def look_up(self, c: Cohort, sent: Table) -> Seen:
        assert sent.own.shape == (len(c),)
        return Seen(torch.full((len(c),), float(sent.table.sum())), sent.own)


@pytest.fixture
def engines(digits: OwnPopulation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Federation]]:
    """Every way in which client work is done: one thread, threads, processes, devices behind a wire."""
    monkeypatch.setitem(METHODS, Probe.name, Probe)
    probe = Probe()

    def simulator(net: object, workers: int) -> Simulator:
        task = Task(net, digits.shape, digits.classes, digits.normalise)  # type: ignore[arg-type]
        return Simulator(probe, task, digits, seed=0, options=EngineOptions(workers=workers))

    remote = federation(probe, digits, Here(devices(digits, tmp_path)))
    remote.begin(0)
    made = {
        "alone": simulator(small_net, 1),
        "threads": simulator(small_net, 3),
        "processes": simulator(batchnorm_net, 2),
        "devices": remote,
    }
    yield made  # type: ignore[misc]
    for engine in made.values():
        engine.close()


def test_client_work_has_one_thread_on_every_engine(engines: dict[str, Federation]) -> None:
    for name, fed in engines.items():
        counted = fed.ask(Probe().count_threads, fed.ids, same=Nothing()).value
        assert counted is not None
        assert counted.threads.tolist() == [1] * len(fed.ids), name
    assert torch.get_num_threads() == THREADS


def test_a_bare_tensor_can_be_common_on_every_engine(engines: dict[str, Federation]) -> None:
    """The table 0 + 1 + ... + 4 = 10 is whole for everyone, though it has fewer rows than there are clients."""
    for name, fed in engines.items():
        message = Table(torch.arange(5.0), torch.arange(9.0))
        seen = fed.ask(Probe().look_up, fed.ids, each=message, common=("table",)).value
        assert seen is not None, name
        assert seen.total.tolist() == [10.0] * 9, name
        assert seen.own.tolist() == list(range(9)), name


def test_engines_count_the_same_bytes_of_a_common_tensor(engines: dict[str, Federation]) -> None:
    for fed in engines.values():
        fed.ask(Probe().look_up, fed.ids, each=Table(torch.arange(5.0), torch.arange(9.0)), common=("table",))
    sent = {name: getattr(fed, "ledger").down["train"] for name, fed in engines.items()}  # noqa: B009
    assert len(set(sent.values())) == 1, sent


def test_threads_of_a_pool_have_one_thread_each() -> None:
    with worker_pool(2) as pool:
        assert list(pool.map(lambda _: threads_of_torch(), range(4))) == [1] * 4


def test_one_thread_is_given_back_and_nests() -> None:
    with one_thread():
        with one_thread():
            assert threads_of_torch() == 1
        assert threads_of_torch() == 1
    assert torch.get_num_threads() == THREADS
    with one_thread_everywhere():
        assert {each["num_threads"] for each in threadpool_info()} == {1}
    assert torch.get_num_threads() == THREADS


def test_pools_are_made_in_one_place() -> None:
    """A pool made elsewhere would use all cores inside one client; these two do no arithmetic."""
    root = Path(coterie.__file__).parent
    found = {
        str(file.relative_to(root))
        for file in root.rglob("*.py")
        if re.search(r"ThreadPoolExecutor\(|set_num_threads\(", file.read_text())
    }
    assert found == {"core/threads.py", "kernel/build.py", "data/sources/images.py"}


def test_networks_that_threads_build_at_once_begin_as_those_of_one_thread(digits: OwnPopulation) -> None:
    """Layers draw from torch's one generator, and torch.fx replaces the calls of all modules while it traces."""
    alone = Task.of(small_net, digits).init(3)

    def made(_: int) -> dict[str, Tensor]:
        task = Task.of(small_net, digits)
        assert task.compiled is not None
        return task.init(3)

    with worker_pool(8) as pool:
        for state in pool.map(made, range(32)):
            assert all(torch.equal(state[name], tensor) for name, tensor in alone.items())

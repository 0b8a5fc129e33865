"""A Ray cluster of two nodes on this machine: the same results as without it, also when a node is lost in mid-round."""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from coterie import run
from coterie.core.cohort import Cohort
from coterie.core.errors import CoterieError
from coterie.core.federation import on_client
from coterie.data import build
from coterie.data.own import OwnPopulation
from coterie.data.population import LazyPopulation
from coterie.methods.base import Models, Trained
from coterie.methods.fedavg import FedAvg
from coterie.simulation.ray_workers import RayWorkers
from coterie.simulation.simulator import EngineOptions
from tests.conftest import Command
from tests.tiny import TRAINING, batchnorm_net, fingerprint, made, small_net

# before Ray is loaded: nothing is reported to anybody, and all sockets are on the loopback (Ray's name for that is odd)
os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0")
pytest.importorskip("ray", reason="Ray is not installed")
ALONE = EngineOptions(workers=1)


@dataclass(frozen=True)
class TellsWhere(FedAvg):
    """FedAvg whose clients write down on which node they train, and pull the plug of one node once."""

    folder: str = ""

    @on_client("models")
    def train(self, c: Cohort, sent: Models) -> Trained:
        if self.folder:
            import ray

            node = ray.get_runtime_context().get_node_id()
            Path(self.folder, node).touch()
            doomed, dead = Path(self.folder, "doomed"), Path(self.folder, "dead")
            if doomed.exists() and doomed.read_text() == node:
                doomed.rename(dead)
                os.kill(os.getppid(), signal.SIGKILL)  # the node's own process
                os._exit(1)  # and this one, as when a machine is lost: of itself it would end only after a minute
            until = time.monotonic() + 60
            while not dead.exists() and time.monotonic() < until:
                time.sleep(0.05)  # so that the other node gets a client, however slow it starts
        return super().train(c, sent)


@dataclass(frozen=True)
class Failing(FedAvg):
    """FedAvg with a mistake in it."""

    @on_client("models")
    def train(self, c: Cohort, sent: Models) -> Trained:
        return Trained(sent.models, c.no_such_thing)  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    import ray
    from ray.cluster_utils import Cluster

    before = dict(os.environ)
    here: dict[str, Any] = {"num_cpus": 1, "node_ip_address": "127.0.0.1", "object_store_memory": 100_000_000}
    made: Any = Cluster(initialize_head=True, head_node_args={**here, "include_dashboard": False})
    made.add_node(**here)
    yield made
    ray.shutdown()
    made.shutdown()
    os.environ.clear()  # Ray changes it, for instance what Python does at a breakpoint
    os.environ.update(before)


@pytest.fixture
def joined(cluster: Any) -> Any:
    """The same cluster, which this process has joined: its workers then serve several runs, and import torch once."""
    import ray

    if not ray.is_initialized():
        ray.init(address=cluster.address, log_to_driver=False)
    return cluster


def on(cluster: Any) -> EngineOptions:
    return EngineOptions(backend="ray", address=cluster.address)


def check_the_same_run(name: str, net: Any, cluster: Any, digits: OwnPopulation) -> None:
    alone = run(made(name), digits, net, rounds=2, engine=ALONE)
    result = run(made(name), digits, net, rounds=2, engine=on(cluster))
    assert fingerprint(result) == fingerprint(alone)
    assert "Ray with 2 processors on 2 nodes" in result.engine


def test_ray_gives_the_same_run(cluster: Any, digits: OwnPopulation) -> None:
    """With client memories, on the kernel; the run joins the cluster and leaves it."""
    import ray

    check_the_same_run("scaffold", small_net, cluster, digits)
    assert not ray.is_initialized()


def test_ray_gives_the_same_run_with_buffers(joined: Any, digits: OwnPopulation) -> None:
    """On torch, in a cluster that the user has joined and stays in."""
    import ray

    check_the_same_run("ifca", batchnorm_net, joined, digits)
    assert ray.is_initialized()


def test_ray_makes_a_named_population_where_it_is_used() -> None:
    """What is sent of a population of a scenario is how it is made, not its data."""
    population = build("rotated-digits", seed=1, clients=4, samples=10, test_samples=10)
    sent = pickle.dumps(population)
    assert len(sent) < 1000
    again: LazyPopulation = pickle.loads(sent)
    assert again.ids == population.ids
    first, second = again.client("1").train, population.client("1").train
    assert first.x.equal(second.x)
    assert first.y.equal(second.y)


def test_ray_names_what_a_client_function_fails_with(joined: Any, digits: OwnPopulation) -> None:
    with pytest.raises(RuntimeError, match="no_such_thing"):
        run(Failing(**TRAINING), digits, small_net, rounds=1, engine=on(joined))


def test_ray_does_the_work_of_a_lost_node_again(joined: Any, digits: OwnPopulation, tmp_path: Path) -> None:
    """The second node is killed, with all its processes, while a client trains there."""
    alone = run(TellsWhere(**TRAINING), digits, small_net, rounds=2, engine=ALONE)
    doomed = joined.worker_nodes.copy().pop()
    (tmp_path / "doomed").write_text(doomed.node_id)
    result = run(TellsWhere(**TRAINING, folder=str(tmp_path)), digits, small_net, rounds=2, engine=on(joined))
    assert fingerprint(result)["models"] == fingerprint(alone)["models"]
    assert fingerprint(result)["accuracy"] == fingerprint(alone)["accuracy"]
    assert result.failures == 0, "no client's reply is missing"
    nodes = {file.name for file in tmp_path.iterdir()} - {"doomed", "dead"}
    assert len(nodes) == 2, "both nodes have worked"
    assert (tmp_path / "dead").exists()


def test_ray_nodes_that_go_or_come_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    workers, notes = RayWorkers.__new__(RayWorkers), list[str]()
    workers._known, workers._note = {"0123456789": "10.0.0.7"}, notes.append
    monkeypatch.setattr(RayWorkers, "_nodes", lambda _: {"9876543210": "10.0.0.8"})
    workers._look()
    workers._look()
    assert notes == [
        "the Ray node 01234567 at 10.0.0.7 is gone; its work is done again elsewhere",
        "the Ray node 98765432 at 10.0.0.8 has come",
    ]


def test_ray_that_is_not_there_is_said_in_a_sentence(coterie: Command, tmp_path: Path) -> None:
    said = coterie("run", "fedavg", "--set", "engine.address=127.0.0.1:1", "--out", tmp_path / "run")
    assert said.code == 2
    assert "engine.address is that of a Ray cluster; set engine.backend = ray, too." in said.err
    with pytest.raises(CoterieError, match="must be local or ray"):
        EngineOptions(backend="slurm")  # type: ignore[arg-type]

"""MD-ICFL, what is ours: seeded clusters, when they are believed and held, and how newcomers find theirs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from coterie import run
from coterie.core import wire
from coterie.core.panels import Heatmap, ImageGrid
from coterie.core.states import row
from coterie.core.task import Task
from coterie.data import build
from coterie.data.own import OwnPopulation
from coterie.methods.base import Models
from coterie.methods.md_icfl.messages import Distanced
from coterie.methods.md_icfl.method import MDICFL
from coterie.simulation.faults import Faults
from coterie.simulation.simulator import Simulator

from ..tiny import small_net
from .test_md_icfl import md


def test_absent_clients_keep_their_cluster_and_newcomers_get_one(digits: OwnPopulation) -> None:
    method = md(seeding="none", fraction=3)
    fed = Simulator(method, Task.of(small_net, digits), digits, seed=1)
    state, seen = method.init(fed), set()
    for number in range(5):
        fed.round = number
        before = state
        present = set(fed.sample(method.fraction))
        state, log = method.step(state, fed)
        fed.commit()
        seen |= present
        assert set(state.cluster) == seen
        assert all(state.cluster[client] == before.cluster[client] for client in set(before.cluster) - present)
        moved = [c for c in before.cluster if state.cluster[c] != before.cluster[c]]
        assert log["moved"] == len(moved)
    fed.close()


def test_seeding_finds_the_rotations_and_the_distance_keeps_them() -> None:
    population = build("rotated-digits", seed=1, clients=16, samples=60, test_samples=10)
    method = MDICFL(per_class=3, steps=20, warm_steps=5, hold=1, patience=8)
    result = run(method, population, lambda: torch.nn.Sequential(*_layers()), rounds=12)
    assert result.ari == 1.0
    assert result.state.seeds is None
    grid, *matrices = method.panels(result.state, result.client_ids, result.truth)
    assert isinstance(grid, ImageGrid)
    assert (len(grid.images), len(grid.images[0])) == (4, 10)
    assert len(matrices) == 4
    assert all(isinstance(panel, Heatmap) and len(panel.z) == 10 for panel in matrices)
    # each cluster's own clients read its samples mostly as the class they were made for
    assert float(result.state.outputs.diagonal(dim1=1, dim2=2).mean()) > 0.5


def _layers() -> list[torch.nn.Module]:
    return [torch.nn.Flatten(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)]


def learnt(method: MDICFL, population: Any, rounds: int) -> tuple[Simulator, Distanced]:
    """A federation and its state after some rounds."""
    fed = Simulator(method, Task.of(lambda: torch.nn.Sequential(*_layers()), population), population, seed=1)
    state = method.init(fed)
    for number in range(rounds):
        fed.begin(number)
        state, _ = method.step(state, fed)
        fed.commit()
    return fed, state


@pytest.mark.parametrize("privacy", ["weak", "strong"])
def test_newcomers_download_one_model_and_find_their_cluster(privacy: str) -> None:
    """Eight clients that never trained: one model down, one up, and everybody is with the clients of its rotation.

    The rate is the scenario's, which only `run` looks up.
    """
    population = build("rotated-digits", seed=1, clients=24, samples=60, test_samples=10, unseen=8)
    quick: dict[str, Any] = {"per_class": 3, "steps": 20, "warm_steps": 5, "hold": 1, "patience": 8, "lr": 0.1}
    method = MDICFL(**quick, privacy=privacy)  # type: ignore[arg-type]
    fed, state = learnt(method, population, 10)
    new = list(population.unseen_ids)
    before = fed.ledger.down["train"]
    after = method.admit(state, fed, new)
    fed.close()
    one = wire.encoded_size(Models(row(state.models, 0)))
    assert len(new) * one <= fed.ledger.down["train"] - before < len(new) * 1.3 * one
    usual = {population.group(client): cluster for client, cluster in state.cluster.items()}
    assert [after.cluster[client] for client in new] == [usual[population.group(client)] for client in new]
    assert {client: after.cluster[client] for client in state.cluster} == state.cluster


def test_newcomers_are_asked_nothing_before_there_are_clusters(digits: OwnPopulation) -> None:
    """While the seeding goes on, and with K = 1, there is one model for all; a newcomer that is lost has none."""
    for method in (md(patience=9), md(k=1)):
        fed = Simulator(method, Task.of(small_net, digits), digits, seed=0)
        state = method.init(fed)
        assert method.admit(state, fed, digits.ids) is state
        assert fed.ledger.down["train"] == 0
        fed.close()
    method = md(seeding="none")
    task = Task.of(small_net, digits)
    fed = Simulator(method, task, digits, seed=0)
    state, _ = method.step(method.init(fed), fed)
    fed.close()
    known = {client: cluster for client, cluster in state.cluster.items() if client != "c3"}
    silent = Simulator(method, task, digits, seed=0, faults=Faults(dropout=1.0))
    assert method.admit(replace(state, cluster=known), silent, ["c3"]).cluster == known
    silent.close()


def test_impatient_seeding_takes_what_it_has(digits: OwnPopulation) -> None:
    result = run(md(patience=1), digits, small_net, rounds=1)
    assert result.state.seeds is None
    assert result.n_clusters == 3


def test_groups_are_believed_once_enough_rounds_agree() -> None:
    """Ten clients in two groups that show at once: with one look, then with each agreement more a round later."""
    clients = build("rotated-digits", seed=0, clients=10, groups=2, samples=60)

    def rounds(agree: int) -> int:
        """How many rounds the seeding takes."""
        method = md(k=2, patience=99, agree=agree)
        fed = Simulator(method, method.task(Task.of(small_net, clients)), clients, seed=0)
        state = method.init(fed)
        for number in range(9):
            fed.round = number
            state, _ = method.step(state, fed)
            fed.commit()
            if state.seeds is None:
                break
        fed.close()
        return number + 1

    assert [rounds(agree) for agree in (1, 2, 3)] == [1, 2, 3]


def test_samples_that_their_own_model_does_not_know_move_nobody_who_was_seeded(digits: OwnPopulation) -> None:
    def seeded(**settings: Any) -> tuple[list[int] | None, list[int] | None]:
        method = md(patience=1, margin=0.0, **settings)
        return tuple(run(method, digits, small_net, rounds=rounds).clusters for rounds in (1, 4))  # type: ignore[return-value]

    first, last = seeded(trust=0.0)
    assert first == last
    first, last = seeded()
    assert first != last
    # a random first cluster deserves no such loyalty
    strict, free = (run(md(seeding="none", trust=t), digits, small_net, rounds=3).clusters for t in (0.0, 100.0))
    assert strict == free


def test_seeding_less_labels(digits: OwnPopulation) -> None:
    """The labels' part is gone from the directions: they are at right angles to p(y) but for the ridge."""
    plain, less = (run(md(seeding=kind), digits, small_net, rounds=1).state for kind in ("cosine", "cosine-labels"))
    shares = torch.stack([less.labels[client] for client in digits.ids]).float()
    along = [float((shares.T @ torch.stack([s.seeds.vectors[c] for c in digits.ids])).norm()) for s in (plain, less)]
    assert along[1] != pytest.approx(along[0], rel=0.01)

"""Embedding clustering of clients that come later, are lost on the way, or drift."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coterie import run
from coterie.core.samples import (
    ClientData,
    Samples,
)
from coterie.core.states import count
from coterie.data import Drift, build
from coterie.data.own import OwnPopulation
from coterie.data.population import LazyPopulation
from coterie.data.sources.digits import LEVELS
from coterie.methods.embedding.bits import unpack_bits
from coterie.methods.embedding.method import Embedding
from coterie.simulation.faults import Faults

from .embedded import QUICK, ROUNDS, ari, federation, net


def test_newcomers_go_to_the_nearest_centre_which_follows_them(rotated: LazyPopulation, file: str) -> None:
    method = Embedding(encoder=file, **QUICK)
    result = run(method, rotated, net, rounds=ROUNDS, faults=Faults(joins=((2, 6),)))
    state = result.state
    assert len(state.cluster) == 40
    assert ari(rotated, state) > 0.9
    ids = sorted(state.cluster)
    bits = unpack_bits(torch.stack([state.bits[client] for client in ids]), 200)
    for cluster in range(4):
        members = [i for i, client in enumerate(ids) if state.cluster[client] == cluster]
        assert np.allclose(state.centroids.means[cluster], bits[members].mean(0))
        assert state.centroids.sizes[cluster] == len(members)


def test_a_newcomer_with_unknown_and_missing_classes(rotated: LazyPopulation, file: str) -> None:
    """It has classes 0 to 4 of the federation's ten, and one (57) that nobody else knows."""
    whole = rotated.client("01").train
    known = whole.y < 5
    odd = Samples(torch.cat([whole.x[known], whole.x[:3]]), torch.cat([whole.y[known], torch.full((3,), 57)]))
    clients = {client: rotated.client(client) for client in rotated.ids}
    groups = {client: int(rotated.group(client) or 0) for client in rotated.ids}
    everyone = OwnPopulation(
        {**clients, "odd": ClientData(odd, odd)}, rotated.shape, 10, rotated.normalise, {**groups, "odd": groups["01"]}
    )
    method = Embedding(encoder=file)
    fed = federation(method, everyone)
    start = method.init(federation(method, rotated))
    after = method.admit(start, fed, ["odd"])
    assert after.cluster["odd"] == start.cluster["01"]
    assert {client: after.cluster[client] for client in start.cluster} == start.cluster


@pytest.fixture(scope="module")
def with_negatives(rotated: LazyPopulation) -> OwnPopulation:
    """The 40 clients of four rotations, and 40 more, a fifth group, whose digits are dark on white."""
    clients = {client: rotated.client(client) for client in rotated.ids}
    groups = {client: int(rotated.group(client) or 0) for client in rotated.ids}
    upright = build("rotated-digits", seed=9, groups=1)
    for client in upright.ids:
        data = upright.client(client)
        clients[f"new {client}"] = ClientData(*(Samples(LEVELS - part.x, part.y) for part in (data.train, data.test)))
        groups[f"new {client}"] = 4
    return OwnPopulation(clients, rotated.shape, 10, rotated.normalise, groups)


@pytest.mark.parametrize("at_once", [40, 7, 1])
def test_newcomers_of_a_group_of_their_own_found_one_cluster(
    with_negatives: OwnPopulation, rotated: LazyPopulation, file: str, at_once: int
) -> None:
    """All 40 at once, some at a time, one by one: in the end they have one cluster, and nobody else has moved."""
    method = Embedding(encoder=file)
    start = method.init(federation(method, rotated))
    fed, state = federation(method, with_negatives), start
    new = [client for client in with_negatives.ids if client not in start.cluster]
    for first in range(0, 40, at_once):
        state = method.admit(state, fed, new[first : first + at_once])
    assert {client: state.cluster[client] for client in start.cluster} == start.cluster
    assert [state.cluster[client] for client in new] == [4] * 40
    assert count(state.models) == 5
    assert state.centroids is not None
    assert state.centroids.sizes.tolist() == np.bincount(list(state.cluster.values())).tolist()


def test_newcomers_of_a_new_group_train_their_own_model(with_negatives: OwnPopulation, file: str) -> None:
    """In a run: 40 of the 80 clients join later, and the drift that is followed leaves them together."""
    method = Embedding(encoder=file, reembed=1, **QUICK)
    result = run(method, with_negatives, net, rounds=3, faults=Faults(joins=((1, 40),)))
    assert result.n_clusters == 5
    assert (result.ari or 0) > 0.95
    assert "cluster-4" in result.models


def test_the_paper_sends_every_newcomer_to_the_nearest_centre(
    with_negatives: OwnPopulation, rotated: LazyPopulation, file: str
) -> None:
    method = Embedding(encoder=file, newcomers="nearest")
    start = method.init(federation(method, rotated))
    state = method.admit(start, federation(method, with_negatives), with_negatives.ids)
    assert len(state.cluster) == 80
    assert count(state.models) == 4


def test_lost_embeddings_are_asked_for_again(rotated: LazyPopulation, file: str) -> None:
    """Clients drop out by chance in each round, so after four rounds everybody has answered once.

    Of the first 24 too few are of two rotations for these to be told apart; with those who come later they part.
    """
    method = Embedding(encoder=file, **QUICK)
    fed = federation(method, rotated, faults=Faults(dropout=0.3))
    state = method.init(fed)
    first = dict(state.cluster)
    assert 20 < len(first) < 40
    for fed.round in range(1, 1 + ROUNDS):
        state, _ = method.step(state, fed)
    assert set(state.cluster) == set(rotated.ids)
    assert len(set(first.values())) == 3
    assert ari(rotated, state) > 0.9
    assert count(state.models) == 4


def test_without_any_embedding_the_first_round_clusters(rotated: LazyPopulation, file: str) -> None:
    method = Embedding(encoder=file, **QUICK)
    silent = method.init(federation(method, rotated, faults=Faults(dropout=1.0)))
    assert silent.cluster == {}
    assert method.clusters(silent, ["00"]) == [-1]
    still, _ = method.step(silent, federation(method, rotated, faults=Faults(dropout=1.0)))
    assert still.cluster == {}
    assert method.panels(still, ["00"], None) == []
    later, _ = method.step(silent, federation(method, rotated))
    assert ari(rotated, later) > 0.9


@pytest.mark.parametrize("every", [1, 3])
def test_clients_that_drift_are_followed(file: str, every: int) -> None:
    population = build("rotated-digits", seed=0, drift=Drift(2, 0.2))
    method = Embedding(encoder=file, reembed=every, **QUICK)
    fed = federation(method, population)
    state, moved = method.init(fed), 0
    for fed.round in range(ROUNDS):
        state, log = method.step(state, fed)
        moved += int(str(log.get("moved", 0)))
        if fed.round < 2:
            assert moved == 0, "nobody moves before the drift"
    assert ari(population, state, ROUNDS - 1) > 0.9
    assert 7 <= moved <= 9, "eight of 40 clients have changed"


def test_without_drift_nobody_moves(rotated: LazyPopulation, file: str) -> None:
    method = Embedding(encoder=file, reembed=1, **QUICK)
    fed = federation(method, rotated)
    state = method.init(fed)
    before = dict(state.cluster)
    for fed.round in range(ROUNDS):
        state, log = method.step(state, fed)
        assert log.get("moved", 0) == 0
    assert state.cluster == before

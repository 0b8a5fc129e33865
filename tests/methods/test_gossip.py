"""Gossip with random, fixed and like-minded partners."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coterie import run
from coterie.core.errors import CoterieError
from coterie.data.own import OwnPopulation
from coterie.methods.p2p.base import PeerView
from coterie.methods.p2p.gossip import Gossip, Partners
from coterie.methods.p2p.topology import members, peer_keys

from ..tiny import made, one_weight, rows, small_net


def test_two_peers_that_always_meet_are_one_average() -> None:
    """w x with loss (w - y)^2, lr 0.25: from 0, a (y = 2) trains to 1 and b (y = 6) to 3; both end with 2."""
    clients = rows(([1.0], [2]), ([1.0], [6]))
    method = Gossip(k=1, lr=0.25, epochs=1, batch=0, momentum=0.0)
    result = run(method, clients, one_weight, rounds=1, loss="mse")
    assert [float(model["weight"]) for model in result.models.values()] == pytest.approx([2.0, 2.0])


def test_random_partners_change_and_fixed_ones_stay(digits: OwnPopulation) -> None:
    table = {
        kind: run(made("gossip", k=2, partners=kind), digits, small_net, rounds=6, seed=1).state.aggregated
        for kind in ("random", "fixed")
    }
    assert set(table["fixed"][table["fixed"] > 0].tolist()) == {6}
    assert int((table["random"] > 0).sum()) > int((table["fixed"] > 0).sum()) == 18
    assert not table["random"].diagonal().any()


def test_fixed_partners_that_are_away_are_not_replaced() -> None:
    node = Partners(torch.from_numpy(peer_keys(["b", "c"]))[None])
    view = PeerView(("a",), 0, 0, np.sort(peer_keys(["a", "c", "d", "e"])))
    method = Gossip(k=2, partners="fixed")
    assert members(method.choose(node, view).keys[0]).tolist() == peer_keys(["c"]).tolist()


def test_the_oracle_meets_its_group_alone(digits: OwnPopulation) -> None:
    result = run(made("gossip", k=2, partners="oracle"), digits, small_net, rounds=3, seed=1)
    assert result.state.history[-1]["precision"] == 1.0
    truth = torch.tensor(result.truth)
    assert not result.state.aggregated[truth[:, None] != truth[None]].any()
    assert result.clusters is None


def test_the_oracle_needs_known_groups() -> None:
    with pytest.raises(CoterieError, match="not known"):
        run(Gossip(partners="oracle"), rows(([1.0], [2]), ([1.0], [6])), one_weight, rounds=1, loss="mse")


def test_without_known_groups_only_sizes_are_recorded() -> None:
    result = run(Gossip(k=1), rows(([1.0], [2]), ([1.0], [6])), one_weight, rounds=1, loss="mse")
    assert result.state.history == ({"round": 1.0, "neighbours": 1.0, "received": 1.0},)

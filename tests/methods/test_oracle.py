"""The oracle, by hand."""

from __future__ import annotations

import pytest

from coterie import run
from coterie.core.errors import CoterieError
from coterie.data import Drift, build
from coterie.data.own import OwnPopulation
from coterie.methods.oracle import Oracle
from coterie.simulation.faults import Faults

from ..tiny import made, one_weight, rows, small_net


def test_one_round_by_hand() -> None:
    """The model is w * x with loss (w x - y)^2, one step of rate 0.25 from 0 takes a client to y / 2.

    Group 0 has y = 2 (1 sample) and y = 6 (3 samples): (1 + 3 * 3) / 4 = 2.5. Group 1 has y = 8: 4.
    """
    clients = rows(([1.0], [2]), ([1.0], [8]), ([1.0] * 3, [6] * 3), groups=[0, 1, 0])
    method = Oracle(lr=0.25, epochs=1, batch=0, momentum=0.0)
    result = run(method, clients, one_weight(), rounds=1, loss="mse")
    models = {name: float(model["weight"]) for name, model in result.models.items()}
    assert models == pytest.approx({"cluster-0": 2.5, "cluster-1": 4.0}, abs=1e-6)
    assert result.clusters == [0, 1, 0]
    assert result.ari == 1.0


def test_clients_follow_their_group_when_it_drifts() -> None:
    clients = build("rotated-digits", seed=0, clients=6, samples=6, groups=2, drift=Drift(1, groups={"0": 1}))
    before = run(made("oracle"), clients, small_net, rounds=1)
    after = run(made("oracle"), clients, small_net, rounds=2)
    assert before.clusters == [0, 1, 0, 1, 0, 1]
    assert after.clusters == [1, 1, 0, 1, 0, 1]
    assert after.truth == after.clusters


def test_newcomers_go_where_they_belong(digits: OwnPopulation) -> None:
    result = run(made("oracle"), digits, small_net, rounds=2, faults=Faults(joins=((1, 4.0),)))
    assert result.clusters == [0, 1, 2] * 3


def test_the_truth_must_be_known() -> None:
    with pytest.raises(CoterieError, match="true groups of these clients are not known"):
        run(made("oracle"), rows(([1.0], [1]), ([1.0], [2])), one_weight(), rounds=1, loss="mse")

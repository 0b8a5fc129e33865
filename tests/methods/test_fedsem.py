"""FedSEM, by hand."""

from __future__ import annotations

import pytest

from coterie import run
from coterie.core.errors import CoterieError
from coterie.data.own import OwnPopulation
from coterie.methods.fedsem import FedSEM

from ..tiny import made, one_weight, rows, small_net


@pytest.mark.parametrize("layer", ["last", "all"])
def test_one_round_by_hand(layer: str) -> None:
    """The model is w * x with loss (w x - y)^2, one step of rate 0.25 from 0 takes a client to y / 2.

    y = 1, 2, 9, 8 (with 1, 3, 1, 1 samples) give 0.5, 1, 4.5 and 4; two centres part {0.5, 1} from {4.5, 4}.
    Their models are (0.5 + 3 * 1) / 4 = 0.875 and (4.5 + 4) / 2 = 4.25.
    """
    clients = rows(([1.0], [1]), ([1.0] * 3, [2] * 3), ([1.0], [9]), ([1.0], [8]))
    method = FedSEM(k=2, lr=0.25, epochs=1, batch=0, momentum=0.0, layer=layer)  # type: ignore[arg-type]
    result = run(method, clients, one_weight(), rounds=1, loss="mse")
    low, high = result.clusters[0], result.clusters[2]  # type: ignore[index]
    assert result.clusters == [low, low, high, high]
    assert {low, high} == {0, 1}
    models = {name: float(model["weight"]) for name, model in result.models.items()}
    assert models == pytest.approx({f"cluster-{low}": 0.875, f"cluster-{high}": 4.25}, abs=1e-5)


def test_cluster_numbers_keep_their_meaning() -> None:
    """Later rounds start k-means from the last centres, so that nobody moves where nothing changes."""
    clients = rows(([1.0], [1]), ([1.0], [2]), ([1.0], [9]), ([1.0], [8]))
    method = FedSEM(k=2, lr=0.25, epochs=1, batch=0, momentum=0.0)
    once = run(method, clients, one_weight(), rounds=1, loss="mse")
    often = run(method, clients, one_weight(), rounds=6, loss="mse")
    assert often.clusters == once.clusters


def test_fewer_vectors_than_centres_are_one_cluster(digits: OwnPopulation) -> None:
    result = run(made("fedsem", k=4, fraction=3), digits, small_net, rounds=1)
    assert result.clusters == [0] * 9  # those who have not come are served by it, too
    assert len(result.state.cluster) == 3


def test_settings_out_of_range(digits: OwnPopulation) -> None:
    with pytest.raises(CoterieError, match="fedsem: k must be at least 1"):
        FedSEM(k=-1)
    with pytest.raises(CoterieError, match="k = 10 centres need at least as many clients, but there are 9"):
        run(made("fedsem", k=10), digits, small_net, rounds=1)

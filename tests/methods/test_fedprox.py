"""FedProx, by hand."""

from __future__ import annotations

import pytest

from coterie import run
from coterie.core.errors import CoterieError
from coterie.methods.fedprox import FedProx
from coterie.simulation.simulator import EngineOptions

from ..tiny import one_weight, rows


@pytest.mark.parametrize("kernel", [True, False])
def test_two_steps_by_hand(kernel: bool) -> None:
    """The model is w * x with loss (w x - y)^2, w_t = 0, lr 0.25, mu = 1, two steps on whole training sets.

    Client a, one sample (1, 2): the first step has no pull yet, w = 1; the second has gradient
    2 (1 - 2) + 1 (1 - 0) = -1, so w = 1.25. Client b, three samples (1, 6): w = 3, then 2 (3 - 6) + 3 = -3 and
    w = 3.75. The mean is (1.25 + 3 * 3.75) / 4 = 3.125 (FedAvg would have (1.5 + 3 * 4.5) / 4 = 3.75).
    """
    clients = rows(([1.0], [2]), ([1.0] * 3, [6] * 3))
    found = {}
    for mu in (1.0, 0.0):
        method = FedProx(lr=0.25, epochs=2, batch=0, momentum=0.0, mu=mu)
        result = run(method, clients, one_weight(), rounds=1, loss="mse", engine=EngineOptions(kernel=kernel))
        found[mu] = float(result.models["global"]["weight"])
    assert found == pytest.approx({1.0: 3.125, 0.0: 3.75}, abs=1e-6)


def test_mu_is_not_negative() -> None:
    with pytest.raises(CoterieError, match="fedprox: mu must be at least 0, not -1"):
        FedProx(mu=-1)

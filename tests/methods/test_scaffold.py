"""SCAFFOLD, by hand."""

from __future__ import annotations

import pytest
import torch

from coterie import run
from coterie.core.errors import CoterieError
from coterie.core.task import Task
from coterie.data.own import OwnPopulation
from coterie.methods.scaffold import Scaffold
from coterie.simulation.faults import Faults
from coterie.simulation.simulator import EngineOptions, Simulator

from ..tiny import one_weight, rows, small_net


@pytest.mark.parametrize("kernel", [True, False])
def test_two_rounds_by_hand(kernel: bool) -> None:
    """The model is w * x with loss (w x - y)^2, one step of rate 0.25 a round; a has (1, 2), b three times (1, 6).

    Round 1, x = c = c_i = 0: gradients -4 and -12, so y = 1 and 3; clients count alike, x = 2. Option II gives
    c_i = (x - y) / 0.25, the gradients -4 and -12, and c = -8.
    Round 2, x = 2: a has gradient 0 and steps along 0 - c_a + c = -4 to y = 3; b has gradient -8 and steps along
    -8 + 12 - 8 = -4 to y = 3. So x = 3, both c_i are the gradients 0 and -8, and c = -4: no client drifts.
    """
    clients = rows(([1.0], [2]), ([1.0] * 3, [6] * 3))
    expected = {1: (2.0, -8.0), 2: (3.0, -4.0)}
    for rounds, (model, control) in expected.items():
        method = Scaffold(lr=0.25, epochs=1, batch=0)
        result = run(method, clients, one_weight(), rounds=rounds, loss="mse", engine=EngineOptions(kernel=kernel))
        assert float(result.state.model["weight"]) == pytest.approx(model, abs=1e-6)
        assert float(result.state.control["weight"]) == pytest.approx(control, abs=1e-5)


@pytest.mark.parametrize("kernel", [True, False])
def test_a_client_without_samples_keeps_its_variate(kernel: bool) -> None:
    """a has (1, 2) and b nothing; one step of rate 0.25 a round, clients count alike.

    Round 1: a goes to y = 1 with variate -4, b stays at 0 with variate 0: x = 0.5, c = -2.
    Round 2: a has gradient -3 and steps along -3 + 4 - 2 = -1 to y = 0.75; its variate becomes its gradient, -3, so it
    changes by 1, and that of b by 0: x = 0.625, c = -2 + 1 / 2 = -1.5.
    """
    clients = rows(([1.0], [2]), ([], []))
    method = Scaffold(lr=0.25, epochs=1, batch=0)
    result = run(method, clients, one_weight(), rounds=2, loss="mse", engine=EngineOptions(kernel=kernel))
    assert float(result.state.model["weight"]) == pytest.approx(0.625, abs=1e-6)
    assert float(result.state.control["weight"]) == pytest.approx(-1.5, abs=1e-5)


@pytest.mark.parametrize("faults", [Faults(nan=0.4), Faults(slowness=1.0, deadline=1.0), Faults(dropout=0.4)], ids=str)
def test_c_stays_the_mean_of_all_variates_whatever_is_lost(faults: Faults, digits: OwnPopulation) -> None:
    """A client whose reply came late or was refused must not move on without the server."""
    method, task = Scaffold(lr=0.05, batch=4), Task.of(small_net, digits, dtype=torch.float64)
    fed = Simulator(method, task, digits, seed=2, faults=faults, options=EngineOptions(workers=1))
    state = method.init(fed)
    for number in range(6):
        fed.begin(number)
        state, _ = method.step(state, fed)
        fed.commit()
    assert fed.failures
    for name in task.parameters:
        variates = []
        for client, kept in fed.memory.items():
            counted = int(kept["proposed in"]) == state.counted.get(client, -1)  # type: ignore[arg-type]
            variates.append(kept["proposed" if counted else "control"][name])  # type: ignore[index]
        mean = torch.stack(variates).sum(0) / len(digits.ids)
        assert torch.allclose(state.control[name], mean, rtol=0, atol=1e-12)
        assert float(mean.abs().max()) > 1e-4


def test_the_servers_step_and_a_sampled_client_by_hand() -> None:
    """One of two clients takes part and server_lr is 0.5.

    a would go to y = 1 with variate -4, b to y = 3 with variate -12. x = 0.5 y, and c = (1 / 2) c_i: (0.5, -2) or
    (1.5, -6).
    """
    clients = rows(([1.0], [2]), ([1.0] * 3, [6] * 3))
    method = Scaffold(lr=0.25, epochs=1, batch=0, server_lr=0.5, fraction=0.5)
    result = run(method, clients, one_weight(), rounds=1, loss="mse")
    found = (float(result.state.model["weight"]), float(result.state.control["weight"]))
    assert found in (pytest.approx((0.5, -2.0), abs=1e-5), pytest.approx((1.5, -6.0), abs=1e-5))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"momentum": 0.9}, "momentum must be 0"),
        ({"optimiser": "adam"}, "optimiser must be sgd"),
        ({"server_lr": 0.0}, "server_lr must be above 0"),
    ],
)
def test_settings_that_break_the_variates(settings: dict[str, object], says: str) -> None:
    with pytest.raises(CoterieError, match=f"scaffold: {says}"):
        Scaffold(**settings)  # type: ignore[arg-type]

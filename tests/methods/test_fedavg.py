"""FedAvg, by hand."""

from __future__ import annotations

import pytest

from coterie import run
from coterie.core.errors import CoterieError, NothingLearnt
from coterie.data.own import OwnPopulation
from coterie.methods.fedavg import FedAvg
from coterie.simulation.faults import Faults
from coterie.simulation.simulator import EngineOptions

from ..tiny import made, one_weight, rows, small_net

STEP = {"lr": 0.25, "epochs": 1, "batch": 0, "momentum": 0.0}


@pytest.mark.parametrize("kernel", [True, False])
def test_one_round_by_hand(kernel: bool) -> None:
    """The model is w * x, the loss (w x - y)^2 with gradient 2 (w x - y) x, and w starts at 0.

    Client a has one sample (1, 2): w = 0 - 0.25 * 2 * (0 - 2) = 1. Client b has three samples (1, 6):
    w = 0 - 0.25 * 2 * (0 - 6) = 3. Weighted by their 1 and 3 samples: (1 * 1 + 3 * 3) / 4 = 2.5.
    """
    clients = rows(([1.0], [2]), ([1.0] * 3, [6] * 3))
    result = run(FedAvg(**STEP), clients, one_weight(), rounds=1, loss="mse", engine=EngineOptions(kernel=kernel))  # type: ignore[arg-type]
    assert float(result.models["global"]["weight"]) == pytest.approx(2.5, abs=1e-6)


def test_two_rounds_with_a_falling_rate_by_hand() -> None:
    """From 2.5 with rate 0.25 * 0.5: a goes to 2.5 - 0.125 * 2 * 0.5 = 2.375, b to 2.5 + 0.125 * 2 * 3.5 = 3.375.

    The mean is (2.375 + 3 * 3.375) / 4 = 3.125.
    """
    clients = rows(([1.0], [2]), ([1.0] * 3, [6] * 3))
    result = run(FedAvg(**STEP, lr_decay=0.5), clients, one_weight(), rounds=2, loss="mse")  # type: ignore[arg-type]
    assert float(result.models["global"]["weight"]) == pytest.approx(3.125, abs=1e-6)


def test_a_fraction_of_the_clients_takes_part(digits: OwnPopulation) -> None:
    """A third of nine clients is three messages a round; a number above one is that many clients."""
    whole = run(made("fedavg"), digits, small_net, rounds=2)
    third = run(made("fedavg", fraction=1 / 3), digits, small_net, rounds=2)
    three = run(made("fedavg", fraction=3), digits, small_net, rounds=2)
    assert whole.bytes_down == 3 * third.bytes_down == 3 * three.bytes_down
    assert third.bytes_evaluation == whole.bytes_evaluation


def test_a_refused_reply_does_not_enter_the_mean() -> None:
    """With every reply but one lost, the mean is that client's model: 1 or 3, never 2.5."""
    clients = rows(([1.0], [2]), ([1.0] * 3, [6] * 3))
    seen = set()
    for seed in range(12):
        try:
            result = run(FedAvg(**STEP), clients, one_weight(), rounds=1, seed=seed, loss="mse", faults=Faults(nan=0.5))  # type: ignore[arg-type]
        except NothingLearnt:
            continue  # with both replies lost there is no mean
        seen.add((result.failures, round(float(result.models["global"]["weight"]), 5)))
    assert seen <= {(0, 2.5), (1, 1.0), (1, 3.0)}
    assert len(seen) > 1


@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [
        ("fraction", 0.0, "fraction must be above 0"),
        ("epochs", 0, "epochs must be at least 1"),
        ("batch", -1, "batch must be at least 0"),
        ("lr", 0.0, "lr must be above 0"),
        ("momentum", 1.0, r"momentum must lie in \[0, 1\)"),
        ("weight_decay", -0.1, "weight_decay must be at least 0"),
        ("lr_decay", 1.5, r"lr_decay must lie in \(0, 1\]"),
    ],
)
def test_settings_out_of_range(setting: str, value: float, says: str) -> None:
    with pytest.raises(CoterieError, match=f"fedavg: {says}, not {value}"):
        FedAvg(**{setting: value})  # type: ignore[arg-type]

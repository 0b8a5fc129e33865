"""Nothing wrong gets past the Python side: every bad argument is one sentence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from coterie.core.errors import CoterieError
from coterie.kernel import Net
from tests.kernel.reference import flat, needs_kernel, planned

pytestmark = needs_kernel


def _net(loss: str = "cross_entropy") -> Net:
    return planned(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), (6,), loss)


def _arguments(**changes: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        **{"weights": torch.zeros(53), "x": torch.zeros(8, 6), "y": torch.zeros(8, dtype=torch.int64)},
        **{"order": torch.arange(8), "epochs": 1, "batch": 4, "lr": 0.1},
    }
    return arguments | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": None}, "float32 or float64"),
        ({"weights": torch.zeros(53, dtype=torch.float16)}, "float32 or float64"),
        ({"weights": torch.zeros(52)}, "weights has shape"),
        ({"weights": torch.zeros(1, 53)}, "weights has shape"),
        ({"weights": torch.zeros(106)[::2]}, "contiguous"),
        ({"weights": torch.zeros(53, device="meta")}, "on the CPU"),
        ({"x": None}, "inputs x"),
        ({"x": torch.zeros(0, 6)}, "at least one sample"),
        ({"x": torch.zeros(8, 7)}, "x has shape"),
        ({"x": torch.zeros(8, 6, 1)}, "x has shape"),
        ({"x": torch.zeros(8, 6, dtype=torch.float64)}, "x is torch.float64"),
        ({"x": torch.zeros(8, 6, dtype=torch.int32)}, "x is torch.int32"),
        ({"x": torch.zeros(6, 8).T}, "x must be a contiguous"),
        ({"x": torch.zeros(8, 6, dtype=torch.uint8), "mean": (0.0, 1.0)}, "mean and std"),
        ({"x": torch.zeros(8, 7, dtype=torch.uint8)}, "x has shape"),
        ({"std": (1.0, 2.0)}, "mean and std"),
        ({"y": None}, "labels"),
        ({"y": torch.zeros(7, dtype=torch.int64)}, "y has shape"),
        ({"y": torch.zeros(8)}, "y is torch.float32"),
        ({"y": torch.tensor([0, 1, 2, 3, 0, 0, 0, 0])}, "label"),
        ({"y": torch.tensor([0, 1, 2, -1, 0, 0, 0, 0])}, "label"),
        ({"y": torch.tensor([0, 1, 2, 2**40, 0, 0, 0, 0])}, "label"),
        ({"order": None}, "order must be a tensor"),
        ({"order": torch.tensor([0, 8])}, "order"),
        ({"order": torch.tensor([0, -1])}, "order"),
        ({"order": torch.tensor([], dtype=torch.int64)}, "order"),
        ({"order": torch.arange(8, dtype=torch.int32)}, "order is torch.int32"),
        ({"order": torch.arange(8).view(2, 4)}, "order has shape"),
        ({"order": torch.arange(7), "epochs": 2}, "not 2 equal epochs"),
        ({"epochs": 0}, "at least 1 epoch"),
        ({"batch": 0}, "batch of at least 1"),
        ({"lr": float("nan")}, "lr must be"),
        ({"lr": -0.1}, "lr must be"),
        ({"momentum": float("inf")}, "momentum must be"),
        ({"weight_decay": -1.0}, "weight_decay must be"),
        ({"mu": 0.1}, "needs an anchor"),
        ({"mu": 0.1, "anchor": torch.zeros(5)}, "anchor has shape"),
        ({"correction": torch.zeros(53, dtype=torch.float64)}, "correction is torch.float64"),
        ({"optimiser": "rmsprop"}, "sgd and adam"),
        ({"betas": (0.9, 1.0)}, "betas"),
        ({"eps": float("nan")}, "eps must be"),
        ({"eps": 0.0}, "eps must be above 0"),
    ],
)
def test_training_refuses(changes: dict[str, Any], message: str) -> None:
    net = _net()
    net.train(**_arguments())  # as it is, it works
    weights = changes.get("weights", torch.full((53,), 0.5))
    with pytest.raises(CoterieError, match=message):
        net.train(**_arguments(**{"weights": weights, **changes}))
    if "weights" not in changes:
        assert torch.equal(weights, torch.full((53,), 0.5))


@pytest.mark.parametrize("y", [torch.zeros(8, 4), torch.zeros(7, 3), torch.zeros(8, 3, dtype=torch.float64), None])
def test_squared_error_refuses_targets_that_do_not_fit(y: Any) -> None:
    net = _net("mse")
    net.train(**_arguments(y=torch.zeros(8, 3)))
    with pytest.raises(CoterieError, match=r"targets y|y is|outputs as inputs"):
        net.train(**_arguments(y=y))


@pytest.mark.parametrize("weights", [torch.zeros(53), torch.zeros(2, 52), torch.zeros(0, 53), torch.zeros(53, 2).T])
def test_evaluation_refuses_weights_that_are_not_models(weights: torch.Tensor) -> None:
    net = _net()
    x, y = torch.zeros(8, 6), torch.zeros(8, dtype=torch.int64)
    with pytest.raises(CoterieError, match="weights"):
        net.evaluate(weights, x, y)
    with pytest.raises(CoterieError, match="weights"):
        net.predict(weights, x)


def test_evaluation_refuses_labels_out_of_range() -> None:
    net = _net()
    with pytest.raises(CoterieError, match="label"):
        net.evaluate(torch.zeros(1, 53), torch.zeros(2, 6), torch.tensor([0, 3]))


def test_a_mean_per_channel_needs_channels() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    net = planned(module, (3, 2, 2))
    images = torch.randint(0, 256, (4, 3, 2, 2), dtype=torch.uint8)
    net.predict(flat(module)[None], images, mean=(1.0, 2.0, 3.0))

    class Folded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(1, 2, 2)
            self.linear = nn.Linear(2 * 5, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(self.convolution(x.view(-1, 1, 2, 6)).flatten(1))  # type: ignore[no-any-return]

    folded = planned(Folded(), (3, 2, 2))
    weights = flat(Folded())[None]
    folded.predict(weights, images)
    with pytest.raises(CoterieError, match="keeps the channels"):
        folded.predict(weights, images, mean=(1.0, 2.0, 3.0))

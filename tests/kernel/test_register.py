"""Layers from outside the kernel say themselves what they are to it."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from coterie.kernel import Refusal, chain, plan
from coterie.kernel.chain import Chain, register_layer
from tests import forked
from tests.kernel.reference import flat, needs_kernel, planned


class Affine(nn.Module):
    """A linear layer with code that torch.fx cannot look into."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs))
        self.bias = nn.Parameter(torch.randn(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.T + self.bias if len(x) else x


def right(chain: Chain, name: str, layer: Affine) -> None:
    chain.linear(name, layer.weight.shape[1], layer.weight.shape[0])


def wrong(chain: Chain, name: str, layer: Affine) -> None:
    right(chain, name, layer)
    chain.activation("relu")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = dict(chain.LAYERS)
    yield
    chain.LAYERS.clear()
    chain.LAYERS.update(before)


@needs_kernel
def test_a_layer_is_taken_once_it_is_registered() -> None:
    network = nn.Sequential(Affine(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    assert isinstance(plan(network, (4,)), Refusal)
    register_layer(Affine, right)
    x = torch.randn(5, 4, dtype=torch.float64)
    found = planned(network, (4,)).logits(flat(network)[None], x)[0]
    assert torch.allclose(found, network(x), rtol=0, atol=1e-12)


@needs_kernel
def test_a_layer_that_says_something_wrong_is_left_to_torch() -> None:
    register_layer(Affine, wrong)
    refusal = plan(nn.Sequential(Affine(4, 3), nn.Linear(3, 2)), (4,))
    assert isinstance(refusal, Refusal)
    assert "outputs differ" in refusal.reason


@pytest.mark.parametrize(
    ("imported", "absent"),
    [
        ("coterie.core.training, coterie.core.evaluation, coterie.core.jobs", "coterie.kernel"),
        ("coterie.kernel.bridge", "coterie.methods"),
    ],
)
def test_a_layer_does_not_load_those_above_it(imported: str, absent: str) -> None:
    """The import contract (pyproject.toml) reads import statements; this sees what is really loaded."""
    code = f"import sys, {imported}; sys.exit({absent!r} in sys.modules)"
    assert forked.run([sys.executable, "-c", code], timeout=120, fresh=True).returncode == 0

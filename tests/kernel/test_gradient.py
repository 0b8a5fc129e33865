"""Gradients of the inputs: the kernel against autograd."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from coterie.core.errors import CoterieError

from .reference import flat, loss_of, needs_kernel, networks, planned

pytestmark = needs_kernel


@settings(max_examples=60, deadline=None)
@given(networks(), st.integers(1, 130), st.integers(0, 2**31))
def test_equals_autograd(drawn: tuple[nn.Sequential, tuple[int, ...]], samples: int, seed: int) -> None:
    """Each sample's own gradient, as autograd gives it for the summed loss, for any network and any batch."""
    module, shape = drawn
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, *shape, generator=g, dtype=torch.float64)
    outputs = module(x).shape[1]
    y = torch.randint(outputs, (samples,), generator=g)
    loss, gradient = planned(module, shape).input_gradient(flat(module), x, y)
    inputs = x.clone().requires_grad_()
    wanted = loss_of(module(inputs), inputs, y) * samples
    wanted.backward()
    assert loss == pytest.approx(float(wanted.detach()), rel=1e-9, abs=1e-9)
    assert inputs.grad is not None
    assert torch.allclose(gradient, inputs.grad, rtol=1e-7, atol=1e-9)


def test_the_weights_stay_as_they_are() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    weights = flat(module)
    before = weights.clone()
    planned(module, (1, 2, 2)).input_gradient(weights, torch.randn(5, 1, 2, 2), torch.tensor([0, 1, 2, 0, 1]))
    assert torch.equal(weights, before)


def test_what_is_refused() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    net, weights = planned(module, (1, 2, 2)), flat(module)
    with pytest.raises(CoterieError, match="bytes have no gradient"):
        net.input_gradient(weights, torch.zeros(2, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1]))
    with pytest.raises(CoterieError, match="A label is outside the classes"):
        net.input_gradient(weights, torch.zeros(1, 1, 2, 2), torch.tensor([3]))
    with pytest.raises(CoterieError, match="weights has shape"):
        net.input_gradient(weights[:-1], torch.zeros(1, 1, 2, 2), torch.tensor([0]))

"""Steps of the bare optimisers equal those of torch.optim, a weight without a gradient included."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch

from coterie.core.optimiser import Updates
from coterie.core.rng import torch_rng


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    ("kind", "momentum", "weight_decay"),
    [("sgd", 0.0, 0.0), ("sgd", 0.9, 0.0), ("sgd", 0.9, 0.1), ("adam", 0.0, 0.0), ("adam", 0.0, 0.1)],
)
def test_steps_are_those_of_torch(
    kind: Literal["sgd", "adam"], momentum: float, weight_decay: float, late: bool
) -> None:
    g = torch_rng(0, "updates")
    start = [torch.randn(3, 4, generator=g, dtype=torch.float64), torch.randn(5, generator=g, dtype=torch.float64)]
    ours, theirs = ([tensor.clone().requires_grad_() for tensor in start] for _ in range(2))
    updates = Updates(ours, kind, 0.1, momentum, weight_decay)
    options: dict[str, Any] = {"lr": 0.1, "weight_decay": weight_decay}
    optimiser: torch.optim.Optimizer = (
        torch.optim.Adam(theirs, **options) if kind == "adam" else torch.optim.SGD(theirs, momentum=momentum, **options)
    )
    for step in range(4):
        gradients = [torch.randn(weight.shape, generator=g, dtype=torch.float64) for weight in start]
        if late and step < 2:
            gradients[1] = None  # type: ignore[call-overload]
        for weight, gradient in zip(theirs, gradients, strict=True):
            weight.grad = None if gradient is None else gradient.clone()
        optimiser.step()
        updates.step(gradients)
        for one, other in zip(ours, theirs, strict=True):
            assert torch.allclose(one, other, rtol=0, atol=1e-15)


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_gradients_may_lie_otherwise_in_memory_than_their_weights(kind: Literal["sgd", "adam"]) -> None:
    g = torch_rng(1, "updates")
    start = [torch.randn(4, 3, 2, 2, generator=g), torch.randn(6, generator=g)]
    ours, theirs = ([tensor.clone().requires_grad_() for tensor in start] for _ in range(2))
    for weights in (ours, theirs):
        weights[0] = weights[0].detach().to(memory_format=torch.channels_last).requires_grad_()
    optimiser = torch.optim.Adam(theirs, lr=0.1) if kind == "adam" else torch.optim.SGD(theirs, lr=0.1)
    updates, factor = Updates(ours, kind, 0.1), torch.randn(48, generator=g)
    for _ in range(3):
        gradients = torch.autograd.grad((ours[0].reshape(-1) * factor).sum() + ours[1].sum(), ours)
        assert gradients[0].stride() != ours[0].stride()
        assert gradients[1].stride() == (0,)
        updates.step(gradients)
        optimiser.zero_grad()
        ((theirs[0].reshape(-1) * factor).sum() + theirs[1].sum()).backward()
        optimiser.step()
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-6)

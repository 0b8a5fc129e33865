"""The plain torch loop that the kernel must equal, and networks drawn at random."""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

from coterie.core.errors import CoterieError
from coterie.core.rng import torch_rng
from coterie.kernel import Net, plan, why_not
from coterie.kernel.library import Library, load
from coterie.kernel.translate import plan_with

needs_kernel = pytest.mark.skipif(why_not() is not None, reason=f"the kernel is not there: {why_not()}")
torch.set_num_threads(1)


def flat(module: nn.Module) -> Tensor:
    """The parameters as one vector."""
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


def loaded(module: nn.Module, weights: Tensor) -> nn.Module:
    """A copy of the module with these parameters."""
    twin = copy.deepcopy(module).to(weights.dtype)
    nn.utils.vector_to_parameters(weights.clone(), twin.parameters())
    return twin


def planned(module: nn.Module, shape: tuple[int, ...], loss: Any = "cross_entropy") -> Net:
    """A plan that must succeed."""
    net = plan(module, shape, loss)
    assert isinstance(net, Net), net
    return net


def loss_of(out: Tensor, x: Tensor, y: Tensor | None) -> Tensor:
    """Cross-entropy for labels; squared error for values, or for the inputs themselves."""
    if y is not None and y.dtype == torch.int64:
        return F.cross_entropy(out, y)
    return F.mse_loss(out, x.flatten(1) if y is None else y)


def torch_train(
    module: nn.Module,
    weights: Tensor,
    x: Tensor,
    y: Tensor | None,
    order: Tensor,
    *,
    epochs: int,
    batch: int,
    lr: float,
    optimiser: str = "sgd",
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    mu: float = 0.0,
    anchor: Tensor | None = None,
    correction: Tensor | None = None,
    trained: Tensor | None = None,
    eps: float = 1e-8,
) -> tuple[Tensor, float]:
    """What `Net.train` does, by autograd and torch.optim."""
    module = loaded(module, weights)
    parameters = list(module.parameters())
    opt: torch.optim.Optimizer
    if optimiser == "adam":
        opt = torch.optim.Adam(parameters, lr=lr, weight_decay=weight_decay, eps=eps)
    else:
        opt = torch.optim.SGD(parameters, lr=lr, momentum=momentum, weight_decay=weight_decay)
    total = 0.0
    for part in order.view(epochs, -1):
        for index in part.split(batch):
            opt.zero_grad()
            target = None if y is None else y[index]
            loss = loss_of(module(x[index]), x[index], target)
            loss.backward()
            at = 0
            for parameter in parameters:
                assert parameter.grad is not None
                here = slice(at, at + parameter.numel())
                at += parameter.numel()
                if correction is not None:
                    parameter.grad += correction[here].view_as(parameter)
                if anchor is not None and mu:
                    parameter.grad += mu * (parameter.detach() - anchor[here].view_as(parameter))
            before = flat(module)
            opt.step()
            if trained is not None:
                kept = torch.where(trained != 0, flat(module), before)
                nn.utils.vector_to_parameters(kept, parameters)
            total += float(loss.detach()) * len(index)
    return flat(module), total / order.numel()


def _runnable() -> list[Library]:
    found = []
    for name in ("v4", "v3", "generic"):
        with suppress(CoterieError):
            library = load(wanted=name)
            found += [library] if isinstance(library, Library) else []
    return found


LIBRARIES = _runnable()
"""All variants of the kernel that this processor runs."""


def assert_trains_alike(library: Library, module: nn.Module, x: Tensor, batch: int) -> None:
    """Several ways of training, their losses and the outputs behind them, by a kernel and by torch, in float64."""
    net = plan_with(library, module, tuple(x.shape[1:]), "cross_entropy")
    assert isinstance(net, Net), net
    start, samples = flat(module), len(x)
    g = torch_rng(samples, "alike")
    y = torch.randint(0, net.outputs, (samples,), generator=g)
    order = torch.cat([torch.randperm(samples, generator=g) for _ in range(2)])
    pull = torch.randn(net.size, generator=g, dtype=torch.float64) * 0.1
    ways: list[dict[str, Any]] = [
        {},
        {"momentum": 0.9},
        {"momentum": 0.9, "weight_decay": 0.01, "mu": 0.1, "anchor": start + pull, "correction": pull},
        {"momentum": 0.9, "trained": (pull > 0).double()},
        {"optimiser": "adam", "eps": 0.01},  # with the usual 1e-8 rounding noise grows by a million
    ]
    for way in ways:
        options: dict[str, Any] = {"epochs": 2, "batch": batch, "lr": 0.05, **way}
        weights = start.clone()
        loss = net.train(weights, x, y, order, **options)
        expected, expected_loss = torch_train(module, start, x, y, order, **options)
        assert torch.allclose(weights, expected, rtol=0, atol=1e-12 * (1 + float(expected.abs().max()))), way
        assert loss == pytest.approx(expected_loss, rel=1e-11)
    with torch.no_grad():
        logits = loaded(module, expected)(x)
    assert torch.allclose(net.logits(expected[None], x)[0], logits, rtol=0, atol=1e-11)
    losses, accuracies = net.evaluate(expected[None], x, y)
    assert float(losses[0]) == pytest.approx(float(F.cross_entropy(logits, y)), rel=1e-11)
    assert float(accuracies[0]) == pytest.approx(float((logits.argmax(1) == y).double().mean()))


_ACTIVATIONS = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.ReLU6)


@st.composite
def networks(draw: st.DrawFn) -> tuple[nn.Sequential, tuple[int, ...]]:
    """A random sequential network that the kernel knows, in float64, and the shape of its inputs."""
    layers: list[nn.Module] = []

    def activation() -> None:
        if draw(st.booleans()):
            layers.append(draw(st.sampled_from(_ACTIVATIONS))())

    shape: tuple[int, ...]
    if draw(st.booleans()):
        shape = (draw(st.integers(1, 3)), draw(st.integers(3, 9)), draw(st.integers(3, 9)))
        channels, height, width = shape
        for _ in range(draw(st.integers(0, 3))):
            kind = draw(st.sampled_from(("convolution", "convolution", "pool", "average", "activation")))
            if kind == "convolution":
                kernel = (draw(st.integers(1, min(5, height))), draw(st.integers(1, min(5, width))))
                padding = (draw(st.integers(0, 3)), draw(st.integers(0, 3)))
                outputs = draw(st.integers(1, 14))
                layers.append(nn.Conv2d(channels, outputs, kernel, padding=padding, bias=draw(st.booleans())))
                channels = outputs
                height, width = height + 2 * padding[0] - kernel[0] + 1, width + 2 * padding[1] - kernel[1] + 1
                activation()
            if kind == "average":
                window = (draw(st.integers(1, height)), draw(st.integers(1, width)))
                layers.append(nn.AvgPool2d(window))
                height, width = height // window[0], width // window[1]
            if kind in ("convolution", "pool") and min(height, width) >= 2 and draw(st.booleans()):
                layers.append(nn.MaxPool2d(2))
                height, width = height // 2, width // 2
            activation()
        layers.append(nn.Flatten())
        features = channels * height * width
    else:
        features = draw(st.integers(1, 40))
        shape = (features,)
    for _ in range(draw(st.integers(0, 2))):
        outputs = draw(st.integers(1, 40))
        layers.append(nn.Linear(features, outputs, bias=draw(st.booleans())))
        activation()
        features = outputs
    layers.append(nn.Linear(features, draw(st.integers(2, 35)), bias=draw(st.booleans())))
    activation()
    return nn.Sequential(*layers).double(), shape

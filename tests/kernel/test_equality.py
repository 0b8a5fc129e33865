"""The kernel equals plain torch in float64, over networks, batches, optimisers and losses drawn at random."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from coterie.core.rng import torch_rng
from coterie.core.samples import Normalise
from tests.kernel.reference import flat, loaded, loss_of, needs_kernel, networks, planned, torch_train

pytestmark = needs_kernel


def _random_weights(size: int, seed: int) -> Tensor:
    return torch.randn(size, generator=torch_rng(seed, "weights"), dtype=torch.float64) * 0.3


def _assert_equal(found: Tensor, expected: Tensor) -> None:
    scale = 1.0 + float(expected.abs().max())
    assert torch.allclose(found, expected, rtol=0, atol=1e-12 * scale), float((found - expected).abs().max() / scale)


@given(networks(), st.data())
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_training_equals_torch(network: tuple[nn.Sequential, tuple[int, ...]], data: st.DataObject) -> None:
    module, shape = network
    loss = data.draw(st.sampled_from(("cross_entropy", "mse")))
    net = planned(module, shape, loss)
    # Small blocks make a convolution's batch fall apart into several, of different sizes.
    net = dataclasses.replace(net, block_bytes=data.draw(st.sampled_from((1, 20_000, 1 << 20))))
    samples, epochs = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 2))
    options: dict[str, Any] = {
        "epochs": epochs,
        "batch": data.draw(st.integers(1, 40)),
        "lr": 0.02,
        "optimiser": data.draw(st.sampled_from(("sgd", "adam"))),
        "momentum": data.draw(st.sampled_from((0.0, 0.9))),
        "weight_decay": data.draw(st.sampled_from((0.0, 0.01))),
        "mu": data.draw(st.sampled_from((0.0, 0.1))),
        # Adam divides a gradient by its own size plus eps: with the usual 1e-8 rounding noise grows by a million.
        "eps": 0.01,
    }
    g = torch_rng(data.draw(st.integers(0, 10**6)), "data")
    x = torch.randn(samples, *shape, generator=g, dtype=torch.float64)
    y = torch.randint(0, net.outputs, (samples,), generator=g)
    if loss == "mse":
        y = torch.randn(samples, net.outputs, generator=g, dtype=torch.float64)
    order = torch.cat([torch.randperm(samples, generator=g) for _ in range(epochs)])
    start = _random_weights(net.size, 1)
    options["anchor"] = _random_weights(net.size, 2)
    if data.draw(st.booleans()):
        options["correction"] = _random_weights(net.size, 3)
    if data.draw(st.booleans()):
        options["trained"] = (_random_weights(net.size, 6) > 0).double()

    expected, expected_loss = torch_train(module, start, x, y, order, **options)
    found = start.clone()
    mean_loss = net.train(found, x, y, order, **options)
    _assert_equal(found, expected)
    assert mean_loss == pytest.approx(expected_loss, rel=1e-12, abs=1e-12)

    models = torch.stack([start, expected, _random_weights(net.size, 4)])
    losses, accuracies = net.evaluate(models, x, y)
    outputs = net.predict(models, x)
    for model, value, accuracy, output in zip(models, losses, accuracies, outputs, strict=True):
        with torch.no_grad():
            out = loaded(module, model)(x)
        _assert_equal(value, loss_of(out, x, y))
        _assert_equal(output, out.softmax(1) if loss == "cross_entropy" else out)
        assert accuracy.isnan() if loss == "mse" else accuracy == (out.argmax(1) == y).double().mean()


def test_a_gradient_that_is_not_finite_does_not_reach_weights_that_stay() -> None:
    """Zero times infinity is not zero: what stays is chosen, not multiplied."""
    net = planned(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)).double(), (6,), "mse")
    start, x = _random_weights(net.size, 5), torch.full((4, 6), 1e200, dtype=torch.float64)
    trained = torch.zeros(net.size, dtype=torch.float64)
    trained[-2:] = 1
    found = start.clone()
    net.train(
        found,
        x,
        torch.full((4, 2), 1e300, dtype=torch.float64),
        torch.arange(4),
        epochs=1,
        batch=4,
        lr=1e200,
        trained=trained,
    )
    assert torch.equal(found[:-2], start[:-2])
    assert not found[-2:].isfinite().all()


def test_adam_with_its_usual_eps_equals_torch_where_no_gradient_is_near_zero() -> None:
    module = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    net = planned(module, (6,), "mse")
    g = torch_rng(9, "data")
    # Targets far away: every gradient is large, so that Adam's division does not enlarge the rounding.
    x = 0.5 + torch.rand(24, 6, generator=g, dtype=torch.float64)
    y = 3.0 + torch.rand(24, 2, generator=g, dtype=torch.float64)
    order = torch.cat([torch.randperm(24, generator=g) for _ in range(5)])
    options: dict[str, Any] = {"epochs": 5, "batch": 5, "lr": 0.01, "optimiser": "adam"}
    start = _random_weights(net.size, 5)
    expected, _ = torch_train(module, start, x, y, order, **options)
    found = start.clone()
    net.train(found, x, y, order, **options)
    _assert_equal(found, expected)
    assert float((found - start).abs().min()) > 0.01


@pytest.mark.parametrize(
    ("optimiser", "eps", "close"), [("sgd", 1e-8, 1e-13), ("adam", 0.01, 1e-12), ("adam", 1e-8, 1e-9)]
)
def test_the_autoencoder_learns_its_input_from_bytes(optimiser: str, eps: float, close: float) -> None:
    """Sigmoids give gradients near zero: with the usual eps Adam makes their rounding a million times larger."""
    module = nn.Sequential(
        *(nn.Flatten(), nn.Linear(784, 50), nn.ReLU(), nn.Linear(50, 20)),
        *(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 784), nn.Sigmoid()),
    ).double()
    net = planned(module, (1, 28, 28), "mse")
    g = torch_rng(5, "bytes")
    images = torch.randint(0, 256, (25, 1, 28, 28), generator=g, dtype=torch.uint8)
    order = torch.randperm(25, generator=g)
    options: dict[str, Any] = {"epochs": 1, "batch": 10, "lr": 0.01, "optimiser": optimiser, "eps": eps}
    x = Normalise(scale=1 / 255)(images, torch.float64)
    expected, expected_loss = torch_train(module, flat(module), x, None, order, **options)
    found = flat(module)
    mean_loss = net.train(found, images, None, order, **options, scale=1 / 255)
    assert torch.allclose(found, expected, rtol=0, atol=close)
    assert mean_loss == pytest.approx(expected_loss, rel=1e-12)
    assert mean_loss == pytest.approx(float(net.evaluate(found[None], images, None, scale=1 / 255)[0]), rel=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("convolutional", [False, True])
def test_bytes_give_exactly_what_normalising_first_gives(dtype: torch.dtype, convolutional: bool) -> None:
    layers = (nn.Conv2d(3, 5, 3), nn.ReLU(), nn.MaxPool2d(2)) if convolutional else ()
    features = 5 * 3 * 3 if convolutional else 3 * 8 * 8
    module = nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, 4)).to(dtype)
    net = planned(module, (3, 8, 8))
    g = torch_rng(6, "bytes")
    images = torch.randint(0, 256, (21, 3, 8, 8), generator=g, dtype=torch.uint8)
    y = torch.randint(0, 4, (21,), generator=g)
    normalise = Normalise(mean=(0.49, 0.48, 0.45), std=(0.25, 0.24, 0.26), scale=1 / 255)
    fused = {"mean": normalise.mean, "std": normalise.std, "scale": normalise.scale}
    order, options = torch.randperm(21, generator=g), {"epochs": 1, "batch": 8, "lr": 0.1}
    start = flat(module)
    first, second, third = start.clone(), start.clone(), start.clone()
    net.train(first, normalise(images, dtype), y, order, **options)  # type: ignore[arg-type]
    net.train(second, images, y, order, **options, **fused)  # type: ignore[arg-type]
    net.train(third, images.to(dtype), y, order, **options, **fused)  # type: ignore[arg-type]
    assert torch.equal(first, second)
    assert torch.equal(first, third)
    assert not torch.equal(first, start)
    assert torch.equal(net.predict(first[None], images, **fused), net.predict(first[None], normalise(images, dtype)))  # type: ignore[arg-type]


def test_float32_follows_float64() -> None:
    module = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5))
    net = planned(module, (1, 6, 6))
    g = torch_rng(7, "data")
    x, y = torch.randn(30, 1, 6, 6, generator=g), torch.randint(0, 5, (30,), generator=g)
    order = torch.randperm(30, generator=g)
    single, double = flat(module), flat(module).double()
    a = net.train(single, x, y, order, epochs=1, batch=7, lr=0.1, momentum=0.9)
    b = net.train(double, x.double(), y, order, epochs=1, batch=7, lr=0.1, momentum=0.9)
    assert torch.allclose(single.double(), double, atol=1e-6)
    assert a == pytest.approx(b, rel=1e-6)
    assert torch.allclose(net.predict(single[None], x).double(), net.predict(double[None], x.double()), atol=1e-6)


def test_order_may_repeat_and_leave_out_samples() -> None:
    module = nn.Sequential(nn.Linear(6, 3)).double()
    net = planned(module, (6,))
    g = torch_rng(8, "data")
    x, y = torch.randn(9, 6, generator=g, dtype=torch.float64), torch.randint(0, 3, (9,), generator=g)
    order = torch.tensor([0, 0, 3, 8, 8, 8, 1, 2])
    expected, _ = torch_train(module, flat(module), x, y, order, epochs=2, batch=3, lr=0.1)
    found = flat(module)
    net.train(found, x, y, order, epochs=2, batch=3, lr=0.1)
    _assert_equal(found, expected)

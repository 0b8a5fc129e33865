"""NaN, infinities and ties as in torch; threads change nothing; nothing leaks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from coterie.core.rng import torch_rng
from tests.kernel.reference import flat, loaded, needs_kernel, planned, torch_train

pytestmark = needs_kernel


def _lenet() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 10)),
    )


def _lenet_data(samples: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    g = torch_rng(1, "lenet")
    x = torch.randn(samples, 1, 12, 12, generator=g, dtype=dtype)
    return x, torch.randint(0, 10, (samples,), generator=g), torch.randperm(samples, generator=g)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_spreads_as_in_torch(value: float) -> None:
    module = _lenet().double()
    net = planned(module, (1, 12, 12))
    x, y, order = _lenet_data(20)
    x[3, 0, 4, 5] = value
    start = flat(module)
    with torch.no_grad():
        expected = module(x).softmax(1)
    found = net.predict(start[None], x)[0]
    assert torch.allclose(found, expected, rtol=0, atol=1e-12, equal_nan=True)
    assert found[3].isnan().all()
    assert not found[:3].isnan().any()
    trained, _ = torch_train(module, start, x, y, order, epochs=1, batch=8, lr=0.1)
    mine = start.clone()
    net.train(mine, x, y, order, epochs=1, batch=8, lr=0.1)
    assert trained.isnan().any()
    assert torch.equal(mine.isnan(), trained.isnan())


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.Sigmoid])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_activations_at_the_ends(activation: type[nn.Module], dtype: torch.dtype) -> None:
    sizes = torch.tensor([torch.nan, torch.inf, 0.0, 1e-30, 3e-5, 0.3, 7.0, 20.0, 50.0, 88.0, 90.0, 800.0], dtype=dtype)
    values = torch.cat([sizes, -sizes])
    module = nn.Sequential(nn.Linear(1, 1, bias=False), activation())
    net = planned(module, (1,), "mse")
    found = net.predict(torch.ones(1, 1, dtype=dtype), values[:, None])[0, :, 0]
    expected = activation()(values)
    tiny = torch.finfo(dtype).tiny
    assert torch.allclose(found, expected, rtol=8 * torch.finfo(dtype).eps, atol=tiny, equal_nan=True)


@pytest.mark.parametrize("between", [None, nn.ReLU, nn.Tanh])
def test_ties_in_a_pool_go_to_the_first(between: type[nn.Module] | None) -> None:
    layers: list[nn.Module] = [nn.Conv2d(1, 3, 2), *([between()] if between else []), nn.MaxPool2d(2)]
    module = nn.Sequential(*layers, nn.Flatten(), nn.Linear(3 * 3 * 3, 4)).double()
    net = planned(module, (1, 7, 7))
    g = torch_rng(2, "ties")
    x = torch.randint(0, 2, (24, 1, 7, 7), generator=g).double()
    y = torch.randint(0, 4, (24,), generator=g)
    start = flat(module)
    start[:12] = torch.randint(-1, 3, (12,), generator=g).double()  # whole numbers: equal sums are exactly equal
    start[12:15] = 0.0
    expected, _ = torch_train(module, start, x, y, torch.arange(24), epochs=1, batch=24, lr=0.5)
    mine = start.clone()
    net.train(mine, x, y, torch.arange(24), epochs=1, batch=24, lr=0.5)
    assert torch.allclose(mine, expected, rtol=0, atol=1e-13)
    # With the ties broken the other way round the result would be another one.
    flipped, _ = torch_train(_flipped(module, start), start, x, y, torch.arange(24), epochs=1, batch=24, lr=0.5)
    assert not torch.allclose(flipped, expected, rtol=0, atol=1e-6)


def _flipped(module: nn.Module, weights: Tensor) -> nn.Module:
    """The same function, but its pools take the last of equal values."""

    class LastWins(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.max_pool2d(x[..., :6, :6].flip(2, 3), 2).flip(2, 3)

    twin = loaded(module, weights)
    assert isinstance(twin, nn.Sequential)
    return nn.Sequential(*[LastWins() if isinstance(layer, nn.MaxPool2d) else layer for layer in twin])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_threads_change_no_bit(dtype: torch.dtype) -> None:
    module = _lenet().to(dtype)
    net = planned(module, (1, 12, 12))
    x, y, order = _lenet_data(50, dtype)

    def client(number: int) -> tuple[Tensor, float, Tensor]:
        weights = flat(module)
        loss = net.train(weights, x, y, order.roll(number), epochs=1, batch=8, lr=0.05, momentum=0.9)
        return weights, loss, net.predict(weights[None], x)

    alone = [client(number) for number in range(8)]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(client, range(8)))
    for (w1, l1, p1), (w2, l2, p2) in zip(alone, together, strict=True):
        assert torch.equal(w1, w2)
        assert l1 == l2
        assert torch.equal(p1, p2)
    assert not torch.equal(alone[0][0], alone[1][0])


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
def test_ten_thousand_calls_leak_nothing() -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3))
    net = planned(module, (1, 6, 6))
    g = torch_rng(3, "leak")
    x, y = torch.randn(5, 1, 6, 6, generator=g), torch.randint(0, 3, (5,), generator=g)
    order, weights = torch.arange(5), flat(module)

    def calls(count: int) -> int:
        for _ in range(count):
            net.train(weights, x, y, order, epochs=1, batch=2, lr=0.0, momentum=0.9)
            net.evaluate(weights[None], x, y)
        return int(Path("/proc/self/statm").read_text().split()[1])

    before = calls(500)
    after = calls(5_000)
    assert after - before < 500  # pages: 2 MB; a leak of one buffer per call would be ten times that

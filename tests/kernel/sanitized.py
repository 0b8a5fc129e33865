"""Run as `python -m tests.kernel.sanitized FOLDER` with a library compiled with sanitizers.

Exercises every code path on networks of awkward sizes; a sanitizer ends the process at the first bad access. The
last one is bad on purpose.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coterie.core.rng import torch_rng
from coterie.kernel import Net, Routing
from coterie.kernel import rows as peers
from coterie.kernel.bridge import grouped
from coterie.kernel.library import Library, load
from coterie.kernel.translate import plan_with
from coterie.methods.fedcg.network import Graph, fedcg
from coterie.models.resnet import Residual
from coterie.models.sequences import NextTokenLSTM, NextTokenTransformer


class _Columns(nn.Module):
    """Embeddings of awkward widths beside numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.last = nn.Embedding(3, 5), nn.Embedding(9, 1), nn.Linear(13, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        names = x[:, 1:4].long()
        found: Tensor = self.last(torch.cat([x[:, :2], self.one(names[:, :2]).flatten(1), self.two(names[:, 2])], 1))
        return found


_NETS: list[tuple[nn.Module, tuple[int, ...]]] = [
    (nn.Linear(1, 2), (1,)),
    (nn.Sequential(nn.Linear(37, 41), nn.Tanh(), nn.Linear(41, 3, bias=False), nn.Sigmoid()), (37,)),
    (nn.Sequential(nn.ReLU(), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 35)), (16,)),
    (
        nn.Sequential(
            *(nn.Conv2d(1, 7, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(7, 13, 3), nn.Tanh(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(52, 9), nn.ReLU(), nn.Linear(9, 4)),
        ),
        (1, 13, 13),
    ),
    (
        nn.Sequential(nn.Conv2d(3, 2, (1, 4), padding=(3, 5)), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 2)),
        (3, 3, 9),
    ),
    (nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(2, 3, 2, bias=False), nn.Flatten(), nn.Linear(6, 5)), (2, 5, 7)),
    (nn.Sequential(nn.Conv2d(2, 14, 3, padding=1), nn.Conv2d(14, 2, 3), nn.Flatten(), nn.Linear(18, 2)), (2, 5, 5)),
    (fedcg(nn.Sequential(nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 37, bias=False)), domains=3, layers="2"), (7,)),
    (fedcg(nn.Sequential(nn.Linear(7, 35), nn.ReLU(), nn.Linear(35, 3)), domains=5), (7,)),
    (fedcg(nn.Sequential(nn.Linear(7, 35), nn.ReLU(), nn.Linear(35, 3)), domains=6, layers="2"), (7,)),
    (fedcg(nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(48, 33)), domains=4, layers="2"), (2, 5, 5)),
    (fedcg(nn.Sequential(nn.Conv2d(2, 7, 2), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(28, 3)), domains=3), (2, 5, 5)),
    (
        fedcg(
            nn.Sequential(
                *(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 13, 3, padding=1, bias=False)),
                *(nn.Tanh(), nn.Flatten(), nn.Linear(325, 2)),
            ),
            domains=4,
            graph=Graph(torch.full((4, 4), 0.25), "none", "none"),
        ),
        (1, 13, 13),
    ),
    (
        # channels fill vectors, so that short runs share a block
        fedcg(
            nn.Sequential(
                *(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 15, 3, padding=1), nn.ReLU()),
                *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(60, 2)),
            ),
            domains=4,
        ),
        (1, 13, 13),
    ),
    (
        nn.Sequential(
            *(nn.Conv2d(3, 17, 3, padding=1, bias=False), nn.BatchNorm2d(17), nn.MaxPool2d(3, 2, padding=1), nn.ReLU()),
            *(Residual(17, 17, 1), Residual(17, 33, 2, lambda channels: nn.GroupNorm(3, channels))),
            *(nn.Conv2d(33, 9, 3, padding=2), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(36, 2)),
        ),
        (3, 11, 9),
    ),
    (
        nn.Sequential(
            *(nn.Conv2d(9, 35, (2, 3), (2, 1), (1, 0)), nn.MaxPool2d(2, ceil_mode=True)),
            *(nn.Conv2d(35, 8, 3, padding=3), nn.BatchNorm2d(8, affine=False, track_running_stats=False)),
            *(nn.Flatten(), nn.Linear(8 * 6 * 7, 2)),
        ),
        (9, 5, 7),
    ),
    (_Columns(), (4,)),
    (NextTokenLSTM(5, 3, 19, 2, narrow=True), (3,)),
    (NextTokenTransformer(5, 7, 12), (7,)),
    (
        nn.Sequential(
            *(nn.Conv2d(3, 50, 1), nn.BatchNorm2d(50), nn.ReLU6(), nn.Conv2d(50, 50, 3, 2, 1, groups=50, bias=False)),
            *(nn.GroupNorm(2, 50), nn.Conv2d(50, 21, 1), nn.Conv2d(21, 21, (2, 4), padding=1, groups=21)),
            *(nn.Flatten(), nn.Linear(21 * 4 * 2, 2)),
        ),
        (3, 5, 6),
    ),
    (nn.Sequential(nn.Conv2d(2, 16, 1), nn.Conv2d(16, 17, 3), nn.Flatten(), nn.Linear(17, 2)), (2, 3, 3)),
    (nn.Sequential(nn.GroupNorm(1, 5), nn.Conv2d(5, 3, 1, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)), (5, 4, 4)),
]  # fmt: skip


def _exercise(net: Net, dtype: torch.dtype, samples: int, batch: int, options: dict[str, Any]) -> None:
    g = torch_rng(samples, "sanitized")
    weights = torch.randn(net.size, generator=g, dtype=dtype) * 0.2
    y = torch.randint(0, net.outputs, (samples,), generator=g)
    if net.loss == "mse":
        y = torch.randn(samples, net.outputs, generator=g, dtype=dtype)
    mix = torch.full((net.domains, net.domains), 0.3, dtype=dtype) if net.domains in (4, 6) else None
    route = Routing(torch.randint(net.domains, (samples,), generator=g), mix) if net.domains else None
    if options.pop("everything", False):
        options |= {"mu": 0.1, "anchor": weights.clone(), "correction": weights.clone(), "weight_decay": 0.1}
    for x in (
        torch.randn(samples, *net.input_shape, generator=g, dtype=dtype),
        torch.randint(0, 256, (samples, *net.input_shape), generator=g, dtype=torch.uint8),
    ):
        for column, rows in enumerate(net.rows_named):
            if rows:
                x[:, column] = torch.randint(rows, (samples,), generator=g).to(x.dtype)
        order = torch.cat([torch.randperm(samples, generator=g) for _ in range(2)])
        for told in [order] if route is None else [order, grouped(order, 2, batch, route.domains)]:
            net.train(weights, x, y, told, epochs=2, batch=batch, lr=0.01, scale=0.01, route=route, **options)
        net.evaluate(torch.stack([weights, weights]), x, y, route=route)
        net.predict(weights[None], x, route=route)
        if x.is_floating_point() and net.has_input_gradient:
            net.input_gradient(weights, x, y)


def _meet(library: Library, dtype: torch.dtype, rows: int, width: int) -> None:
    """Means and products of models, of awkward widths, in tensors that end where the last model ends."""
    g = torch_rng(width, "sanitized peers")
    ends, begins = torch.randn(2, rows, width, generator=g, dtype=dtype)
    first, second = torch.randint(rows, (2, 3 * rows), generator=g)
    peers.products(library, [ends.clone()], [[begins.clone()], [begins[:1].clone()]], first, second)
    peers.means(library, ends.clone(), torch.arange(rows), torch.tensor([1, rows - 1]))
    peers.means(library, ends[:, width // 2 :], torch.arange(rows), torch.tensor([rows]))


def _overrun(library: Library) -> None:
    """Make the kernel read behind the end of a tensor on purpose."""
    net = plan_with(library, nn.Linear(5000, 2), (5000,), "mse")
    assert isinstance(net, Net)
    data, _kept = net._inputs(torch.zeros(2, 5000), torch.float32, (0.0,), (1.0,), 1.0)
    data.samples = 200
    object.__setattr__(net, "_inputs", lambda *_: (data, []))
    net.logits(torch.zeros(1, net.size), torch.zeros(200, 5000))


def main() -> None:
    """Exercise the library in the folder given first."""
    torch.set_num_threads(1)
    library = load(Path(sys.argv[1]))
    assert isinstance(library, Library), library
    for module, shape in _NETS:
        for loss in ("cross_entropy", "mse"):
            net = plan_with(library, module, shape, loss)
            assert isinstance(net, Net), net
            for block_bytes in (1, 1 << 20):
                small = dataclasses.replace(net, block_bytes=block_bytes)
                _exercise(small, torch.float32, 23, 10, {"momentum": 0.9, "everything": True})
                _exercise(small, torch.float64, 7, 33, {"optimiser": "adam"})
                _exercise(small, torch.float32, 33, 33, {})
    for width in (1, 31, 512, 1000, 40_000):
        for dtype in (torch.float32, torch.float64):
            _meet(library, dtype, 7, width)
    print("clean", flush=True)
    _overrun(library)
    print("the overrun was not noticed")


if __name__ == "__main__":
    main()

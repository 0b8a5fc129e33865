"""Depthwise convolutions, ReLU6, wide 1x1 convolutions and chains that are computed as graphs, as torch does them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.core.compiled import Refusal
from coterie.core.optimiser import Optimiser
from coterie.core.rng import torch_rng
from coterie.core.task import Task
from coterie.kernel import plan
from coterie.kernel.library import Library
from coterie.models import build_model
from coterie.models.mobilenet import Inverted
from tests.kernel.reference import LIBRARIES, assert_trains_alike, needs_kernel, planned
from tests.kernel.test_graph import _SCALED, _SHAPE, _assert_alike

pytestmark = needs_kernel


class _Relu6(nn.Module):
    """ReLU6 as a function, and a depthwise convolution of the input itself."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.last = nn.Conv2d(3, 3, 3, padding=1, groups=3), nn.Linear(189, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(F.relu6(self.own(x)).flatten(1))
        return out


def _normalised() -> dict[str, Callable[[], nn.Module]]:
    return {
        "batch norm around": lambda: nn.Sequential(
            *(nn.Conv2d(3, 20, 1), nn.BatchNorm2d(20), nn.ReLU6(), nn.Conv2d(20, 20, 3, 2, 1, groups=20)),
            *(nn.BatchNorm2d(20), nn.ReLU6(), nn.Conv2d(20, 7, 1), nn.BatchNorm2d(7), nn.Flatten(), nn.Linear(140, 4)),
        ),
        "group norm, other kernels": lambda: nn.Sequential(
            *(nn.Conv2d(3, 50, 1), nn.GroupNorm(5, 50), nn.Tanh(), nn.Conv2d(50, 50, (5, 2), (3, 1), 1, groups=50)),
            *(nn.GroupNorm(2, 50), nn.Sigmoid(), nn.Conv2d(50, 70, 1), nn.Flatten(), nn.Linear(70 * 24, 4)),
        ),
        "rows that no output reads": lambda: nn.Sequential(
            *(nn.Conv2d(3, 18, 1), nn.BatchNorm2d(18, affine=False), nn.Conv2d(18, 18, 2, 3, groups=18)),
            *(nn.Conv2d(18, 5, 1), nn.Flatten(), nn.Linear(30, 4)),
        ),
        "inverted residuals": lambda: nn.Sequential(
            *(Inverted(3, 16, 1, 6), Inverted(16, 16, 1, 6), Inverted(16, 24, 2, 6), nn.AdaptiveAvgPool2d(1)),
            *(nn.Flatten(), nn.Linear(24, 4)),
        ),
        "dropout behind a norm": lambda: nn.Sequential(
            *(nn.Conv2d(3, 18, 3), nn.BatchNorm2d(18), nn.ReLU6(), nn.Dropout(0.4), nn.Conv2d(18, 6, 1)),
            *(nn.Dropout(0.2), nn.Flatten(), nn.Linear(210, 9), nn.ReLU(), nn.Dropout(0.5), nn.Linear(9, 4)),
        ),
    }


@pytest.mark.parametrize("name", _normalised())
@pytest.mark.parametrize(("samples", "batch"), [(12, 6), (5, 0), (3, 1)])
def test_both_paths_compute_the_same(name: str, samples: int, batch: int) -> None:
    task = Task(_normalised()[name], _SHAPE, 4, _SCALED, dtype=torch.float64)
    _assert_alike(task, samples, Optimiser(epochs=2, batch=batch, lr=0.02, momentum=0.9, weight_decay=0.01))


def test_mobilenet() -> None:
    shape = (3, 16, 16)
    task = Task(lambda: build_model("mobilenetv2", shape, 4), shape, 4, _SCALED, dtype=torch.float64)
    _assert_alike(task, 8, Optimiser(epochs=1, batch=4, lr=0.001))


def test_maps_too_large_for_the_caches() -> None:
    """They are written past the caches: 8 MB and more for a batch."""

    def build() -> nn.Module:
        norm = nn.BatchNorm2d(48)
        body = (Inverted(3, 8, 1, 16), nn.Conv2d(8, 48, 1), norm, nn.ReLU6(), nn.Conv2d(48, 4, 1), nn.ReLU())
        return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4))

    task = Task(build, (3, 40, 40), 4, _SCALED, dtype=torch.float64)
    _assert_alike(task, 15, Optimiser(epochs=1, batch=0, lr=0.02))


def _plain() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    return {
        "depthwise": (
            nn.Sequential(
                *(nn.Conv2d(3, 37, 1), nn.ReLU6(), nn.Conv2d(37, 37, 3, 2, 1, groups=37, bias=False), nn.ReLU6()),
                *(nn.Conv2d(37, 150, 1), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(150, 4)),
            ),
            (3, 11, 9),
        ),
        "on the input": (_Relu6(), _SHAPE),
        "a chain by Winograd": (
            nn.Sequential(
                *(nn.Conv2d(3, 17, 3, padding=1), nn.ReLU(), nn.Conv2d(17, 20, 3), nn.Sigmoid(), nn.MaxPool2d(2)),
                *(nn.Flatten(), nn.Linear(120, 6), nn.ReLU6(), nn.Linear(6, 4)),
            ),
            _SHAPE,
        ),
        "ReLU6 before a pool": (
            nn.Sequential(nn.Conv2d(3, 5, 2), nn.ReLU6(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(60, 4)),
            _SHAPE,
        ),
    }


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.file.stem)
@pytest.mark.parametrize("name", _plain())
def test_every_library_trains_as_torch(library: Library, name: str) -> None:
    """Inputs so large that some values are cut at 6."""
    module, shape = _plain()[name]
    x = torch.randn(13, *shape, generator=torch_rng(1, "x"), dtype=torch.float64) * 5
    assert_trains_alike(library, module.double(), x, 5)


def test_a_chain_by_winograd_keeps_its_gradients_of_inputs() -> None:
    module, shape = _plain()["a chain by Winograd"]
    module = module.double()
    net = planned(module, shape)
    x = torch.randn(5, *shape, generator=torch_rng(2, "x"), dtype=torch.float64).requires_grad_()
    y = torch.arange(5) % 4
    F.cross_entropy(module(x), y, reduction="sum").backward()
    weights = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
    found = net.input_gradient(weights, x.detach(), y)[1]
    assert x.grad is not None
    assert torch.allclose(found, x.grad, rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.Sequential(nn.Conv2d(3, 6, 3, groups=3), nn.Flatten(), nn.Linear(210, 4)), "groups of several channels"),
        (
            nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(), nn.Linear(140, 4)),
            "groups of several channels",
        ),
        (
            nn.Sequential(nn.Flatten(), nn.Linear(189, 5), nn.ReLU6(), nn.Dropout(0.5), nn.Linear(5, 4)),
            "dropout behind ReLU6",
        ),
        (
            nn.Sequential(nn.Conv2d(3, 513, 2), nn.GroupNorm(1, 513), nn.Flatten(), nn.Linear(513 * 48, 4)),
            "512 channels",
        ),
    ],
)
def test_what_is_not_known_is_named(module: nn.Module, reason: str) -> None:
    refusal = plan(module, _SHAPE)
    assert isinstance(refusal, Refusal)
    assert reason in refusal.reason

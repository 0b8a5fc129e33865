"""Dropout drops the same values on both paths; average pools in all the ways they are written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.core.cohort import Cohort
from coterie.core.compiled import Refusal
from coterie.core.errors import CoterieError
from coterie.core.optimiser import Optimiser
from coterie.core.rng import torch_rng
from coterie.core.samples import ClientData, Normalise, Samples
from coterie.core.states import Stack, stack
from coterie.core.task import Task
from coterie.core.training import local_sgd
from coterie.kernel import Refusal as KernelRefusal
from coterie.kernel import plan
from tests.kernel.reference import flat, needs_kernel, planned, torch_train

pytestmark = needs_kernel
_SHAPE = (2, 9, 7)
_SCALED = Normalise((0.5,), (0.5,), 1 / 255)


def _with_maps() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 5, 3), nn.Tanh(), nn.Dropout(0.3), nn.Conv2d(5, 9, 2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Dropout(0.25), nn.Flatten(), nn.Linear(54, 11), nn.Sigmoid(), nn.Dropout(0.5), nn.Linear(11, 4),
    )  # fmt: skip


def _before_and_behind() -> nn.Sequential:
    """Two layers of dropout that are equal but for their place; one at the very end."""
    return nn.Sequential(
        *(nn.Flatten(), nn.Dropout(0.5), nn.Linear(126, 126), nn.Tanh(), nn.Dropout(0.5)),
        *(nn.Linear(126, 4), nn.Dropout(0.1)),
    )


class _Functions(nn.Module):
    """Dropout of the inputs, whose channels are innermost, and global averages, all by functions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(2, 6, 3), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(x, 0.2, self.training)
        x = F.dropout(torch.relu(self.first(x)), 0.4, training=self.training)
        out: Tensor = self.last(x.mean((2, 3)))
        return out


def _trained(task: Task, samples: int, batch: int, **options: object) -> Stack:
    g = torch_rng(3, "dropout")
    part = Samples(
        torch.randint(0, 256, (samples, *_SHAPE), generator=g, dtype=torch.uint8),
        torch.randint(0, 4, (samples,), generator=g),
    )
    cohort = Cohort(ids=("a", "b"), data=(ClientData(part, part),) * 2, task=task, seed=5, round=3)
    opt = replace(Optimiser(epochs=2, batch=batch, lr=0.05, momentum=0.9, weight_decay=0.01), **options)  # type: ignore[arg-type]
    start = stack([task.init(0)] * 2)
    return local_sgd(cohort, start, opt, prox=start, mu=0.1)


@pytest.mark.parametrize("build", [_with_maps, _before_and_behind, _Functions])
@pytest.mark.parametrize(("samples", "batch"), [(1, 1), (7, 3), (37, 20), (40, 0)])
def test_both_paths_drop_the_same(build: Callable[[], nn.Module], samples: int, batch: int) -> None:
    task = Task(build, _SHAPE, 4, _SCALED, dtype=torch.float64)
    assert not isinstance(task.compiled, Refusal), task.compiled
    found = _trained(task, samples, batch)
    expected = _trained(replace(task, use_kernel=False), samples, batch)
    for name, tensor in expected.items():
        assert torch.allclose(found[name], tensor, rtol=0, atol=1e-12 * (1 + float(tensor.abs().max()))), name
        assert samples == 1 or not torch.equal(tensor[0], tensor[1]), "clients draw their own"


def test_blocks_of_a_batch_have_their_own_masks() -> None:
    """The trunk walks through a batch in blocks: with 1 byte of memory for each they are as small as can be."""
    task = Task(_with_maps, _SHAPE, 4, _SCALED, dtype=torch.float64)
    assert not isinstance(task.compiled, Refusal)
    small = replace(task, use_kernel=True)
    small.__dict__["compiled"] = replace(task.compiled, net=replace(task.compiled.net, block_bytes=1))  # type: ignore[attr-defined, type-var]
    a, b = _trained(task, 37, 20), _trained(small, 37, 20)
    for name, tensor in a.items():
        assert torch.allclose(b[name], tensor, rtol=0, atol=1e-12 * (1 + float(tensor.abs().max())))


def test_evaluation_drops_nothing() -> None:
    module = _with_maps().double()
    net = planned(module, _SHAPE)
    x = torch.randn(5, *_SHAPE, generator=torch_rng(1, "x"), dtype=torch.float64)
    assert torch.allclose(net.logits(flat(module)[None], x)[0], module.eval()(x), rtol=0, atol=1e-12)
    gradient = net.input_gradient(flat(module), x, torch.zeros(5, dtype=torch.int64))[1]
    x.requires_grad_()
    F.cross_entropy(module(x), torch.zeros(5, dtype=torch.int64), reduction="sum").backward()
    assert torch.allclose(gradient, x.grad, rtol=0, atol=1e-12)  # type: ignore[arg-type]


def test_masks_go_with_dropout_alone() -> None:
    x, y = torch.randn(3, *_SHAPE), torch.zeros(3, dtype=torch.int64)
    net = planned(_with_maps(), _SHAPE)
    for masks in (None, torch.zeros(5, dtype=torch.uint8)):
        with pytest.raises(CoterieError, match=r"[Mm]asks"):
            net.train(torch.zeros(net.size), x, y, torch.arange(3), epochs=1, batch=3, lr=0.1, masks=masks)


def test_dropout_that_ignores_the_mode_is_refused() -> None:
    class Always(_Functions):
        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.last(F.dropout(self.first(x), 0.4).mean((2, 3)))
            return out

    refusal = plan(Always(), _SHAPE)
    assert isinstance(refusal, KernelRefusal)
    assert "does not follow the network's mode" in refusal.reason


class _Averages(nn.Module):
    def __init__(self, body: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.body = nn.Conv2d(2, 5, 3, padding=1), nn.Linear(5, 4), body

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.body(torch.relu(self.first(x))).flatten(1))
        return out


@pytest.mark.parametrize(
    "body",
    [
        lambda x: x.mean((2, 3)),
        lambda x: x.mean(dim=(-1, -2), keepdim=True),
        lambda x: torch.mean(x, [3, 2]),
        lambda x: F.adaptive_avg_pool2d(x, 1),
        lambda x: F.adaptive_avg_pool2d(F.avg_pool2d(x, (2, 3)), (1, 1)),
        lambda x: F.avg_pool2d(x, kernel_size=(9, 7)),
        nn.Sequential(
            nn.AvgPool2d(2), nn.ReLU(), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d((None, 1)), nn.AvgPool2d((2, 1))
        ),
    ],
)
def test_every_way_to_write_an_average_equals_torch(body: Callable[[Tensor], Tensor]) -> None:
    module = _Averages(body).double()
    net = planned(module, _SHAPE)
    g = torch_rng(2, "averages")
    x = torch.randn(21, *_SHAPE, generator=g, dtype=torch.float64)
    y, order = torch.randint(0, 4, (21,), generator=g), torch.randperm(21, generator=g)
    expected, _ = torch_train(module, flat(module), x, y, order, epochs=1, batch=8, lr=0.1, momentum=0.9)
    found = flat(module)
    net.train(found, x, y, order, epochs=1, batch=8, lr=0.1, momentum=0.9)
    assert torch.allclose(found, expected, rtol=0, atol=1e-12)
    assert not torch.equal(found, flat(module))

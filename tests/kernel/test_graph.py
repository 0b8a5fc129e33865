"""Networks that normalise, add, stride or pool other fields: the kernel trains and judges them as torch does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from coterie.core import evaluation
from coterie.core.cohort import Cohort
from coterie.core.compiled import Refusal
from coterie.core.errors import CoterieError
from coterie.core.optimiser import Optimiser
from coterie.core.rng import torch_rng
from coterie.core.samples import ClientData, Normalise, Samples
from coterie.core.states import Stack, stack
from coterie.core.task import Task
from coterie.core.training import local_sgd
from coterie.core.training import steps as steps_of
from coterie.kernel import plan
from coterie.models import build_model
from coterie.models.resnet import Residual
from tests.kernel.reference import needs_kernel, planned

pytestmark = needs_kernel
_SHAPE = (3, 9, 7)
_SCALED = Normalise((0.5,), (0.5,), 1 / 255)


def _close(found: Tensor, expected: Tensor) -> bool:
    """Normalising the two pixels of a last map divides by their difference: 1e-12 is not always reached."""
    if not expected.is_floating_point():
        return torch.equal(found, expected)
    return torch.allclose(found, expected, rtol=0, atol=1e-10 * (1 + float(expected.abs().max())))


def _samples(count: int, shape: tuple[int, ...], seed: int = 3) -> Samples:
    g = torch_rng(seed, "graph")
    return Samples(
        torch.randint(0, 256, (count, *shape), generator=g, dtype=torch.uint8),
        torch.randint(0, 4, (count,), generator=g),
    )


def _cohort(task: Task, count: int, clients: int = 2) -> Cohort:
    data = [_samples(count + index, task.shape, index) for index in range(clients)]
    ids = tuple("abcd"[:clients])
    return Cohort(ids=ids, data=tuple(ClientData(part, part) for part in data), task=task, seed=5, round=3)


def _trained(task: Task, count: int, opt: Optimiser, **options: Any) -> tuple[Cohort, Stack]:
    cohort = _cohort(task, count)
    return cohort, local_sgd(cohort, stack([task.init(0), task.init(1)]), opt, **options)


def _assert_alike(task: Task, count: int, opt: Optimiser, **options: Any) -> None:
    """Training, its losses, and three kinds of evaluation of what was trained, by both paths."""
    assert not isinstance(task.compiled, Refusal), task.compiled
    by_torch = replace(task, use_kernel=False)
    cohort, found = _trained(task, count, opt, **options)
    reference, expected = _trained(by_torch, count, opt, **options)
    for name, tensor in expected.items():
        assert _close(found[name], tensor), name
    assert cohort.losses == pytest.approx(reference.losses, rel=1e-10)
    scores = [evaluation.evaluate(each, expected) for each in (cohort, reference)]
    assert _close(scores[0].loss, scores[1].loss)
    assert torch.equal(scores[0].correct, scores[1].correct)
    samples = cohort.data[0].train
    one = {name: tensor[:1] for name, tensor in expected.items()}
    assert _close(evaluation.outputs(task, one, samples), evaluation.outputs(by_torch, one, samples))
    inputs = task.inputs(samples.x)
    assert _close(
        evaluation.probabilities(task, expected, inputs), evaluation.probabilities(by_torch, expected, inputs)
    )


def _groups(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(2, channels)


def _networks() -> dict[str, Callable[[], nn.Module]]:
    return {
        "batch norm": lambda: nn.Sequential(
            *(nn.Conv2d(3, 5, 3, padding=1), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten(), nn.Linear(315, 4))
        ),
        "no running statistics": lambda: nn.Sequential(
            *(nn.Conv2d(3, 18, 3), nn.BatchNorm2d(18, track_running_stats=False), nn.Conv2d(18, 9, 3), nn.Sigmoid()),
            *(nn.Flatten(), nn.Linear(135, 4)),
        ),
        "plain norms": lambda: nn.Sequential(
            *(nn.BatchNorm2d(3, momentum=0.3, eps=0.01), nn.Conv2d(3, 17, 3, padding=2), nn.GroupNorm(17, 17)),
            *(nn.Tanh(), nn.Conv2d(17, 33, 3), nn.BatchNorm2d(33, affine=False), nn.Flatten(), nn.Linear(33 * 63, 4)),
        ),
        "strides": lambda: nn.Sequential(
            *(nn.Conv2d(3, 18, 3, 2, 1), nn.ReLU(), nn.Conv2d(18, 35, 3, padding=1), nn.Tanh()),
            *(nn.Conv2d(35, 4, (2, 3), (2, 1)), nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4)),
        ),
        "pools": lambda: nn.Sequential(
            *(nn.MaxPool2d(2, ceil_mode=True), nn.Conv2d(3, 10, 3, padding=2), nn.MaxPool2d(3, 2, padding=1)),
            *(nn.ReLU(), nn.MaxPool2d(2, 1), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(10, 4)),
        ),
        "residuals": lambda: nn.Sequential(
            *(nn.Conv2d(3, 8, 3, padding=1), Residual(8, 8, 1), Residual(8, 12, 2, _groups), nn.AdaptiveAvgPool2d(1)),
            *(nn.Flatten(), nn.Linear(12, 7), nn.ReLU(), nn.Dropout(0.3), nn.Linear(7, 4)),
        ),
        "CelebA CNN": lambda: build_model("leaf-celeba", _SHAPE, 4),
        "CelebA CNN, port": lambda: build_model("celeba-port", _SHAPE, 4),
        "ResNet-8": lambda: build_model("resnet8", _SHAPE, 4),
        "ResNet-8, GroupNorm": lambda: build_model("resnet8-gn", _SHAPE, 4),
    }


@pytest.mark.parametrize("name", _networks())
@pytest.mark.parametrize(("samples", "batch"), [(12, 6), (5, 0), (3, 1)])
def test_both_paths_compute_the_same(name: str, samples: int, batch: int) -> None:
    """Clients of 12 and 13 samples: with BatchNorm the thirteenth is left out."""
    task = Task(_networks()[name], _SHAPE, 4, _SCALED, dtype=torch.float64)
    anchor = stack([task.init(2), task.init(3)])
    learnt = {each: 0.01 * anchor[each] for each in task.parameters}
    opt = Optimiser(epochs=2, batch=batch, lr=0.02, momentum=0.9, weight_decay=0.01)
    _assert_alike(task, samples, opt, prox=anchor, mu=0.1, correction=learnt)


@pytest.mark.parametrize("name", _networks())
def test_both_paths_train_a_part_alike(name: str) -> None:
    """Statistics of BatchNorm are renewed in all layers, as torch does, since the whole network is run."""
    task = Task(_networks()[name], _SHAPE, 4, _SCALED, dtype=torch.float64)
    opt = Optimiser(epochs=2, batch=6, lr=0.02, momentum=0.9)
    head = [each for each in task.parameters if each.rpartition(".")[0] == task.parameters[-1].rpartition(".")[0]]
    for only in (head, [each for each in task.parameters if each not in head], []):
        _assert_alike(task, 12, opt, only=only)
        _, found = _trained(task, 12, opt, only=only)
        moved = {each for each in task.parameters if not torch.equal(found[each][0], task.init(0)[each])}
        assert moved <= set(only)
        assert bool(moved) == bool(only)


def test_adam_and_squared_errors() -> None:
    task = Task(_networks()["residuals"], _SHAPE, 4, _SCALED, dtype=torch.float64, loss="mse")
    part = Samples(_samples(9, _SHAPE).x, torch.randn(9, 4, generator=torch_rng(1, "y"), dtype=torch.float64))
    found = []
    for kernel in (True, False):
        own = replace(task, use_kernel=kernel)
        cohort = Cohort(ids=("a",), data=(ClientData(part, part),), task=own, seed=5, round=3)
        assert isinstance(own.compiled, Refusal) is not kernel
        # one step: Adam divides a gradient by its own size, so rounding noise grows in the next
        opt = Optimiser(kind="adam", epochs=1, batch=0, lr=0.001)
        found.append(local_sgd(cohort, stack([own.init(0)]), opt)["8.weight"])
    assert torch.allclose(found[0], found[1], rtol=0, atol=1e-9)


class _Added(nn.Module):
    """Sums written as functions and methods, of the input too, and a value that is used three times."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 1, bias=False)
        self.norm, self.last = nn.BatchNorm2d(3), nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.add(x, self.first(x))
        z = self.norm(y).add(self.second(y)).relu()
        z = z + y
        out: Tensor = self.last((z + x).tanh().mean((2, 3)))
        return out


def test_sums_in_all_the_ways_they_are_written() -> None:
    task = Task(_Added, _SHAPE, 4, _SCALED, dtype=torch.float64)
    _assert_alike(task, 7, Optimiser(epochs=2, batch=4, lr=0.1, momentum=0.5))


@st.composite
def _graphs(draw: st.DrawFn) -> nn.Sequential:
    """A random trunk of all that is known on maps."""
    layers: list[nn.Module] = []
    channels, height, width = _SHAPE
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(("convolution", "convolution", "residual", "pool", "norm")))
        if kind == "convolution":
            kernel = (draw(st.sampled_from((1, 3, 3, 2))), draw(st.sampled_from((1, 3, 3))))
            steps, edge = (draw(st.integers(1, 2)), draw(st.integers(1, 2))), draw(st.integers(1, 2))
            outputs = draw(st.sampled_from((2, 6, 17, 32)))
            layers.append(nn.Conv2d(channels, outputs, kernel, steps, edge, bias=draw(st.booleans())))
            channels = outputs
            height, width = (
                (s + 2 * edge - k) // t + 1 for s, k, t in zip((height, width), kernel, steps, strict=True)
            )
        elif kind == "residual" and channels % 2 == 0:
            outputs, stride = draw(st.sampled_from(((channels, 1), (channels * 2, 2), (8, 1))))
            layers.append(Residual(channels, outputs, stride, _groups if draw(st.booleans()) else nn.BatchNorm2d))
            channels, height, width = outputs, (height - 1) // stride + 1, (width - 1) // stride + 1
        elif kind == "pool":
            stride = draw(st.integers(1, 2))
            layers.append(nn.MaxPool2d(3, stride, padding=1))
            height, width = (height - 1) // stride + 1, (width - 1) // stride + 1
        if height * width > 1 and draw(st.booleans()):
            tracked = draw(st.booleans())
            layers.append(nn.BatchNorm2d(channels, affine=draw(st.booleans()), track_running_stats=tracked))
        if draw(st.booleans()):
            layers.append(draw(st.sampled_from((nn.ReLU, nn.Tanh)))())
        if height * width == 1:
            break
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * height * width, 4))


@given(_graphs(), st.integers(2, 9), st.integers(2, 9))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_random_graphs_equal_torch(module: nn.Sequential, samples: int, batch: int) -> None:
    task = Task(module, _SHAPE, 4, _SCALED, dtype=torch.float64)
    if isinstance(task.compiled, Refusal):
        assert "single pixel" in task.compiled.reason
        return
    start = stack([task.init(0)] * 2)
    opt = Optimiser(epochs=1, batch=batch, lr=0.01, momentum=0.9)
    found, expected = (
        local_sgd(_cohort(replace(task, use_kernel=kernel), samples), start, opt) for kernel in (True, False)
    )
    for name, tensor in expected.items():
        assert _close(found[name], tensor), name


def test_equal_values_have_the_first_one_win_in_fields_that_overlap() -> None:
    module = nn.Sequential(nn.Conv2d(1, 4, 1), nn.MaxPool2d(3, 2, padding=1), nn.Flatten(), nn.Linear(64, 4)).double()
    task = Task(module, (1, 8, 8), 4, dtype=torch.float64)
    x = torch.randint(0, 2, (6, 1, 8, 8), generator=torch_rng(4, "ties"), dtype=torch.uint8)
    part = Samples(x, torch.arange(6) % 4)
    found, expected = (
        local_sgd(
            Cohort(ids=("a",), data=(ClientData(part, part),), task=replace(task, use_kernel=kernel), seed=0, round=0),
            stack([task.init(0)]),
            Optimiser(epochs=3, batch=3, lr=0.5),
        )
        for kernel in (True, False)
    )
    for name, tensor in expected.items():
        assert _close(found[name], tensor), name


def test_what_was_not_a_number_stays_so() -> None:
    net = planned(nn.Sequential(nn.BatchNorm2d(1), nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(4, 2)), (1, 3, 3))
    weights, x = torch.ones(net.size), torch.zeros(2, 1, 3, 3)
    x[0, 0, 1, 1] = torch.nan
    found = net.logits(weights[None], x)[0]
    assert found[0].isnan().all()
    assert found[1].isfinite().all()


def test_steps_are_counted_as_torch_counts_them() -> None:
    task = Task(_networks()["ResNet-8"], _SHAPE, 4, _SCALED)
    opt = Optimiser(epochs=3, batch=4, lr=0.01)
    cohort, found = _trained(task, 8, opt)
    assert steps_of(cohort, opt).tolist() == [6, 6]
    assert found["1.num_batches_tracked"].tolist() == [6, 6]
    alone = _cohort(task, 1, clients=1)
    assert torch.equal(local_sgd(alone, stack([task.init(0)]), opt)["0.weight"][0], task.init(0)["0.weight"])
    assert not alone.losses


def test_a_client_does_not_depend_on_those_beside_it() -> None:
    """Memory that one client leaves behind is used for the next: it must not be seen."""
    for name in ("ResNet-8", "CelebA CNN, port", "residuals"):
        task = Task(_networks()[name], _SHAPE, 4, _SCALED)
        opt, start = Optimiser(epochs=1, batch=5, lr=0.05, momentum=0.9), task.init(0)
        both = _cohort(task, 11)
        together = local_sgd(both, stack([start] * 2), opt)
        for index in (1, 0):
            one = replace(both, ids=(both.ids[index],), data=(both.data[index],))
            alone = local_sgd(one, stack([start]), opt)
            assert all(torch.equal(alone[each][0], tensor[index]) for each, tensor in together.items())


def test_single_precision_follows_double() -> None:
    results = []
    for dtype in (torch.float32, torch.float64):
        task = Task(_networks()["ResNet-8, GroupNorm"], _SHAPE, 4, _SCALED, dtype=dtype)
        start = {name: tensor.to(dtype) for name, tensor in replace(task, dtype=torch.float64).init(0).items()}
        results.append(local_sgd(_cohort(task, 12), stack([start] * 2), Optimiser(epochs=1, batch=4, lr=0.01)))
    for name, tensor in results[1].items():
        assert torch.allclose(results[0][name].double(), tensor, rtol=0, atol=2e-6), name


def test_batches_of_an_evaluation_are_those_of_torch() -> None:
    """Without running statistics a sample's outputs depend on the 511 beside it."""

    def build() -> nn.Module:
        norm = nn.BatchNorm2d(2, track_running_stats=False)
        return nn.Sequential(nn.Conv2d(1, 2, 2), norm, nn.ReLU(), nn.Flatten(), nn.Linear(8, 4))

    task = Task(build, (1, 3, 3), 4, _SCALED, dtype=torch.float64)
    assert not isinstance(task.compiled, Refusal)
    models, samples = stack([task.init(0), task.init(1)]), _samples(700, (1, 3, 3))
    by_torch = replace(task, use_kernel=False)
    assert _close(evaluation.score(task, models, samples).loss, evaluation.score(by_torch, models, samples).loss)


def test_gradients_of_inputs_are_left_to_torch() -> None:
    task = Task(_networks()["ResNet-8"], _SHAPE, 4, _SCALED)
    assert not isinstance(task.compiled, Refusal)
    assert task.compiled.input_gradients(stack([task.init(0)])) is None
    net = planned(task.module, _SHAPE)
    with pytest.raises(CoterieError, match="gradient of the inputs"):
        net.input_gradient(torch.zeros(net.size), torch.zeros(1, *_SHAPE), torch.zeros(1, dtype=torch.int64))


class _Forward(nn.Module):
    def __init__(self, body: Callable[[Any, Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.maps, self.last, self.body = nn.Conv2d(3, 3, 3, padding=1), nn.Linear(189, 4), body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.maps, self.last, x)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.Sequential(nn.BatchNorm2d(3, momentum=None), nn.Flatten(), nn.Linear(189, 4)), "no momentum"),
        (nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3, 4)), "single pixel"),
        (nn.Sequential(nn.Conv2d(3, 64, 1), nn.Conv2d(64, 4, 5, 2), nn.Flatten(), nn.Linear(24, 4)), "torch is faster"),
        (nn.Sequential(nn.Flatten(), nn.Linear(189, 4), nn.GroupNorm(2, 4), nn.Linear(4, 4)), "not maps with 4"),
        (nn.Sequential(nn.InstanceNorm2d(3, track_running_stats=True), nn.Flatten(), nn.Linear(189, 4)), "buffers"),
        (_Forward(lambda m, last, x: last((x + x).flatten(1))), "add"),
        (_Forward(lambda m, last, x: last((m(x) + m(x)).flatten(1))), "used twice"),
        (_Forward(lambda m, last, x: last((m(x) + 1.0).flatten(1))), "add"),
        (_Forward(lambda m, last, x: last((m(x) + x.mean((2, 3), keepdim=True)).flatten(1))), "shapes"),
        (_Forward(lambda m, last, x: last(m(x).flatten(1) + x.flatten(1))), "add of anything but two maps"),
        (_Forward(lambda m, last, x: (x.relu() + x.tanh(), last(m(x).flatten(1)))[1]), "does not use"),
        (_Forward(lambda m, last, x: torch.add(last(m(x).flatten(1)), last.weight[:, 0])), "outside a layer"),
    ],
)
def test_what_is_not_known_is_named(module: nn.Module, reason: str) -> None:
    refusal = plan(module, _SHAPE)
    assert isinstance(refusal, Refusal)
    assert reason in refusal.reason

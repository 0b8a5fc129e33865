"""Several clients at once give what one after the other gives (on the CPU, in double precision)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from coterie.core import side_by_side
from coterie.core.cohort import Cohort
from coterie.core.optimiser import Optimiser
from coterie.core.samples import ClientData
from coterie.core.side_by_side import Extra
from coterie.core.states import Stack, spread
from coterie.core.task import Task
from coterie.core.training import MAIN, local_sgd, sample_order
from coterie.data.own import OwnPopulation

from ..tiny import batchnorm_net, cohort, largest_gap, small_net

SIZES = (8, 7, 8, 0, 1, 6)


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 10))


def attention() -> nn.Module:
    """Rows of the image as a sequence, with layers that no kernel knows."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into, self.norm, self.out = nn.Linear(8, 6), nn.LayerNorm(6), nn.Linear(6, 10)

        def forward(self, x: Tensor) -> Tensor:
            rows = self.norm(self.into(x.flatten(0, 1).unflatten(0, (len(x), -1))[:, 0]))
            weights = (rows @ rows.transpose(1, 2)).softmax(-1)
            answer: Tensor = self.out((weights @ rows).mean(1))
            return answer

    return Net()


def uneven(digits: OwnPopulation, task: Task) -> Cohort:
    """Six clients with other numbers of samples, one of them with none: batches of 5 do not end together."""
    c = cohort(digits, task, digits.ids[: len(SIZES)], round=3)
    data = [ClientData(d.train.take(torch.arange(n)), d.test) for d, n in zip(c.data, SIZES, strict=True)]
    return replace(c, data=tuple(data))


def order(c: Cohort, index: int, epochs: int) -> Tensor:
    return sample_order(c, index, epochs, MAIN)


def moved(start: Stack, by: float) -> Stack:
    return {name: tensor + by for name, tensor in start.items()}


@pytest.mark.parametrize("net", [small_net, convolutions, attention])
@pytest.mark.parametrize(
    "opt",
    [
        Optimiser(epochs=2, batch=5, lr=0.1),
        Optimiser(epochs=2, batch=5, lr=0.1, momentum=0.9, weight_decay=0.01, lr_decay=0.9),
        Optimiser(epochs=1, batch=0, lr=0.2),
    ],
)
def test_it_is_the_same_training(digits: OwnPopulation, net: Callable[[], nn.Module], opt: Optimiser) -> None:
    task = replace(Task.of(net, digits, dtype=torch.float64), use_kernel=False)
    c, start = uneven(digits, task), spread(task.init(4), len(SIZES))
    extra = Extra(moved(start, 0.1), 0.5, moved(start, -0.02))
    for more in (Extra(), extra):
        expected = local_sgd(c, start, opt, prox=more.prox, mu=more.mu, correction=more.correction)
        losses = dict(c.losses)
        models, found = side_by_side.trained(c, start, opt, more, order)
        assert largest_gap(models, expected) < 1e-12
        assert {c.ids[place]: loss for place, loss in found.items()} == pytest.approx(losses, abs=1e-12)
        assert set(losses) == {client for client, size in zip(c.ids, SIZES, strict=True) if size}


def test_many_models_are_trained_in_portions(digits: OwnPopulation, monkeypatch: pytest.MonkeyPatch) -> None:
    task = replace(Task.of(small_net, digits, dtype=torch.float64), use_kernel=False)
    c, start, opt = uneven(digits, task), spread(task.init(4), len(SIZES)), Optimiser(batch=5, lr=0.1)
    whole = side_by_side.trained(c, start, opt, Extra(), order)
    size = sum(tensor.numel() * tensor.element_size() for tensor in task.template.values())
    monkeypatch.setattr(side_by_side, "_MOST_BYTES", 3 * size * 4)  # four models and two
    portions = side_by_side.trained(c, start, opt, Extra(), order)
    assert largest_gap(whole[0], portions[0]) < 1e-12
    assert whole[1] == pytest.approx(portions[1], abs=1e-12)


class Elsewhere:
    """A device that is not the CPU, for the question whether a training can be done so."""

    type = "elsewhere"


@pytest.mark.parametrize(
    ("net", "opt", "fits"),
    [
        (small_net, Optimiser(), True),
        (small_net, Optimiser(kind="adam"), False),
        (batchnorm_net, Optimiser(), False),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Dropout(0.1)), Optimiser(), False),
    ],
)
def test_what_it_takes(digits: OwnPopulation, net: Callable[[], nn.Module], opt: Optimiser, fits: bool) -> None:
    c = cohort(digits, Task.of(net, digits))
    assert not side_by_side.takes(c, opt, None)  # on the CPU never: results are the same bit for bit there
    assert c.task.module.training  # made on the CPU
    c.task.__dict__["device"] = Elsewhere()
    assert side_by_side.takes(c, opt, None) is fits
    assert not side_by_side.takes(c, opt, ["1.weight"])
    assert not side_by_side.takes(replace(c, ids=c.ids[:1], data=c.data[:1]), opt, None)


def test_what_is_slower_or_cannot_be_done_is_not_done_and_not_tried_again(digits: OwnPopulation) -> None:
    calls: list[str] = []

    def refuses(x: Tensor) -> Tensor:
        return x * float(x.detach().sum())  # the value of one client's numbers is not known among several

    class Net(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            answer: Tensor = super().forward(x)  # type: ignore[no-untyped-call]
            return refuses(answer)

    def plain(some: Cohort, opt: Optimiser) -> None:
        calls.append(f"{len(some)} clients, {sum(len(d.train) for d in some.data)} samples, {opt.epochs} epoch")

    task = Task.of(lambda: Net(nn.Flatten(), nn.Linear(64, 10)), digits)
    c, opt = uneven(digits, task), Optimiser(epochs=3, batch=3, lr=0.1)
    start = spread(task.init(0), len(c))
    assert not side_by_side.pays(c, start, opt, plain, order)
    assert not side_by_side.pays(c, start, opt, plain, order)
    # two batches of 3 of each: 6, 6, 6, 0, 1 and 6 samples, once to warm up
    assert calls == ["6 clients, 25 samples, 1 epoch"] * 2

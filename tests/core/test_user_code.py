"""The user's own code goes wrong: one sentence that names the exception, the shape that went in and the line."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import coterie
from coterie import run
from coterie.core.errors import CoterieError
from coterie.core.optimiser import Optimiser
from coterie.core.samples import ClientData
from coterie.core.states import row, spread
from coterie.core.task import Task
from coterie.core.training import local_sgd, steps
from coterie.data.own import OwnPopulation
from coterie.simulation.simulator import EngineOptions
from tests.conftest import Command
from tests.tiny import (
    cohort,
    fingerprint,
    largest_gap,
    made,
    small_net,
)

HERE = Path(__file__).name


class Flat(nn.Module):
    """A network that works."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.layer(x.flatten(1))
        return answer


class NoKey(Flat):
    def forward(self, x: Tensor) -> Tensor:
        return {"other": x}["weights"]


class Asserts(Flat):
    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[1] == 3
        return x


class OnlyTraining(Flat):
    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            raise LookupError("only in training")
        return super().forward(x)


class InPlace(Flat):
    def forward(self, x: Tensor) -> Tensor:
        answer = super().forward(x).exp()
        answer += answer.detach() if not self.training else answer.exp_()
        return answer


class OneRow(Flat):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[:1]


class Frozen(Flat):
    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)


class Needs(Flat):
    def __init__(self, hidden: int) -> None:
        super().__init__()


def line_of(model: type[nn.Module], text: str) -> int:
    """The line of this file in which a class says something."""
    lines = Path(__file__).read_text().splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith(f"class {model.__name__}("))
    return next(at for at in range(start, len(lines)) if text in lines[at]) + 1


@pytest.mark.parametrize(
    ("model", "says", "line"),
    [
        (NoKey, r"batch of shape \(2, 1, 8, 8\): KeyError: 'weights'", '["weights"]'),
        (Asserts, r"batch of shape \(2, 1, 8, 8\): AssertionError.*", "assert"),
        (OnlyTraining, r"batch of shape \(4, 1, 8, 8\): LookupError: only in training", "raise"),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_in_forward(model: Any, says: str, line: str, workers: int, digits: OwnPopulation) -> None:
    """Wherever it happens: at the first look, in a thread of this process, in a worker process."""
    with pytest.raises(CoterieError, match=rf"The model fails on a {says} \(.*\).*put its forward right") as told:
        run(made("fedavg", batch=4), digits, model, rounds=1, engine=EngineOptions(workers=workers))
    assert f"{HERE}:{line_of(model, line)}" in str(told.value)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (InPlace, "The gradient of the loss fails for a batch of shape .*: RuntimeError: .*inplace"),
        (OneRow, r"The loss fails on outputs of shape \(1, 10\) and targets of shape \(2,\): ValueError"),
        (Frozen, "All of the model's parameters are frozen"),
        (Needs, r"Needs\(\) fails: TypeError: .*hidden'; .* such as `lambda: Needs\(...\)`"),
        (lambda: 3, r"<lambda>\(\) must return a torch.nn.Module, not a int"),
        (lambda: 1 / 0, rf"<lambda>\(\) fails: ZeroDivisionError: division by zero \(.*{HERE}:\d+\)"),
        (42, "The model is of type int; pass a torch.nn.Module, its class, or a function"),
    ],
)
def test_a_model_that_cannot_be_trained(model: Any, says: str, digits: OwnPopulation) -> None:
    with pytest.raises(CoterieError, match=says):
        run(made("fedavg"), digits, model, rounds=1)


def unreduced(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target, reduction="none")


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (unreduced, r"The loss returns a tensor of shape \(2,\); let it return one number .*reduction='mean'"),
        (nn.CrossEntropyLoss(reduction="none"), r"The loss returns a tensor of shape \(2,\)"),
        (lambda output, target: 0.5, "The loss returns a float"),
        (lambda output, target: F.cross_entropy(output, target).detach(), "The loss has no gradient"),
        (lambda output, target: output.nothing, rf"The loss fails on .*AttributeError: .*{HERE}:\d+\)"),
        ("cross_entrophy", "There is no loss 'cross_entrophy'; did you mean 'cross_entropy'?"),
        (3, "The loss is of type int; give a name"),
    ],
)
def test_a_loss_that_is_none(loss: Any, says: str, digits: OwnPopulation) -> None:
    with pytest.raises(CoterieError, match=says):
        run(made("fedavg"), digits, Flat, rounds=1, loss=loss)


def test_a_class_is_a_builder(digits: OwnPopulation) -> None:
    """`model=Flat` is `model=lambda: Flat()`."""
    by_class, by_function = (run(made("ifca"), digits, model, rounds=1) for model in (Flat, lambda: Flat()))
    assert repr(fingerprint(by_class)) == repr(fingerprint(by_function))


def test_a_method_by_its_name(digits: OwnPopulation) -> None:
    """`run("fedavg", ...)` is `run(method("fedavg"), ...)`."""
    by_name = coterie.run("fedavg", digits, small_net, rounds=1)
    assert repr(fingerprint(by_name)) == repr(fingerprint(run(coterie.method("fedavg"), digits, small_net, rounds=1)))
    with pytest.raises(CoterieError, match=r"There is no method 'fedavgg'; did you mean 'fedavg'\?"):
        coterie.run("fedavgg", digits, small_net)
    for wrong in (3, coterie.METHODS["fedavg"]):
        with pytest.raises(CoterieError, match="The method must be a name"):
            coterie.run(wrong, digits, small_net)  # type: ignore[arg-type]


def test_attention_on_series(tmp_path: Path) -> None:
    """A network that does not take what the inputs became says so with their shape; nothing is written."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend, self.out = nn.MultiheadAttention(1, 1, batch_first=True), nn.Linear(1, 2)

        def forward(self, x: Tensor) -> Tensor:
            answer: Tensor = self.out(self.attend(x, x, x)[0].mean(1))
            return answer

    rng = np.random.default_rng(0)
    data = {f"c{i}": (rng.normal(size=(8, 48, 1)).astype("float32"), np.arange(8) % 2) for i in range(2)}
    with pytest.raises(CoterieError, match=r"The model fails on a batch of shape .*AssertionError: query should be"):
        coterie.run("fedavg", coterie.from_arrays(data, layout="images"), Attention, rounds=1, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    series = coterie.from_arrays(data, layout="series")
    assert coterie.run("fedavg", series, Attention, rounds=1, evaluate_every=1).clients == 2


def norm_net() -> nn.Module:
    """BatchNorm over features: no statistics at all of a single sample."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4), nn.Linear(4, 10))


def with_sizes(digits: OwnPopulation, *sizes: int) -> OwnPopulation:
    whole = digits.client("c0")
    data = {f"n{size}": ClientData(whole.train.take(torch.arange(size)), whole.test) for size in sizes}
    return OwnPopulation(data, digits.shape, 10, digits.normalise)


@pytest.mark.parametrize("batch", [0, 4])
def test_a_batch_of_one_is_left_out_where_batches_are_normalised(batch: int, digits: OwnPopulation) -> None:
    """Of a client with one sample there is no step, of one with two there is one an epoch; no run ends."""
    population = with_sizes(digits, 1, 2, 9)
    task, opt = Task.of(norm_net, population), Optimiser(epochs=2, batch=batch, lr=0.05)
    c = cohort(population, task)
    start = spread(task.init(0), 3)
    trained = local_sgd(c, start, opt)
    assert steps(c, opt).tolist() == [0.0, 2.0, 2.0 if batch == 0 else 4.0]
    assert trained["2.num_batches_tracked"].tolist() == steps(c, opt).tolist()
    assert largest_gap(row(trained, 0), row(start, 0)) == 0
    for method in ("fedavg", "scaffold"):
        assert run(made(method, batch=batch), population, norm_net, rounds=1).failures == 0


def test_batches_of_one_that_were_asked_for(digits: OwnPopulation) -> None:
    with pytest.raises(CoterieError, match=r"batch of shape \(1, 1, 8, 8\): ValueError: Expected more than 1 value"):
        run(made("fedavg", batch=1), with_sizes(digits, 3, 5), norm_net, rounds=1)


@pytest.mark.parametrize("function", ["Net", "build"])
def test_the_command_line_names_the_line_too(function: str, coterie: Command, tmp_path: Path) -> None:
    text = "from torch import nn\nclass Net(nn.Module):\n def __init__(self):\n  super().__init__()\n"
    text += "  self.layer = nn.Linear(64, 10)\n def forward(self, x):\n  return self.leyer(x)\nbuild = lambda: Net()\n"
    (tmp_path / "net.py").write_text(text)
    said = coterie("run", "fedavg", "--model", f"{tmp_path / 'net.py'}:{function}", "--out", tmp_path / "run")
    assert said.code == 2
    assert re.match(
        r"coterie: The model fails on a batch of shape \(2, 1, 8, 8\): AttributeError: .*'leyer'.* \(.*net\.py:7\); ",
        said.err,
    )
    assert said.err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_what_coterie_says_itself_stays_as_it_is(digits: OwnPopulation) -> None:
    def refuses(*_: Tensor) -> Tensor:
        raise CoterieError("a sentence.")

    places: list[Callable[[], object]] = [
        lambda: run(made("fedavg"), digits, Flat, rounds=1, loss=refuses),
        lambda: run(made("fedavg"), digits, refuses, rounds=1),  # type: ignore[arg-type]
        lambda: run(made("fedavg"), digits, type("Own", (Flat,), {"forward": refuses}), rounds=1),
    ]
    for place in places:
        with pytest.raises(CoterieError, match=r"^a sentence\.$"):
            place()

"""Runs of every kind of task, small and from start to end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from coterie import from_arrays, load_model, method, run
from coterie.core.errors import CoterieError
from coterie.core.metrics import Metric
from coterie.core.personal import personal_models
from coterie.core.samples import ClientData
from coterie.core.targets import chosen_kind
from coterie.core.task import Task
from coterie.core.training import local_sgd
from coterie.data.own import OwnPopulation
from coterie.runs.view import NotesOnly
from coterie.simulation.simulator import EngineOptions

from ..tiny import cohort, largest_gap, one_weight, rows

ALONE = EngineOptions(workers=1)


def lines(scale: float = 1.0, shift: float = 0.0) -> OwnPopulation:
    """Four clients with y = 2 a - b, in other units if so wished."""
    g = np.random.default_rng(3)
    clients = {}
    for name in "abcd":
        x = g.normal(size=(40, 2)).astype(np.float32)
        clients[name] = (x, (scale * (2 * x[:, 0] - x[:, 1]) + shift).astype(np.float64))
    return from_arrays(clients)


def labelled() -> OwnPopulation:
    """Three clients with three labels a sample, each the sign of one input."""
    g = np.random.default_rng(4)
    x = {name: g.normal(size=(40, 3)).astype(np.float32) for name in "abc"}
    return from_arrays({name: (part, (part > 0).astype(np.int64)) for name, part in x.items()})


def signs() -> OwnPopulation:
    """Three clients with two classes."""
    g = np.random.default_rng(5)
    x = {name: g.normal(size=(40, 2)).astype(np.float32) for name in "abc"}
    return from_arrays({name: (part, (part[:, 0] > 0).astype(np.int64)) for name, part in x.items()})


def linear(outputs: int, inputs: int = 2) -> nn.Module:
    return nn.Linear(inputs, outputs)


@pytest.mark.parametrize("kernel", [True, False])
def test_large_targets_learn_as_small_ones_do(kernel: bool) -> None:
    """House prices, y' = 100,000 y + 300,000: the network learns the same standardised numbers, so the same weights."""
    engine = EngineOptions(workers=1, kernel=kernel)
    small, large = (
        run(method("fedavg", lr=0.05), population, lambda: linear(1), rounds=3, engine=engine)
        for population in (lines(), lines(1e5, 3e5))
    )
    assert largest_gap(small.models["global"], large.models["global"]) < 1e-5


def test_a_saved_model_answers_in_the_users_units(tmp_path: Path) -> None:
    """A line through exact points is learnt nearly exactly: 2 a - b, times 100,000, plus 300,000, at (1, 1)."""
    run(method("fedavg", lr=0.1), lines(1e5, 3e5), lambda: linear(1), rounds=20, out=tmp_path / "run", engine=ALONE)
    ready = load_model(tmp_path / "run" / "models" / "global.safetensors", lambda: linear(1))
    assert ready(torch.ones(1, 2)).item() == pytest.approx(4e5, rel=1e-3)


def test_the_kernel_and_torch_learn_the_same_numbers() -> None:
    population = lines(50.0, -7.0)
    task = Task.of(linear(1), population, dtype=torch.float64)
    assert task.loss == "mse"
    c = cohort(population, task)
    start = {name: torch.stack([tensor] * 4) for name, tensor in task.init(0).items()}
    opt = method("fedavg", lr=0.05).opt
    by_torch = cohort(population, Task(task.model, (2,), 1, loss="mse", dtype=torch.float64, use_kernel=False,
                                       kind="regression", target_scale=task.target_scale))  # fmt: skip
    assert largest_gap(local_sgd(c, start, opt), local_sgd(by_torch, start, opt)) < 1e-12


@pytest.mark.parametrize("outputs", [1, 2])
def test_two_classes_with_one_output_or_two(outputs: int) -> None:
    result = run(method("fedavg", lr=0.2), signs(), linear(outputs), rounds=6, engine=ALONE)
    assert result.accuracy > 0.9


def test_several_labels_a_sample() -> None:
    result = run(method("fedavg", lr=0.2), labelled(), linear(3, 3), rounds=6, engine=ALONE)
    assert result.accuracy > 0.9


def test_a_loss_of_the_users_gets_the_targets_as_they_are() -> None:
    seen: list[float] = []

    def absolute(output: Tensor, target: Tensor) -> Tensor:
        seen.append(float(target.max()))
        return (output[:, 0] - target).abs().mean()

    run(method("fedavg", lr=0.01), lines(1e3), linear(1), rounds=1, loss=absolute, engine=ALONE)
    assert max(seen) > 1e3


@pytest.mark.parametrize(
    ("population", "outputs", "task", "sentence"),
    [
        (lines, 3, "auto", "3 outputs but the data have 1 numbers to predict; give it 1 output"),
        (signs, 1, "classification", "1 outputs but the data have 2 classes"),
        (lines, 1, "classification", "to be classification, but the targets are numbers; set task = regression"),
        (signs, 2, "multilabel", "to be multilabel, but the targets are two classes"),
    ],
)
def test_what_does_not_fit_is_said_before_the_first_round(
    population: Any, outputs: int, task: Any, sentence: str
) -> None:
    with pytest.raises(CoterieError, match=sentence):
        run("fedavg", population(), linear(outputs), rounds=1, task=task)


def test_what_the_setting_task_may_make_of_targets() -> None:
    assert chosen_kind("auto", "binary", 2) == "binary"
    assert chosen_kind("classification", "binary", 2) == "classification"
    assert chosen_kind("binary", "classification", 1) == "binary"
    assert chosen_kind("regression", "classification", 5) == "regression"
    assert chosen_kind("auto", "classification", 5, squares=True) == "regression"
    with pytest.raises(CoterieError, match="5 classes"):
        chosen_kind("binary", "classification", 5)


def test_a_run_of_numbers_is_judged_by_its_error() -> None:
    """Prices: after training the error is a small part of the floor's, and R² near 1; there is no accuracy."""
    result = run(method("fedavg", lr=0.1), lines(1e5, 3e5), lambda: linear(1), rounds=10, engine=ALONE)
    assert (result.task, result.metric, result.lower_is_better) == ("regression", "rmse", True)
    assert result.score is not None
    assert result.floor is not None
    assert result.score < 0.05 * result.floor
    assert set(result.metrics) == {"mae", "rmse", "r2"}
    assert result.metrics["rmse"] == pytest.approx(result.score)
    assert result.metrics["r2"] > 0.99
    assert result.worst_score == max(score for score in result.per_client_score if score is not None)
    plain = json.loads(result.to_json())
    assert (plain["accuracy"], plain["per_client_accuracy"]) == (None, [None] * 4)
    assert result.warnings == []


def test_a_metric_of_the_users_is_the_score() -> None:
    """More is better unless the metric says otherwise; here it is the share of predictions within 10 of the truth."""

    def within_ten(prediction: Tensor, target: Tensor) -> float:
        assert prediction.shape == target.shape
        return float(((prediction - target).abs() < 10).double().mean())

    result = run(method("fedavg", lr=0.1), lines(1e3), lambda: linear(1), rounds=15, metric=within_ten, engine=ALONE)
    assert (result.metric, result.lower_is_better) == ("within_ten", False)
    assert result.score is not None
    assert 0.9 < result.score <= 1.0


def test_fine_tuning_finds_back_what_averaging_loses(tmp_path: Path) -> None:
    """Two clients with y = x and two with y = -x: the average knows nothing, and every client can learn its own."""
    g = np.random.default_rng(0)
    x = {name: g.normal(size=(60, 1)).astype(np.float32) for name in "abcd"}
    y = {name: (1 if name in "ab" else -1) * part[:, 0].astype(np.float64) * 1.5 for name, part in x.items()}
    population = from_arrays({name: (x[name], y[name]) for name in x})
    settings = {"lr": 0.5, "batch": 8, "epochs": 1}
    plain = run(method("fedavg", **settings), population, lambda: linear(1, 1), rounds=3, engine=ALONE)
    assert plain.score is not None
    assert plain.finetuned_score is not None
    assert plain.finetuned_score < 0.2 * plain.score
    out = tmp_path / "run"
    tuned = run(
        method("fedavg", personalise="finetune", **settings), population, lambda: linear(1, 1), rounds=3, out=out,
        engine=ALONE,
    )  # fmt: skip
    assert tuned.score == tuned.finetuned_score == plain.finetuned_score
    ready = load_model(out / "models" / "client-c.safetensors", lambda: linear(1, 1))
    assert ready(torch.ones(1, 1)).item() < -1


def test_a_loss_that_pairs_every_output_with_every_target_is_refused() -> None:
    """(n, 1) less (n,) is (n, n), and the network would learn the mean of all targets without a word."""

    def crossed(output: Tensor, target: Tensor) -> Tensor:
        return ((output - target) ** 2).mean()

    def each(output: Tensor, target: Tensor) -> Tensor:
        return crossed(output.flatten(), target)

    with pytest.raises(CoterieError, match=r"every pair of samples; take the outputs as output\.squeeze\(1\)"):
        run(method("fedavg", lr=0.1), lines(), linear(1), rounds=1, loss=crossed, engine=ALONE)

    def ranked(output: Tensor, target: Tensor) -> Tensor:
        """Pairs samples on purpose."""
        gaps = output.reshape(-1, 1) - output.reshape(1, -1)
        return (gaps - target[:, None] + target[None]).square().mean() + 0.1 * each(output, target)

    def columns(output: Tensor, target: Tensor) -> Tensor:
        return ((output - output.T) - target[:, None] + target[None]).square().mean() + 0.1 * each(output, target)

    for right in (
        each,
        ranked,
        columns,
        lambda output, target: each(output[:, 0], target),
        lambda o, t: each(o, t.unsqueeze(1)[:, 0]),
    ):
        result = run(method("fedavg", lr=0.1), lines(), linear(1), rounds=3, loss=right, engine=ALONE)
        assert result.score is not None
        assert result.floor is not None
        assert result.score < 0.5 * result.floor


def test_a_model_that_is_right_already_is_kept() -> None:
    """The weights are exact, so that tuning cannot help: every client keeps its model, bit for bit."""
    population = rows(([1.0, 2.0, 3.0], [2, 4, 6]), ([4.0, 5.0], [8, 10]))
    task = Task(one_weight, (1,), 1, loss="mse", dtype=torch.float64, kind="regression")
    c = cohort(population, task)
    exact = {"weight": torch.full((2, 1, 1), 2.0, dtype=torch.float64)}
    wrong_one = {"weight": torch.full((1, 1, 1), 1.0, dtype=torch.float64)}
    opt = method("fedavg", lr=0.01).opt
    kept = personal_models(c, exact, opt)
    assert kept.tuned.tolist() == [False, False]
    assert torch.equal(kept.models["weight"], exact["weight"])
    assert bool(personal_models(cohort(rows(([1.0, 1.0, 1.0], [2, 2, 2])), task), wrong_one, opt).tuned.all())


def test_few_samples_change_nothing_by_chance() -> None:
    """One weight w = 0 with the loss (w x - y)^2, a step of 0.1 from w = 0 on both other samples of three.

    Targets 2, 2, 2 at x = 1: w = 0.1 * 2 * 2 = 0.4 for each third, the gain 2^2 - 1.6^2 = 1.44 each time: sure.
    Targets 2, 2, -2: held-out 2: w = 0.1 * 2 * 0 = 0, no gain; held-out -2: w = 0.4, the gain 2^2 - 2.4^2 < 0: kept.
    """
    task = Task(one_weight, (1,), 1, loss="mse", dtype=torch.float64, kind="regression")
    opt = replace(method("fedavg", lr=0.1, momentum=0.0, batch=0).opt, epochs=1)
    c = cohort(rows(([1.0] * 3, [2, 2, 2]), ([1.0] * 3, [2, 2, -2]), ([1.0], [2])), task)
    found = personal_models(c, {"weight": torch.zeros(3, 1, 1, dtype=torch.float64)}, opt)
    assert found.tuned.tolist() == [True, False, False]  # of one sample nothing can be held out
    assert found.models["weight"].flatten().tolist() == pytest.approx([0.4, 0.0, 0.0])


def test_the_better_of_the_two_by_the_validation_part() -> None:
    """As above, tuned to w = 0.4. Validation targets 3, -2: the losses 9 + 4 fall to 2.6^2 + 2.4^2 = 12.52: taken,

    although the gains 2.24 and -1.76 are no two standard errors above 0. Targets 2, -2: 8 rises to 8.32: kept.
    """
    task = Task(one_weight, (1,), 1, loss="mse", dtype=torch.float64, kind="regression")
    opt = replace(method("fedavg", lr=0.1, momentum=0.0, batch=0).opt, epochs=1)
    c = cohort(rows(*[([1.0] * 3, [2, 2, 2])] * 2), task)
    asked = cohort(rows(([1.0] * 2, [3, -2]), ([1.0] * 2, [2, -2])), task)
    parts = zip(c.data, asked.data, strict=True)
    c = replace(c, data=tuple(ClientData(own.train, own.test, other.train) for own, other in parts))
    found = personal_models(c, {"weight": torch.zeros(2, 1, 1, dtype=torch.float64)}, opt)
    assert found.tuned.tolist() == [True, False]
    assert found.models["weight"].flatten().tolist() == pytest.approx([0.4, 0.0])


def test_a_method_that_needs_classes_says_so_before_the_run() -> None:
    for name in ("md-icfl",):
        with pytest.raises(CoterieError, match=f"{name} needs classes, and multilabel has none; take a method that"):
            run(name, labelled(), linear(3, 3), rounds=1, engine=ALONE)


@pytest.mark.parametrize("name", ["ifca", "cfl", "fedsem", "gossip", "pens", "panm"])
def test_methods_without_classes_learn_numbers(name: str) -> None:
    settings = {"k": 2} if name in ("ifca", "fedsem", "gossip") else {}
    result = run(method(name, lr=0.1, **settings), lines(1e5), lambda: linear(1), rounds=4, engine=ALONE)
    assert result.score is not None
    assert result.floor is not None
    assert result.score < result.floor
    assert result.finetuned_score is not None


class Bag(nn.Module):
    """The mean of the tokens' embeddings, and a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embedding(x).mean(1))  # type: ignore[no-any-return]


def test_token_ids_reach_the_embedding_wherever_models_are_judged() -> None:
    """Training, evaluation, fine-tuning and its choice sample by sample, and auto, which looks at probabilities."""
    g = np.random.default_rng(1)
    x = {name: g.integers(0, 20, (30, 6)) for name in "abc"}
    tokens = from_arrays({n: (part, (part[:, 0] > 9).astype(np.int64)) for n, part in x.items()}, layout="tokens")
    for name in ("fedavg", "auto"):
        result = run(method(name, lr=0.1, epochs=1), tokens, Bag, rounds=2, engine=ALONE)
        assert result.finetuned_score is not None


def test_a_metric_of_ones_own_says_which_way_it_is_taken() -> None:
    """A function alone does not say whether less of it is better, so the run does."""
    said: list[str] = []

    def largest_error(prediction: Tensor, target: Tensor) -> float:
        return float((prediction - target).abs().max())

    for metric, times in ((largest_error, 1), (Metric("largest", largest_error, lower_is_better=True), 1)):
        run(
            method("fedavg", lr=0.1),
            lines(),
            linear(1),
            rounds=1,
            metric=metric,
            view=NotesOnly(said.append),
            engine=ALONE,
        )
        assert sum("more is taken as better" in text for text in said) == times

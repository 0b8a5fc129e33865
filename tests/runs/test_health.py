"""What is said about a run that does not learn."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import coterie
from coterie.core.errors import NothingLearnt
from coterie.core.federation import Failure, Tally
from coterie.core.measures import Measure
from coterie.core.states import flat, stack
from coterie.core.task import Task
from coterie.data.describe import mean_floor
from coterie.runs.evaluation import Evaluation
from coterie.runs.health import Health
from coterie.runs.standing import Standing
from coterie.simulation.simulator import EngineOptions
from tests.tiny import Rows, rows


def judgement(accuracy: float, *losses: float) -> Evaluation:
    ids = tuple(f"c{i}" for i in range(len(losses)))
    return Evaluation(ids, [accuracy] * len(losses), list(losses), None, None, None, None, None)


def said(health: Health, *judgements: Evaluation, guess: float | None = math.log(4), floor: float = 0.4) -> list[str]:
    texts = []
    for number, each in enumerate(judgements):
        texts += health.evaluated(number, len(judgements), each, 0.1, guess, floor)
    return texts


def test_replies_are_said_when_more_than_half_is_lost() -> None:
    """2 of 4 is not more than half, 3 of 4 is; the kind that most are of is named; the same kind is said once."""
    health = Health()
    bad, late = Failure("not finite", "w has NaN"), Failure("late", "too slow")
    assert health.replies(0, Tally(4, 2, [bad, bad])) == []
    (text,) = health.replies(1, Tally(4, 1, [late, bad, bad]))
    assert text.startswith(
        "round 2: 3 of 4 replies do not count, most of them not finite (w has NaN); try a smaller lr"
    )
    assert health.replies(2, Tally(4, 0, [bad] * 4)) == []
    (text,) = health.replies(3, Tally(4, 0, [late] * 4))
    assert "late (too slow); give clients more time" in text
    assert (health.asked, health.valid) == (16, 3)
    health.check_end("fedavg", 4)


def test_nobody_asked_is_not_nothing_learnt() -> None:
    Health().check_end("fedavg", 3)
    with pytest.raises(NothingLearnt, match="no reply counted in any of the 3 rounds"):
        Health(asked=2).check_end("fedavg", 3)


def watched(health: Health, *rounds: Sequence[float], guess: float | None = math.log(4)) -> list[str]:
    """What is said of the training losses of some rounds."""
    return [text for number, losses in enumerate(rounds) for text in health.trained(number, losses, 0.1, guess)]


def test_a_training_loss_that_rises_above_guessing_is_said_once() -> None:
    """ln 4 = 1.386 is guessing. 0.7 -> 1.3 is below it; 1.5 is above it and more than twice 0.7; medians, not means."""
    assert watched(Health(), [0.7], [1.3], [1.0, 1.2, 90.0]) == []
    (text,) = watched(Health(), [0.7], [1.5], [9.0])
    assert text == (
        "round 2: the clients' training loss has risen from 0.7 to 1.5, where guessing gives 1.39: training diverges; "
        "try a smaller lr (now 0.1), or bring the inputs to values of about -1 to 1"
    )
    (text,) = watched(Health(), [2.9], [2.8])
    assert "is still 2.8, where guessing gives 1.39" in text, "2.8 > 2 * 1.386 in the second round"
    assert watched(Health(), [900.0], [400.0], [1.0]) == [], "the first round began with an untrained model; it falls"
    assert watched(Health(), [2.0], [2.0]) == []
    assert watched(Health(), [], [1.0], []) == [], "in a round without training nothing is known"


def test_a_rise_in_one_round_of_a_few_of_many_clients_may_be_of_who_came() -> None:
    """Three of sixteen clients: a second round in succession must have it; of eight clients one round is enough."""

    def told(*rounds: Sequence[float], clients: int) -> list[str]:
        health = Health()
        every = [health.trained(n, losses, 0.1, math.log(4), clients=clients) for n, losses in enumerate(rounds)]
        return [text for texts in every for text in texts]

    low, high = [0.7] * 3, [1.5] * 3
    assert told(low, high, low, high, low, clients=16) == []
    (text,) = told(low, high, low, high, high, clients=16)
    assert text.startswith("round 5: the clients' training loss has risen")
    assert len(told(low, high, clients=6)) == 1, "half of them"
    assert len(told([0.7] * 8, [1.5] * 8, clients=99)) == 1


def test_a_loss_without_a_scale_diverges_when_it_is_more_than_at_first() -> None:
    """4.5 is more than 4 times 1 and more than the first; 0.5 is 50 times 0.01, but less than at first."""
    (text,) = watched(Health(), [1.0], [4.5], guess=None)
    assert "has risen from 1 to 4.5: training diverges" in text
    assert watched(Health(), [1.0], [0.01], [0.5], guess=None) == []
    assert watched(Health(), [-1.0], [-3.0], [-2.0], guess=None) == [], "a likelihood may be negative"


def test_a_client_that_says_nonsense_hides_nothing() -> None:
    """One client says NaN, then huge numbers, in every round; when most clients diverge it is said all the same."""
    health = Health()
    (text,) = watched(health, [1.0, 1.0, math.nan], [0.9, 0.9, 1e308], [0.8, 0.8, -1e308], [0.8, 0.8, math.inf])
    assert text.startswith("round 1: the training loss of 1 of 3 clients is NaN or infinite")
    assert health.lowest == 0.8
    (text,) = watched(health, [math.nan, math.inf, 0.8])
    assert "the training loss of 2 of 3 clients is NaN or infinite" in text
    (text,) = watched(health, [8.0, 8.0, math.nan])
    assert "has risen from 0.8 to 8" in text


def test_the_test_loss_counts_only_where_no_training_loss_is_told() -> None:
    rising = [judgement(0.9, 0.7), judgement(0.9, 1.5)]
    (text,) = said(Health(), *rising)
    assert "the clients' test loss has risen from 0.7 to 1.5" in text
    assert said(Health(watches_training=True), *rising) == []


def test_no_better_than_a_constant_answer() -> None:
    """Only from the middle of the run on; equal to the share counts too, for a broken model answers one class."""
    low, high = judgement(0.4, 0.5), judgement(0.41, 0.5)
    (text,) = said(Health(), low, low, low)
    assert text.startswith("round 2: the mean accuracy, 40.0 %, is not better than where every client always")
    assert said(Health(), low, high, high) == []
    assert said(Health(), low, floor=1.0) == [], "where all samples are of one class nothing better can be had"


def test_no_better_than_the_mean() -> None:
    """Of an error less is better: 3 is not better than 3, and 2.9 is."""

    def error(value: float) -> Evaluation:
        standing = Standing("regression", Measure("rmse", lower_is_better=True), [None], [value])
        return Evaluation(("a",), [None], [0.5], None, None, None, None, None, standing)

    (text,) = said(Health(), error(3.0), guess=1.0, floor=3.0)
    assert "the mean RMSE, 3, is not better than where every client always answers the mean of its own targets" in text
    assert said(Health(), error(2.9), guess=1.0, floor=3.0) == []


def test_the_floor_by_hand() -> None:
    """a has labels 0 0 1: answering 0 is right for 2/3. b has 1 alone: answering 1 is always right."""
    population = rows(([0.0, 1.0, 2.0], [0, 0, 1]), ([3.0], [1]))
    task = Task(net, (1,), 2)
    assert mean_floor(population, task, population.ids) == pytest.approx((2 / 3 + 1) / 2)


def test_the_floor_of_numbers_by_hand() -> None:
    """a has 0 0 3, whose mean 1 is off by 1, 1 and 2: the root of 6/3. b has 5 alone, which is its own mean."""
    population = rows(([0.0, 1.0, 2.0], [0, 0, 3]), ([3.0], [5]))
    task = Task(net, (1,), 1, loss="mse", kind="regression")
    assert mean_floor(population, task, population.ids) == pytest.approx(2**0.5 / 2)


def features(scale: float) -> coterie.Population:
    g = np.random.default_rng(0)
    clients = {}
    for client in range(4):
        y = np.arange(60) % 3
        x = g.normal(size=(60, 5)) + 2 * np.eye(5)[y]
        clients[f"c{client}"] = ((scale * x).astype(np.float32), y)
    return coterie.from_arrays(clients, normalise="none")


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 3))


def test_own_data_learn_with_the_default_rate_and_without_a_warning() -> None:
    """With 0.1, the default of old, inputs of about 20 end in a loss of thousands."""
    result = coterie.run(coterie.method("fedavg"), features(10.0), net, rounds=10)
    assert result.accuracy > 0.75
    assert result.warnings == []


@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize("name", ["fedavg", "gossip"])
def test_a_run_that_diverges_is_said_live_and_in_the_report(tmp_path: Path, name: str, kernel: bool) -> None:
    """By its training loss: the only evaluation is after the last round, and the warning comes long before it."""
    seen = Rows()
    result = coterie.run(
        coterie.method(name, lr=0.3),
        features(30.0),
        net,
        rounds=6,
        out=tmp_path / "run",
        view=seen,
        evaluate_every=100,
        engine=EngineOptions(kernel=kernel),
    )
    first = next(text for text in result.warnings if "training loss" in text)
    assert re.match(r"round [1-4]: ", first), "not at the end"
    assert "try a smaller lr (now 0.3)" in first
    assert f"warning: {first}" in seen.notes
    stored = json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))
    assert stored["warnings"] == result.warnings
    report = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "try a smaller lr (now 0.3)" in report


def test_a_run_that_overfits_does_not_diverge() -> None:
    """Labels drawn at random: the training loss falls to nothing while the test loss rises far above guessing."""
    g = np.random.default_rng(0)
    clients = {f"c{i}": (g.normal(size=(40, 5)).astype(np.float32), g.integers(0, 3, 40)) for i in range(4)}

    def wide() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 3))

    seen = Rows()
    result = coterie.run(
        coterie.method("local", lr=0.1, epochs=60), coterie.from_arrays(clients), wide, rounds=8, view=seen
    )
    losses = [row["loss"] for row in seen.rows]
    assert losses[-1] > 2 * math.log(3), "it does overfit"
    assert losses[-1] > 1.5 * losses[0]
    assert not [text for text in result.warnings if "diverges" in text or "NaN" in text]


def test_large_inputs_are_no_reason_to_refuse_a_healthy_model() -> None:
    """A linear model learns from inputs of any size, and its weights are in proportion to them: here far above 1000."""

    def linear() -> nn.Module:
        return nn.Linear(5, 3)

    result = coterie.run(coterie.method("fedavg", lr=0.01), features(1e5), linear, rounds=5)
    start = float(flat(stack([Task.of(linear, features(1.0)).init(0)])).norm())
    assert float(flat(stack([result.models["global"]])).norm()) > 1e3 * (1 + start)
    assert result.failures == 0
    assert result.accuracy > 0.75

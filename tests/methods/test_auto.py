"""auto: what its looks propose, what its clients judge, what they end with, and whole runs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from coterie import Result, run
from coterie.core.optimiser import Optimiser
from coterie.core.samples import ClientData, Normalise, Samples
from coterie.core.states import spread, stack
from coterie.core.task import Task
from coterie.data import build
from coterie.data.drift import Drift
from coterie.data.own import OwnPopulation
from coterie.methods import METHODS
from coterie.methods.auto import personal
from coterie.methods.auto.judgement import believed, losses_under_prior, parts_that_pay, verdict
from coterie.methods.auto.looks import blocks, halves, pulls, sketches
from coterie.methods.auto.messages import SplitQuestion
from coterie.methods.auto.visits import FIRST_VISITS
from coterie.simulation.simulator import EngineOptions

from ..tiny import cohort, one_weight, rows, small_net

_ONE = EngineOptions(workers=1)


def test_losses_are_taken_under_the_clients_own_label_prior() -> None:
    """A network whose logits are all zero says 1/2 for each of two classes, as its makers have them.

    The client has ten samples of class 1. Its shares begin at the makers' (1/2, 1/2) as if of ten more samples:
    (10 * 1/2) / 20 = 1/4 and (10 + 5) / 20 = 3/4. The shift is log(p + .01) - log(.51), so class 1 has the probability
    .76 / (.26 + .76) = .745, and the loss is -log(.745) instead of log 2.
    """
    layer = nn.Linear(1, 2, bias=False)
    nn.init.zeros_(layer.weight)
    task = Task(layer, (1,), 2, use_kernel=False)
    samples = Samples(torch.ones(10, 1), torch.ones(10, dtype=torch.int64))
    models = stack([task.init(0)])
    loss = losses_under_prior(task, models, torch.full((1, 2), 0.5), samples, samples)
    assert float(loss) == pytest.approx(-math.log(0.76 / 1.02))


def test_without_classes_losses_are_as_they_are() -> None:
    """Output 0 for the target 2: a squared error of 4, whatever the shares."""
    task = Task(one_weight(0.0), (1,), 1, loss="mse", kind="regression")
    samples = Samples(torch.ones(3, 1), torch.full((3,), 2.0))
    loss = losses_under_prior(task, stack([task.init(0)]), torch.zeros(1, 0), samples, samples)
    assert float(loss) == pytest.approx(4.0)


def question(gains: list[float], parts: list[int]) -> SplitQuestion:
    names = [f"c{number}" for number in range(len(gains))]
    return SplitQuestion(
        0, dict(zip(names, parts, strict=True)), dict(zip(names, gains, strict=True)), dict.fromkeys(names, 1.0), 9.0, 0
    )


def test_a_group_is_split_only_if_its_members_gain() -> None:
    """Gains of .1, .2, .3, .2: mean .2, deviation .0816, error .0408, so t = 4.9: it pays.

    With -.3 instead of the last: mean .075, deviation .263, t = .57: it does not. Three answers are too few to say.
    """
    t, pays = verdict(question([0.1, 0.2, 0.3, 0.2], [0, 0, 1, 1]), 4)
    assert t == pytest.approx(4.899, abs=1e-3)
    assert pays is True
    t, pays = verdict(question([0.1, 0.2, 0.3, -0.3], [0, 0, 1, 1]), 4)
    assert t == pytest.approx(0.570, abs=1e-3)
    assert pays is False
    assert verdict(question([0.1, 0.2, 0.3], [0, 0, 1]), 4) == (0.0, None)
    assert verdict(question([0.1, 0.2, 0.3, 0.2], [0, 0, 1, 1]), 40)[1] is None


def test_parts_that_gain_nothing_stay_together() -> None:
    parts = parts_that_pay(question([0.1, 0.2, -0.1, -0.2, 0.3, -0.1], [0, 0, 1, 1, 2, 3]))
    assert parts == {"c0": 1, "c1": 1, "c2": 0, "c3": 0, "c4": 2, "c5": 0}


def test_thin_evidence_is_shrunk_to_what_all_clients_show() -> None:
    """Fine-tuning halves the loss of all but one client, whose two halves say opposite things: it fine-tunes too.

    Where it doubles the loss of all, none does; a client that has shown nothing does what most do.
    """
    sure = torch.tensor([[1.0, 0.5, 0.6, 2.0], [1.0, 0.5, 0.6, 2.0]]).double()
    unclear = torch.tensor([[1.0, 0.2, 0.6, 2.0], [1.0, 1.1, 1.2, 2.0]]).double()
    known = {f"c{number}": sure + 0.01 * number for number in range(8)} | {"x": unclear}
    assert personal.chosen(known, ["c0", "x", "unknown"]) == [1, 1, 1]
    worse = {name: losses[:, [1, 0, 0, 3]] for name, losses in known.items() if name != "x"}
    assert personal.chosen(worse, ["c0", "unknown"]) == [0, 0]
    assert personal.chosen({}, ["c0"]) == [0]
    alone = {name: losses[:, [3, 0, 0, 1]] for name, losses in known.items() if name != "x"}
    assert personal.chosen(alone, ["c0", "unknown"]) == [3, 1], "who has not tried has no model of its own"
    assert personal.chosen(known, ["c0", "c1"], lacking={"c1"}) == [1, 0]


def test_clients_of_one_kind_each_end_with_their_own_models() -> None:
    """Every client maps the same inputs to labels by a rule of its own; a validation part shows that alone is best."""
    generator = torch.Generator().manual_seed(0)
    clients = {}
    for number in range(4):
        x = torch.randn(120, 4, generator=generator)
        y = (x @ torch.randn(4, 3, generator=generator)).argmax(1)
        parts = [Samples(x[some], y[some]) for some in (slice(0, 60), slice(60, 90), slice(90, 120))]
        clients[f"c{number}"] = ClientData(*parts)
    population = OwnPopulation(clients, (4,), 3, Normalise(), {})
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    auto, local = (
        run(METHODS[name](lr=0.05), population, net, rounds=8, seed=0, engine=_ONE, evaluate_every=8)
        for name in ("auto", "local")
    )
    assert auto.accuracy > local.accuracy - 0.02


def test_halves_are_disjoint_whole_and_the_same_in_every_round(digits: OwnPopulation) -> None:
    task = Task(small_net, digits.shape, digits.classes, digits.normalise)
    for number in range(2):
        one, other = halves(cohort(digits, task, round=number))
        for client, first, second in zip(digits.ids, one.data, other.data, strict=True):
            whole = digits.client(client).train
            assert abs(len(first.train) - len(second.train)) <= 1
            both = torch.cat([first.train.x, second.train.x]).flatten(1).double()
            assert both.sum(0).tolist() == whole.x.flatten(1).double().sum(0).tolist()
        if number == 0:
            before = one.data[0].train.x
    assert torch.equal(before, one.data[0].train.x)


def test_sketches_keep_cosines() -> None:
    """Of updates u, u and -u the cosines are 1 and -1 after any projection; blocks that a network lacks are zero."""
    task = Task(small_net, (1, 8, 8), 10)
    assert [len(names) for names in blocks(task)] == [1, 1]
    origin = task.init(0)
    update = {name: torch.randn(tensor.shape) for name, tensor in origin.items()}
    trained = {name: torch.stack([t + s * update[name] for s in (1, 2, -1)]) for name, t in origin.items()}
    found = sketches(task, trained, spread(origin, 3), seed=1)
    assert found.shape[:2] == (3, 2)
    for block in (0, 1):
        assert torch.allclose(found[1, block], 2 * found[0, block], atol=1e-4)
        assert torch.allclose(found[2, block], -found[0, block], atol=1e-4)


def test_pulls_do_not_depend_on_label_shares_nor_on_the_round(digits: OwnPopulation) -> None:
    """A client that has lost all samples of one class pulls with those of another as before.

    The halves are drawn anew then, so what is compared is the sum over both, samples times their mean pull.
    """
    task = Task(small_net, digits.shape, digits.classes, digits.normalise)
    whole = cohort(digits, task)
    labels = whole.data[0].train.y
    gone = int(labels.mode().values)
    kept = [ClientData(d.train.take(torch.nonzero(d.train.y != gone)[:, 0]), d.test) for d in whole.data]
    sums = []
    for c in (whole, replace(whole, round=7, data=tuple(kept))):
        sketch, scale, counts = pulls(c, Optimiser())
        sums.append((sketch.float() * scale[:, None, None, :, None] * counts[..., None, None])[0].sum(0))
    assert not sums[1][gone].any()
    for kind in set(labels.tolist()) - {gone}:
        assert torch.allclose(sums[0][kind], sums[1][kind], atol=0.01 * float(sums[0][kind].abs().max()))


def on_digits(rounds: int = 8, method: str = "auto", **how: Any) -> Result:
    """A short run on rotated digits; named scenarios bring their learning rate."""
    population = build("rotated-digits", seed=3, **{"clients": 24, "test_samples": 20, **how})

    def net() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    return run(METHODS[method](batch=16), population, net, rounds=rounds, seed=3, engine=_ONE, evaluate_every=rounds)


def test_groups_are_found_and_cost_little() -> None:
    """Two models a visit is FedAvg's price; a run of default length may cost a tenth more."""
    result = on_digits(20, groups=2)
    assert (result.n_clusters, result.ari) == (2, 1.0)
    model = 4 * (64 * 32 + 32 + 32 * 10 + 10)
    assert result.bytes_down + result.bytes_up < 1.1 * 2 * 20 * 24 * (model + 500)
    texts = [event.text for event in result.state.events]
    assert any("groups of 12, 12" in text for text in texts)


@pytest.mark.parametrize("alpha", [None, 0.5])
def test_one_group_stays_one(alpha: float | None) -> None:
    result = on_digits(10, groups=1, alpha=alpha)
    assert result.n_clusters == 1


@pytest.mark.parametrize(("groups", "twin"), [(1, "fedavg"), (2, "oracle")])
def test_it_trains_as_its_twin_does(groups: int, twin: str) -> None:
    """With one group it is FedAvg, with clear groups that are found in the first round Oracle."""
    auto, other = (on_digits(3, method, groups=groups, clients=12) for method in ("auto", twin))
    assert len(auto.models) == len(other.models) == groups
    for state in other.models.values():
        gaps = [max(float((t - state[name]).abs().max()) for name, t in own.items()) for own in auto.models.values()]
        assert min(gaps) < 1e-5


def test_clients_move_after_a_drift() -> None:
    result = on_digits(16, groups=2, drift=Drift(round=9, fraction=0.25))
    assert result.ari == 1.0
    assert sum("moves from group" in event.text for event in result.state.events) >= 3


def regression(groups: int) -> OwnPopulation:
    """Clients whose targets are +2 x or -2 x, by their group, with noise."""
    clients, truth = {}, {}
    for number in range(12):
        generator = torch.Generator().manual_seed(number)
        x = torch.randn(40, 3, generator=generator)
        slope = 2.0 if number % groups == 0 else -2.0
        y = slope * x.sum(1) + 0.1 * torch.randn(40, generator=generator)
        samples = Samples(x, y)
        clients[f"c{number}"] = ClientData(samples, samples)
        truth[f"c{number}"] = number % groups
    return OwnPopulation(clients, (3,), 1, Normalise(), truth, kind="regression")


@pytest.mark.parametrize("groups", [1, 2])
def test_regression_has_groups_too(groups: int) -> None:
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    result = run(METHODS["auto"](lr=0.02), regression(groups), net, rounds=10, seed=0, engine=_ONE)
    assert result.n_clusters == groups
    assert result.ari == 1.0


def test_two_clients_need_no_groups() -> None:
    population = rows(([1.0, 2.0, 3.0], [1, 1, 0]), ([1.0, 2.0], [1, 0]))
    net = nn.Linear(1, 10)
    result = run(METHODS["auto"](), population, net, rounds=FIRST_VISITS + 1, seed=0, engine=_ONE)
    assert result.n_clusters == 1


def test_one_false_number_does_not_decide_for_all() -> None:
    """Thirty members gain 0.1 by a split, more or less; one says 10^9, or -10^9: the decision is that of the others."""
    gains = {f"c{i:02}": 0.1 + 0.01 * (i % 5) for i in range(30)}
    before = dict.fromkeys(gains, 1.0) | {"c00": 1.01}
    honest = SplitQuestion(0, dict.fromkeys(gains, 0), gains, before, 3.0, 0)
    assert verdict(honest, 30, True)[1] is True
    for lie in (1e9, -1e9):
        liar = replace(honest, gain={**gains, "c07": lie}, before={**before, "c07": abs(lie)})
        assert verdict(liar, 30, True)[0] < 1.5, "without the border it would decide"
        assert verdict(believed(liar), 30, True)[1] is True
    assert believed(honest) == honest

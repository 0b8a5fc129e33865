"""The weight of FedCG's residuals: judged by clients' losses before they train, held once less of it does better."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from coterie import Result, run
from coterie.core import wire
from coterie.core.cohort import Cohort
from coterie.core.errors import Interrupted
from coterie.core.evaluation import score
from coterie.core.federation import Replies
from coterie.core.jobs import changed_task
from coterie.core.samples import ClientData
from coterie.core.states import stack
from coterie.core.task import Task
from coterie.data import build
from coterie.data.own import OwnPopulation
from coterie.data.population import LazyPopulation
from coterie.methods.fedcg import FedCG
from coterie.methods.fedcg.messages import TIMES, Domains, Sent, Weight
from coterie.methods.fedcg.weight import FEWEST, NEWEST, better, settled, weighing
from coterie.models import build_model
from coterie.simulation.simulator import EngineOptions

from ..tiny import StopAt, cohort, fingerprint, small_net

ALONE = EngineOptions(workers=1)
QUICK: dict[str, Any] = {"epochs": 5, "batch": 10, "finetune_epochs": 0}


def ran(population: LazyPopulation, rounds: int, **settings: Any) -> Result:
    model = partial(build_model, "digits-mlp", tuple(population.shape), population.classes)
    more: dict[str, Any] = {key: settings.pop(key) for key in ("out", "view", "resume") if key in settings}
    how: dict[str, Any] = {"rounds": rounds, "evaluate_every": rounds, "seed": 700, "engine": ALONE, **more}
    return run(FedCG(**{**QUICK, **settings}), population, model, **how)


def losses(gains: list[float], of: int = 2) -> Tensor:
    """Visits whose loss is 1, and less by these gains with one of the smaller weights; 2 with the others."""
    heard = torch.full((len(gains), len(TIMES)), 2.0, dtype=torch.float64)
    heard[:, -1] = 1.0
    heard[:, of] = 1 - torch.tensor(gains, dtype=torch.float64)
    return heard


def test_less_weight_is_taken_if_most_visits_gain_by_it() -> None:
    """Gains of 0.1 and 0.3 in turn: the mean is 0.2, the deviation 0.107, and t = 0.2 / (0.107 / sqrt(8)) = 5.3."""
    for place, times in enumerate(TIMES[:-1]):
        assert better(losses([0.1, 0.3] * 4, place)) == times
    assert better(losses([0.1, 0.3] * 4)[: FEWEST - 1]) == 1.0, "too few have come"
    assert better(losses([0.3, -0.2] * 4)) == 1.0, "the mean is 0.05, the deviation 0.267: t = 0.53"
    assert better(losses([-0.1, -0.3] * 4)) == 1.0


def test_of_two_smaller_weights_the_one_with_the_larger_gain_is_taken() -> None:
    both = losses([0.1, 0.3] * 4, 1)
    both[:, 2] = 1 - torch.tensor([0.2, 0.4] * 4)
    assert better(both) == TIMES[2]


def test_one_liar_does_not_decide() -> None:
    """Alone it would: the mean gain is 0.2 without it and -250 with it. It is taken for 0.2 - 10 * 1.48 * 0.05."""
    assert better(torch.cat([losses([0.15, 0.2, 0.25] * 13), losses([-1e4])])) == TIMES[2]


def test_clients_judge_before_they_train_on_what_they_do_not_train_on(digits: OwnPopulation) -> None:
    method = FedCG(epochs=1, batch=4, lr=0.05, domains=3)
    with_part, without = (judged_by(method, digits if valid else bare(digits)) for valid in (True, False))
    for found, part in ((with_part, "valid"), (without, "train")):
        c, sent, kept = found
        for index, client in enumerate(c.data):
            samples = getattr(client, part)
            domains = torch.full((len(samples),), int(sent.domain[index]))
            models = stack([weighing(sent.model, ["network.3.scale"], times) for times in TIMES])
            assert torch.equal(kept[index], score(c.task, models, replace(samples, extra=domains)).loss)
    assert not torch.equal(with_part[2], without[2])


def judged_by(method: FedCG, population: OwnPopulation) -> tuple[Cohort, Sent, Tensor]:
    """Clients of domain 1 after a training that began with random residuals, what they got and what they kept."""
    task = changed_task(method, Task.of(small_net, population))
    model = dict(task.init(3))
    model["network.3.residual"] = torch.randn(model["network.3.residual"].shape, generator=torch.manual_seed(0))
    c = cohort(population, task, population.ids[:3])
    sent = Sent(model, {}, {}, True, torch.ones(3, dtype=torch.int64))
    method.train(c, sent)
    kept = c.kept["losses by weight"]
    assert isinstance(kept, Tensor)
    return c, sent, kept


def bare(population: OwnPopulation) -> OwnPopulation:
    """The same clients without a part that is kept for judging."""
    clients = {client: ClientData(data.train, data.test) for client, data in population.clients.items()}
    return replace(population, clients=clients)


def test_with_two_clients_a_round_the_weight_is_held_and_never_grows_again(tmp_path: Path) -> None:
    population = build("rotated-digits", seed=700, clients=40)
    judged, learnt = ran(population, 40, fraction=2), ran(population, 40, fraction=2, weight="learnt")
    assert judged.state.weight.held
    weights, grown = judged.state.history["lambda"], learnt.state.history["lambda"]
    turn = next(number for number, pair in enumerate(zip(weights, grown, strict=True)) if pair[0] != pair[1])
    assert round(weights[turn] / grown[turn], 6) in TIMES[:-1], "until then nothing is another"
    assert weights[turn:] == sorted(weights[turn:], reverse=True)
    with pytest.raises(Interrupted):
        ran(population, 40, fraction=2, out=tmp_path, view=StopAt(turn + 2))
    again = ran(population, 40, fraction=2, out=tmp_path, resume=True)
    assert fingerprint(again) == fingerprint(judged), "the checkpoint has what was heard, and that the weight is held"


def test_where_all_take_part_nothing_changes_but_some_bytes() -> None:
    """Four losses a visit, 32 bytes, in a message of their own each way."""
    population = build("rotated-digits", seed=700, clients=40)
    judged, learnt = ran(population, 4), ran(population, 4, weight="learnt")
    assert not judged.state.weight.held
    assert wire.encode(judged.state.model) == wire.encode(learnt.state.model)
    assert len(judged.state.weight.heard) == NEWEST
    assert not len(learnt.state.weight.heard)
    more = (judged.bytes_down + judged.bytes_up) - (learnt.bytes_down + learnt.bytes_up)
    assert 32 * 4 * 40 < more < 1000 * 4 * 40


class Deaf:
    """A federation whose clients refuse to tell losses."""

    round = 3

    def __init__(self, task: Task) -> None:
        self.task = task

    def ask(self, *_: Any, **__: Any) -> Replies[Any]:
        """Nobody answers."""
        return Replies((), None)


def test_clients_that_refuse_to_tell_losses_are_trained_all_the_same(digits: OwnPopulation) -> None:
    method = FedCG(domains=3)
    task = changed_task(method, Task.of(small_net, digits))
    state, model = method.blank(task.init(0)), dict(task.init(1))
    model["network.3.scale"] = torch.tensor(2.5)
    fed: Any = Deaf(task)
    after, told = settled(method, state, fed, ["c0"], model, torch.tensor([3.0, 0, 0]))
    assert all(after[name] is tensor for name, tensor in model.items())
    assert not told.held
    assert not len(told.heard)


def test_once_held_the_weight_stays_and_absent_domains_hold_what_all_share(digits: OwnPopulation) -> None:
    """Domains 0 and 2 had 30 and 50 samples; now 0 and 1 have 10 each: 50 of 100 are absent, and half is taken over."""
    method = FedCG(domains=3)
    task = changed_task(method, Task.of(small_net, digits))
    model = {name: torch.full_like(tensor, 3.0) for name, tensor in task.init(0).items()}
    before = {name: torch.ones_like(tensor) for name, tensor in model.items()}
    heard = Weight.unheard().heard
    state = replace(method.blank(before), weight=Weight(heard, torch.tensor([30.0, 0, 50], dtype=torch.float64), True))
    fed: Any = Deaf(task)
    after, told = settled(method, state, fed, ["c0"], model, torch.tensor([10.0, 10, 0], dtype=torch.float64))
    expected = {"network.3.scale": 1.0, "network.3.residual": 3.0}
    for name, tensor in after.items():
        assert torch.equal(tensor, torch.full_like(tensor, expected.get(name, 2.0))), name
    assert told.seen.tolist() == [40.0, 10.0, 50.0]
    whole, _ = settled(method, state, fed, ["c0"], model, torch.tensor([1.0, 1, 1], dtype=torch.float64))
    assert torch.equal(whole["network.1.weight"], model["network.1.weight"]), "nobody is absent"


def test_a_state_of_before_is_read() -> None:
    state = FedCG(domains=3).blank({"a": torch.ones(2)})
    skeleton, tensors = wire.pack(state)
    del skeleton["weight"]
    read = wire.unpack(Domains, skeleton, tensors)
    assert read.weight.heard.shape == (0, len(TIMES))
    assert not read.weight.held


def test_the_papers_preset_does_not_judge() -> None:
    assert FedCG.preset("paper").weight == "learnt"
    assert FedCG().weight == "judged"

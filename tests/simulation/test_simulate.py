"""The simulator's door: who is asked, what each client sees and keeps, who is there in which round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from coterie import run
from coterie.core.cohort import Cohort
from coterie.core.errors import CoterieError
from coterie.core.federation import Nothing, on_client
from coterie.core.task import Task
from coterie.data import Drift, build
from coterie.data.own import OwnPopulation
from coterie.methods.fedavg import FedAvg
from coterie.simulation.faults import Faults
from coterie.simulation.simulator import EngineOptions, Simulator
from tests.tiny import made, rows, small_net


@dataclass(frozen=True)
class Number:
    number: Tensor


@dataclass(frozen=True)
class Seen:
    number: Tensor
    size: Tensor


@dataclass(frozen=True)
class Asking(FedAvg):
    """Client functions that show what reaches them."""

    @on_client("models")
    def echo(self, c: Cohort, sent: Number) -> Seen:
        return Seen(sent.number.expand(len(c)).double() if sent.number.dim() == 0 else sent.number.double(), c.size)

    @on_client("models")
    def count(self, c: Cohort, sent: Nothing) -> Number:
        times = c.recall_tensor("times", torch.zeros(len(c))) + 1
        c.keep("times", times)
        return Number(times)

    def not_for_clients(self, c: Cohort, sent: Nothing) -> Number:
        return Number(c.size)


def simulator(population: OwnPopulation, faults: Faults | None = None, lanes: int = 2) -> Simulator:
    task = Task(small_net, population.shape, population.classes, population.normalise)
    return Simulator(Asking(), task, population, seed=3, faults=faults, options=EngineOptions(workers=1, lanes=lanes))


def test_the_same_for_everyone_or_a_row_each(digits: OwnPopulation) -> None:
    fed, method, ids = simulator(digits), Asking(), ["c4", "c0", "c8"]
    same = fed.ask(method.echo, ids, same=Number(torch.tensor(7.0)))
    assert same.ids == ("c4", "c0", "c8")
    assert same.value is not None
    assert same.value.number.tolist() == [7.0] * 3
    assert same.value.size.tolist() == [7.0, 11.0, 8.0], "replies are in the order of the ids"
    each = fed.ask(method.echo, ids, each=Number(torch.tensor([1.0, 2.0, 3.0])))
    assert each.value is not None
    assert each.value.number.tolist() == [1.0, 2.0, 3.0]
    picked = fed.ask(method.echo, ids, each=Number(torch.tensor([5.0, 6.0])), rows=[1, 1, 0])
    assert picked.value is not None
    assert picked.value.number.tolist() == [6.0, 6.0, 5.0]


def test_nobody_asked_is_nobody_answering(digits: OwnPopulation) -> None:
    fed = simulator(digits)
    replies = fed.ask(Asking().echo, [], each=Number(torch.tensor([1.0])), rows=[])
    assert (replies.ids, replies.value, dict(replies.failed)) == ((), None, {})
    assert fed.ledger.down["train"] == fed.ledger.up["train"] == 0


def test_only_marked_functions_can_be_asked_for(digits: OwnPopulation) -> None:
    with pytest.raises(CoterieError, match="fedavg has no client function 'not_for_clients'"):
        simulator(digits).ask(Asking().not_for_clients, ["c0"], same=Nothing())


def test_clients_keep_what_they_keep_once_the_round_counts(digits: OwnPopulation) -> None:
    fed, method = simulator(digits), Asking()
    for expected in ([1.0, 1.0], [2.0, 2.0]):
        replies = fed.ask(method.count, ["c1", "c5"], same=Nothing())
        assert replies.value is not None
        assert replies.value.number.tolist() == expected
    assert fed.memory == {}, "a round that is cut short leaves no trace"
    fed.commit()
    assert fed.take_touched() == ["c1", "c5"]
    assert fed.take_touched() == []
    assert float(fed.memory["c1"]["times"]) == 2.0  # type: ignore[arg-type]
    fed.ask(method.count, ["c1"], same=Nothing())
    assert float(fed.memory["c1"]["times"]) == 2.0  # type: ignore[arg-type]


def test_a_huge_number_is_refused_where_there_is_no_model_too(digits: OwnPopulation) -> None:
    fed, method, ids = simulator(digits, Faults(huge=1.0)), Asking(), ["c4", "c0", "c8"]
    for replies in (
        fed.ask(method.echo, ids, same=Number(torch.tensor(3.0))),
        fed.ask(method.count, ids, same=Nothing()),
    ):
        assert replies.value is None
        assert {replies.failed[client].reason for client in ids} == {"number is too large to be true"}
    assert len(fed.failures) == 6


def test_samples_are_keyed_by_seed_and_round_alone(digits: OwnPopulation) -> None:
    fed, other = simulator(digits), simulator(digits)
    first = fed.sample(0.4)
    other.rng("something else").random()
    assert other.sample(0.4) == first
    assert len(first) == 4
    assert list(first) == sorted(first)
    fed.round = 1
    assert fed.sample(0.4) != first
    assert fed.sample(1.0) == tuple(sorted(digits.ids))
    assert len(fed.sample(5)) == 5
    assert len(fed.sample(100)) == 9
    assert len(fed.sample(0.001)) == 1
    assert set(fed.sample(2, among=["c1", "c2", "c3"])) < {"c1", "c2", "c3"}


def test_every_client_is_sampled_in_time(digits: OwnPopulation) -> None:
    fed = simulator(digits)
    seen: set[str] = set()
    for number in range(40):
        fed.round = number
        seen.update(fed.sample(2))
    assert seen == set(digits.ids)


def test_who_is_there_in_which_round(digits: OwnPopulation) -> None:
    fed = simulator(digits, Faults(joins=((2, 3.0),), leaves=((4, 2.0),)))
    there, new = {}, {}
    for number in range(6):
        new[number] = set(fed.begin(number))
        there[number] = set(fed.ids)
    assert [len(clients) for clients in there.values()] == [6, 6, 9, 9, 7, 7]
    assert [len(clients) for clients in new.values()] == [0, 0, 3, 0, 0, 0]
    assert new[2] == there[2] - there[1]
    assert there[5] < there[2]


def test_newcomers_are_admitted_and_the_departed_not_asked(
    digits: OwnPopulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    admitted: list[tuple[int, tuple[str, ...]]] = []
    asked: list[set[str]] = []
    method = made("fedavg")
    step = FedAvg.step

    def admit(self: FedAvg, state: object, fed: Simulator, new: tuple[str, ...]) -> object:
        admitted.append((fed.round, new))
        return state

    def stepped(self: FedAvg, state: object, fed: Simulator) -> object:
        asked.append(set(fed.ids))
        return step(self, state, fed)  # type: ignore[arg-type]

    monkeypatch.setattr(FedAvg, "admit", admit)
    monkeypatch.setattr(FedAvg, "step", stepped)
    faults = Faults(joins=((1, 2.0),), leaves=((2, 4.0),))
    result = run(method, digits, small_net, rounds=3, faults=faults)
    assert [(number, len(new)) for number, new in admitted] == [(1, 2)]
    assert [len(clients) for clients in asked] == [7, 9, 5]
    assert set(admitted[0][1]) == asked[1] - asked[0]
    assert set(result.client_ids) == asked[2]
    assert result.clients == 9


def test_a_client_that_drifts_has_other_data_from_then_on() -> None:
    population = build("rotated-digits", seed=0, clients=4, samples=6, groups=2, drift=Drift(2, groups={"1": 0}))
    method = made("local")
    seen = []
    for rounds in (2, 3):
        result = run(method, population, small_net, rounds=rounds)
        seen.append(result.truth)
    assert seen == [[0, 1, 0, 1], [0, 0, 0, 1]]
    before, after = population.client("1", 1).train, population.client("1", 2).train
    assert not torch.equal(before.x, after.x)
    assert torch.equal(before.x.sum((1, 2, 3)), after.x.sum((1, 2, 3))), "the same images, turned"
    assert torch.equal(before.y, after.y)


def test_the_truth_is_told_where_it_is_known(digits: OwnPopulation) -> None:
    assert simulator(digits).truth(["c4", "c0"]).tolist() == [1, 0]
    unknown = rows(([1.0], [1]))
    fed = Simulator(Asking(), Task(small_net, (1,), 10), unknown, seed=0)
    with pytest.raises(CoterieError, match="not known"):
        fed.truth(["a"])


def test_engine_options_out_of_range() -> None:
    for workers, lanes in ((-1, 0), (0, -1)):
        with pytest.raises(CoterieError, match=r"engine\.workers and engine\.lanes must be at least 0"):
            EngineOptions(workers, lanes)


@pytest.mark.parametrize("engine", [EngineOptions(workers=1), EngineOptions(workers=2), EngineOptions(2, kernel=False)])
def test_who_watches_sees_clients_done_within_a_round(engine: EngineOptions, digits: OwnPopulation) -> None:
    """In steps, up to all nine, for training and for evaluation; a view that does not ask for it works as before."""

    class Watcher:
        def __init__(self) -> None:
            self.seen: list[tuple[str, int, int]] = []

        def update(self, row: Mapping[str, Any]) -> None:
            self.seen.append(("round", 0, 0))

        def note(self, text: str) -> None:
            pass

        def progress(self, what: str, done: int, asked: int) -> None:
            self.seen.append((what, done, asked))

    view = Watcher()
    run(made("fedavg"), digits, small_net, rounds=1, view=view, engine=engine)
    assert [what for what, *_ in view.seen] == sorted((what for what, *_ in view.seen), key=_ORDER.index)
    for kind in ("training", "evaluation"):
        steps = [(done, asked) for what, done, asked in view.seen if what == kind]
        assert steps == sorted(steps)
        assert steps[0] == (0, 9)
        assert steps[-1] == (9, 9)
        assert len(steps) > 2


_ORDER = ("training", "evaluation", "round")

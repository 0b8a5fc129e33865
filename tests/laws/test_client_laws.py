"""Clients have no order, clusters partition them, and what crosses the wire is what is counted: for every method."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

from coterie import Result, run
from coterie.core import wire
from coterie.core.jobs import (
    Job,
    Outcome,
    Setting,
    perform,
)
from coterie.core.message import Message
from coterie.core.task import Task
from coterie.data.own import OwnPopulation
from coterie.methods import METHODS
from coterie.simulation.faults import Faults
from coterie.simulation.simulator import EngineOptions, Simulator

from ..tiny import driven, made, only, six_digits, small_net

EVERY = sorted(METHODS)
ONE = EngineOptions(workers=1)


def losses_by_client(name: str, population: OwnPopulation) -> dict[str, float]:
    """Two rounds, then every client's own loss with the model it would use."""
    method = driven(name, epochs=1)
    task = Task(small_net, population.shape, population.classes, population.normalise, dtype=torch.float64)
    fed = Simulator(method, method.task(task), population, seed=2, options=EngineOptions(workers=1))
    state = method.init(fed)
    for number in range(2):
        fed.round = number
        state, _ = method.step(state, fed)
        fed.commit()
    replies = method.assess(state, fed, fed.ids)
    assert replies.value is not None
    return dict(zip(replies.ids, replies.value.loss.tolist(), strict=True))


@pytest.mark.parametrize("name", EVERY)
def test_permuting_the_clients_permutes_the_results(name: str) -> None:
    six = six_digits()
    order = ["c5", "c2", "c0", "c4", "c1", "c3"]
    assert losses_by_client(name, only(six, order)) == pytest.approx(losses_by_client(name, six), abs=1e-9)


@pytest.mark.parametrize("name", EVERY)
def test_clusters_partition_the_clients(name: str) -> None:
    """One cluster for each client, numbered from 0 as counted; with three and more clusters too, and under losses."""
    six = six_digits()
    for faults in (Faults(), Faults(dropout=0.3)):
        result = run(made(name, epochs=1), six, small_net, rounds=2, seed=4, faults=faults, engine=ONE)
        assert result.client_ids == list(six.ids)
        if result.clusters is None:
            assert result.n_clusters is None
            continue
        assert len(result.clusters) == len(six.ids)
        known = {cluster for cluster in result.clusters if cluster >= 0}
        assert known
        assert result.n_clusters == len(known)
        if not faults.dropout:
            assert min(result.clusters) >= 0


class Recorder:
    """Encodes for real every message that goes either way, and adds the lengths up."""

    def __init__(self) -> None:
        self.down = {"train": 0, "evaluation": 0}
        self.up = {"train": 0, "evaluation": 0}
        self.purpose, self.counted = "train", True

    def sent(self, message: object, rows: Sequence[int] | None, clients: int, common: Sequence[str] = ()) -> None:
        packed = Message.of(message)
        for client in range(clients):
            tensors = packed.tensors
            if rows is not None:
                tensors = {
                    path: tensor if any(path == c or path.startswith(f"{c}/") for c in common) else tensor[rows[client]]
                    for path, tensor in tensors.items()
                }
            self.down[self.purpose] += len(_encoded(packed, tensors))

    def answered(self, reply: Message, clients: int) -> None:
        for client in range(clients):
            row = {path: tensor[client] for path, tensor in reply.tensors.items()}
            self.up[self.purpose] += len(_encoded(reply, row))


def _encoded(message: Message, tensors: dict[str, Tensor]) -> bytes:
    return wire.encode(wire.unpack(message.kind, message.skeleton, tensors))


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Stands between the simulator and its clients."""
    record = Recorder()

    class Watched(Simulator):
        def ask(self, function: Any, ids: Sequence[str], **how: Any) -> Any:
            record.purpose, record.counted = how.get("purpose", "train"), how.get("counted", True)
            if record.counted and how.get("same") is not None:
                record.sent(how["same"], None, len(ids))
            elif record.counted:
                rows = how["rows"] if how.get("rows") is not None else range(len(ids))
                record.sent(how["each"], rows, len(ids), how.get("common", ()))
            return super().ask(function, ids, **how)

        def exchange(self, askers: Any, answered: Tensor, size: Tensor) -> Tensor:
            before = (self.ledger.down["train"], self.ledger.up["train"])
            arrivals: Tensor = super().exchange(askers, answered, size)
            record.down["train"] += self.ledger.down["train"] - before[0]
            record.up["train"] += self.ledger.up["train"] - before[1]
            return arrivals

    def performed(setting: Setting, job: Job, message: Message) -> Outcome:
        outcome = perform(setting, job, message)
        if record.counted:
            record.answered(outcome.reply, len(job.ids))
        return outcome

    monkeypatch.setattr(import_module("coterie.runs.simulate"), "Simulator", Watched)
    monkeypatch.setattr(import_module("coterie.simulation.workers"), "perform", performed)
    return record


@pytest.mark.parametrize("name", EVERY)
def test_the_ledger_is_what_was_encoded_and_sent(name: str, digits: OwnPopulation, recorder: Recorder) -> None:
    faults = Faults(dropout=0.2, nan=0.1, huge=0.1)
    method, engine = made(name, epochs=1, finetune_epochs=1), EngineOptions(workers=1, lanes=4)
    result = run(method, digits, small_net, rounds=2, seed=3, faults=faults, engine=engine)
    assert result.bytes_down == recorder.down["train"]
    assert result.bytes_up == recorder.up["train"]
    assert result.bytes_evaluation == recorder.down["evaluation"] + recorder.up["evaluation"]


def test_local_training_sends_no_model(digits: OwnPopulation) -> None:
    model = 4 * (64 * 8 + 8 + 8 * 10 + 10)
    result: Result = run(made("local"), digits, small_net, rounds=1)
    assert result.bytes_down + result.bytes_up < 9 * model / 2


@pytest.mark.parametrize("name", EVERY)
def test_a_round_without_a_valid_reply_keeps_the_state(name: str, digits: OwnPopulation) -> None:
    """Everyone is silent in every round: what is there at the end is what was there at the start."""
    method = driven(name)
    task = Task(small_net, digits.shape, digits.classes, digits.normalise)
    fed = Simulator(
        method, method.task(task), digits, seed=0, faults=Faults(dropout=1.0), options=EngineOptions(workers=1)
    )
    state = method.init(fed)
    before = wire.encode(state)
    after, _ = method.step(state, fed)
    assert wire.encode(after) == before
    assert {client for _, client, failure in fed.failures if failure.kind == "dropped"} == set(digits.ids)


@pytest.mark.parametrize("name", EVERY)
def test_states_survive_the_wire(name: str) -> None:
    """The state is the checkpoint: encoded and decoded by its declared type it is the same."""
    result = run(made(name, epochs=1), six_digits(), small_net, rounds=2, seed=6, engine=ONE)
    data = wire.encode(result.state)
    again = wire.decode(data, driven(name).state_type)
    assert wire.encode(again) == data
    assert dataclasses.is_dataclass(again)

"""Nobody honest answers: the clients that are asked are all one attacker's, or one is asked alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from coterie.core.federation import Federation
from coterie.data.own import OwnPopulation
from coterie.methods import METHODS
from coterie.methods.base import Log, ServerMethod
from coterie.methods.fedavg import FedAvg
from coterie.runs.folder import RunFolder, RunKind
from coterie.runs.loop import RoundLoop
from coterie.runs.options import RunOptions

from ..deploy.wiring import Here, devices, federation, poisoned
from ..tiny import made

LIES: dict[str, Callable[[Tensor], Tensor]] = {
    "longer": lambda t: torch.cat([t.flatten(), t.flatten(), t.flatten()[:1]]),
    "empty": lambda t: t.flatten()[:0],
}
SERVED = [name for name, kind in METHODS.items() if issubclass(kind, ServerMethod) and name != "oracle"]


def lying(kind: str, data: bytes) -> bytes:
    """A reply in which all that is not a part of the model has another shape."""

    def lie(name: str, tensor: Tensor) -> Tensor:
        return tensor if name.startswith("model/") else LIES[kind](tensor)

    return poisoned(data, lie)


@pytest.mark.parametrize("kind", LIES)
@pytest.mark.parametrize("method", SERVED)
def test_a_form_that_all_agree_about_is_still_a_wrong_one(
    method: str, kind: str, digits: OwnPopulation, tmp_path: Path
) -> None:
    """Three who were alike were believed: 17 methods ended with an IndexError, a RuntimeError or a ValueError."""
    there = Here({name: device for name, device in devices(digits, tmp_path).items() if name in digits.ids[:3]})
    learnt = made(method, **({"k": 2} if method in ("ifca", "fedsem", "fedsoft", "md-icfl") else {}))
    fed = federation(learnt, digits, there)
    state = learnt.init(fed)
    there.tamper = lambda client, data: lying(kind, data)
    state, _ = learnt.step(state, fed)
    assert {client for _, client, _ in fed.failures} == set(fed.ids)
    assert {failure.kind for _, _, failure in fed.failures} <= {"wrong shape", "refused"}  # refused: asked no more


@pytest.mark.parametrize("method", ["embedding", "fedsem", "cfl"])
def test_a_newcomer_that_is_asked_alone_does_not_say_what_is_right(
    method: str, digits: OwnPopulation, tmp_path: Path
) -> None:
    there = Here({name: device for name, device in devices(digits, tmp_path).items() if name in digits.ids[:5]})
    learnt, newcomer = made(method, **({"k": 2} if method == "fedsem" else {})), digits.ids[4]
    there.absent = {newcomer}
    fed = federation(learnt, digits, there)
    state, _ = learnt.step(learnt.init(fed), fed)
    there.absent = set()
    there.tamper = lambda client, data: lying("longer", data) if client == newcomer else data
    state = learnt.admit(state, fed, fed.begin(1))
    learnt.step(state, fed)
    assert {client for _, client, _ in fed.failures} == {newcomer}


@pytest.mark.parametrize(
    ("field", "value"), [("correct", 9e9), ("correct", -7.0), ("count", 1e13), ("metrics/accuracy", 3.0)]
)
def test_no_client_has_more_right_than_it_has(field: str, value: float, digits: OwnPopulation, tmp_path: Path) -> None:
    """One that told 9 * 10^9 right answers gave the run an accuracy of 15000000013.3 %."""
    liar = digits.ids[0]

    def lie(name: str, tensor: Tensor) -> Tensor:
        return torch.full_like(tensor, value) if name == field else tensor

    there = Here(devices(digits, tmp_path), lambda client, data: poisoned(data, lie) if client == liar else data)
    notes: list[str] = []
    fed = federation(made("fedavg"), digits, there, note=notes.append)
    result = RoundLoop(made("fedavg"), fed, RunOptions(rounds=1)).run()
    assert 0 <= result.accuracy <= 1
    refused = [note for note in notes if note.startswith("refused the reply of")]
    assert [liar in note and f"{field} is not between 0 and" in note for note in refused] == [True]


class Fails(FedAvg):
    """A method that stumbles over what it is told in its second round."""

    always = False

    def step(self, state: Any, fed: Federation) -> tuple[Any, Log]:
        if fed.round == 1 or self.always:
            raise IndexError("too many indices")
        return super().step(state, fed)


class Stumbles(Fails):
    """... and in all others."""

    always = True


def served(kind_of_method: type[FedAvg], population: OwnPopulation, folder: Path, kind: RunKind, rounds: int) -> Any:
    method = kind_of_method(**vars(made("fedavg")))
    fed = federation(made("fedavg"), population, Here(devices(population, folder / "clients")))
    return RoundLoop(method, fed, RunOptions(rounds=rounds), RunFolder.create(folder / "run", "", kind)).run()


def test_what_a_method_cannot_use_costs_a_round_and_not_the_federation(digits: OwnPopulation, tmp_path: Path) -> None:
    assert served(Fails, digits, tmp_path, RunKind.SERVED, 3).rounds == 3
    assert "round 2 is lost: the replies could not be used" in (tmp_path / "run" / "events.jsonl").read_text()


def test_in_a_simulation_it_is_a_fault_of_the_method(digits: OwnPopulation, tmp_path: Path) -> None:
    with pytest.raises(IndexError):
        served(Fails, digits, tmp_path, RunKind.SIMULATION, 3)


def test_a_method_that_never_works_is_not_tried_for_ever(digits: OwnPopulation, tmp_path: Path) -> None:
    with pytest.raises(IndexError):
        served(Stumbles, digits, tmp_path, RunKind.SERVED, 30)


def test_a_run_that_lost_every_round_is_no_success(digits: OwnPopulation, tmp_path: Path) -> None:
    with pytest.raises(IndexError):
        served(Stumbles, digits, tmp_path, RunKind.SERVED, 3)

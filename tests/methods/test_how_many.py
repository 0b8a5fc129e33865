"""`k = "auto"`: what stands for it, when the number is known, and whole runs of every method that can ask."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import coterie
from coterie import Result, run
from coterie.core.errors import CoterieError, Interrupted
from coterie.core.jobs import action_of, client_function
from coterie.core.samples import ClientData
from coterie.data import build
from coterie.data.own import OwnPopulation
from coterie.methods import METHODS
from coterie.methods.counted import OPEN, Counted
from coterie.methods.fedcg import FedCG
from coterie.methods.how_many import AFTER, FIRST, HowMany, in_rounds
from coterie.methods.ifca import IFCA
from coterie.methods.ladd import LADD
from coterie.runs.config import from_tables
from coterie.simulation.simulator import EngineOptions

from ..tiny import Rows, StopAt, fingerprint

ASKING = sorted(name for name, kind in METHODS.items() if issubclass(kind, Counted))
_ONE = EngineOptions(workers=1)
TRAINING: dict[str, Any] = {"epochs": 5, "batch": 8, "lr": 0.1, "finetune_epochs": 0}


def net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))


@lru_cache(maxsize=4)
def clients(groups: int, shift: str = "rotation") -> OwnPopulation:
    """Sixteen clients with 30 digits each."""
    how: Any = {"shift": shift}
    whole = build("rotated-digits", seed=3, clients=16, groups=groups, samples=30, test_samples=20, **how)
    data = {f"c{client}": whole.client(client) for client in whole.ids}
    truth = {f"c{client}": whole.group(client) or 0 for client in whole.ids}
    return OwnPopulation(data, whole.shape, whole.classes, whole.normalise, truth)


def asking(name: str, **settings: Any) -> Any:
    kind = METHODS[name]
    assert issubclass(kind, Counted)
    short = {"steps": 10, "warm_steps": 2, "per_class": 2} if name == "md-icfl" else {}
    return kind(**{**TRAINING, kind.counts: "auto", **short, **settings})


def play(name: str, groups: int, rounds: int = 9, shift: str = "rotation", **how: Any) -> Result:
    how.setdefault("engine", _ONE)
    return run(asking(name), clients(groups, shift), net, rounds=rounds, seed=2, evaluate_every=100, **how)


def test_auto_may_be_said_everywhere() -> None:
    """In Python, on the command line and in TOML; what is written down reads as the same."""
    assert IFCA(k="auto").k == FedCG(domains="auto").domains == OPEN  # type: ignore[arg-type]
    assert LADD(k="auto") == LADD(k=0), "its own rule, the best silhouette"  # type: ignore[arg-type]
    config = from_tables({"method": "ifca", "settings": {"k": "auto"}})
    assert config.build_method({}) == IFCA(k=OPEN)
    assert from_tables(tomllib.loads(config.to_toml())).build_method({}) == IFCA(k=OPEN)
    with pytest.raises(CoterieError, match=r"ifca\.restarts needs a whole number, not 'auto'"):
        from_tables({"method": "ifca", "settings": {"restarts": "auto"}}).build_method({})
    with pytest.raises(CoterieError, match="domains must be at least 1, or auto, not -1"):
        FedCG(domains=-1)


def test_a_number_that_is_told_is_not_asked_for() -> None:
    told = IFCA(k=3)
    assert in_rounds(told) is told
    assert isinstance(in_rounds(IFCA(k=OPEN)), HowMany)


def test_orders_name_the_phase_and_the_number() -> None:
    """A client knows the number from the order alone, and nothing but client functions can be asked for."""
    method = HowMany(IFCA(k=OPEN))
    four: Any = method.method.of(4)
    functions: list[Any] = [method.asking.look, four.select_and_train, four.judge]
    for function in functions:
        found = client_function(method, action_of(function))
        assert found.__self__ == function.__self__
        assert found.__name__ == function.__name__
    assert client_function(method, "of_4__choose").__self__.k == 4
    assert action_of(IFCA(k=4).choose) == "choose"
    for strange in ("of_0__choose", "of_99999__choose", "of_4__init", "asking__init", "choose", "nobody__choose", "__"):
        with pytest.raises(CoterieError, match="has no client function"):
            client_function(method, strange)


@lru_cache
def of_two_groups(name: str) -> tuple[Result, list[str]]:
    """A run that nobody stops, and what it says."""
    watch = Rows()
    return play(name, 2, view=watch, engine=EngineOptions(workers=2)), watch.notes


@pytest.mark.parametrize("name", ASKING)
def test_two_groups_are_counted(name: str) -> None:
    """Found in round 3; the number is known when nothing more has come for some visits of everybody."""
    result, notes = of_two_groups(name)
    known = next(note for note in notes if note.startswith(f"{name}, round"))
    assert f"{asking(name).counts} = 2, where" in known
    assert AFTER < int(known.split("round ")[1].split(":")[0]) < 9
    assert result.ari == 1.0
    assert result.state.number == 2


@pytest.mark.parametrize("name", ASKING)
def test_one_group_is_one_and_nothing_is_lost(name: str) -> None:
    """The rounds after the number is known are FedAvg's own (FedCG trains residuals beside)."""
    result = play(name, 1)
    plain = fedavg_of_one_group()
    assert result.state.number == 1
    assert result.accuracy >= plain.accuracy - 0.02
    if name in ("fedsem", "ifca", "md-icfl"):  # one group's models are FedAvg's from then on
        assert result.bytes_down + result.bytes_up < 1.1 * (plain.bytes_down + plain.bytes_up)


@lru_cache(maxsize=1)
def fedavg_of_one_group() -> Result:
    return run(METHODS["fedavg"](**TRAINING), clients(1), net, rounds=9, seed=2, evaluate_every=100, engine=_ONE)


def test_one_group_is_known_after_as_many_visits_as_are_said() -> None:
    watch = Rows()
    assert play("fedsem", 1, FIRST, view=watch).state.number == 1
    assert any(note.startswith(f"fedsem, round {FIRST}: k = 1") for note in watch.notes)


def test_one_group_is_not_known_before_its_members_can_be_asked() -> None:
    """A network that learns nothing is asked after twelve visits, so until then there may be groups."""
    watch = Rows()
    slow = asking("fedsem", lr=1e-6)
    run(slow, clients(1), net, rounds=12, seed=2, evaluate_every=100, engine=_ONE, view=watch)
    assert any(note.startswith("fedsem, round 12: k = 1") for note in watch.notes)


@pytest.mark.parametrize(("name", "stop"), [("ifca", 2), ("ifca", 7), ("fedcg", 7)])
def test_resumed_in_either_phase(name: str, stop: int, tmp_path: Path) -> None:
    whole, _ = of_two_groups(name)
    with pytest.raises(Interrupted):
        play(name, 2, out=tmp_path / "run", view=StopAt(stop), checkpoint_seconds=1e9)
    resumed = play(name, 2, out=tmp_path / "run", resume=True)
    assert fingerprint(resumed) == fingerprint(whole)


def test_fedcg_sees_swapped_labels_where_it_asks() -> None:
    """Inputs are the same in both groups, so features show one domain; the groups that were asked for are taken."""
    asked = play("fedcg", 2, shift="swap")
    blind = FedCG(domains=2, means="inputs", **TRAINING)
    told = run(blind, clients(2, "swap"), net, rounds=9, seed=2, engine=_ONE)
    assert asked.ari == 1.0
    assert not asked.state.own.student
    assert asked.accuracy > told.accuracy + 0.05


@pytest.mark.parametrize(("name", "shift"), [("ifca", "rotation"), ("fedcg", "swap")])
def test_a_trained_run_serves_its_clients_and_newcomers(name: str, shift: str, tmp_path: Path) -> None:
    """The network that is loaded has as many domains as were found."""
    some = clients(2, shift)
    last = some.ids[-1]
    fewer = replace(some, clients={i: data for i, data in some.clients.items() if i != last})
    result = run(asking(name), fewer, net, rounds=9, seed=2, engine=_ONE, out=tmp_path / "run")
    assert result.state.number == 2
    loaded = coterie.load(tmp_path / "run", model=net)
    first = some.ids[0]
    data: ClientData = some.clients[first]
    said = np.asarray(loaded.predict(first, data.test.x.numpy()))
    assert float((said == data.test.y.numpy()).mean()) > 0.5
    own = some.clients[last]
    newcomer = loaded.admit(own.train.x.numpy(), own.train.y.numpy(), name="new")
    fellows = {loaded.groups[i] for i in fewer.ids if some.group(i) == some.group(last)}
    assert fellows == {newcomer.group}

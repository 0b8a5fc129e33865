"""What goes wrong by schedule: each fault is refused by name and counted, and the round goes on."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie import Result, run
from coterie.core.checks import check_reply
from coterie.core.errors import CoterieError, NothingLearnt
from coterie.core.federation import Ledger
from coterie.core.task import Task
from coterie.data.own import OwnPopulation
from coterie.simulation.faults import Faults
from coterie.simulation.simulator import Simulator
from tests.tiny import (
    Rows,
    fingerprint,
    made,
    small_net,
)

MANY = [f"client{i}" for i in range(500)]


def test_silence_has_the_rate_it_is_given_and_depends_on_the_client_alone() -> None:
    faults = Faults(dropout=0.3)
    silent = [client for client in MANY if faults.silence(1, 2, client)]
    assert 120 < len(silent) < 180
    assert silent == [client for client in reversed(MANY) if faults.silence(1, 2, client)][::-1]
    assert silent != [client for client in MANY if faults.silence(1, 3, client)]
    assert {failure.kind for client in MANY if (failure := faults.silence(1, 2, client))} == {"dropped"}


def test_half_of_the_clients_are_slower_than_the_median() -> None:
    late = [failure for client in MANY if (failure := Faults(slowness=1.0, deadline=1.0).silence(0, 0, client))]
    assert 200 < len(late) < 300
    assert {failure.kind for failure in late} == {"late"}
    assert "median times, the deadline is 1" in late[0].reason
    assert not any(Faults(slowness=1.0).silence(0, 0, client) for client in MANY), "without a deadline nobody is late"


def test_corruption_has_the_rates_it_is_given() -> None:
    faults = Faults(nan=0.1, wrong_shape=0.2, huge=0.3)
    template = {"w": torch.zeros(3)}
    found: Counter[str] = Counter()
    for client in MANY:
        reply = {"model/w": torch.ones(1, 3), "size": torch.ones(1)}
        broken = faults.corrupt(0, 0, client, reply)
        if broken is not None:
            _, bad = check_reply([client], broken, template, limit=1e3)
            found[bad[client].kind] += 1
            assert torch.equal(reply["model/w"], torch.ones(1, 3)), "the intact reply was changed"
    assert found["not finite"] == pytest.approx(50, abs=20)
    assert found["wrong shape"] == pytest.approx(100, abs=30)
    assert found["too large"] == pytest.approx(150, abs=30)


def storm(name: str, population: OwnPopulation, out: Path, **faults: Any) -> tuple[Result, list[dict[str, Any]]]:
    result = run(made(name), population, small_net, rounds=3, seed=2, out=out, faults=Faults(**faults))
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    return result, [event for event in events if event["event"] == "failure"]


CASES = {
    "dropped": {"dropout": 0.4},
    "late": {"slowness": 1.0, "deadline": 1.2},
    "not finite": {"nan": 0.4},
    "wrong shape": {"wrong_shape": 0.4},
    "too large": {"huge": 0.4},
}


@pytest.mark.parametrize(("kind", "faults"), CASES.items(), ids=CASES)
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "ifca"])
def test_a_bad_reply_is_refused_by_name_and_the_round_goes_on(
    name: str, kind: str, faults: dict[str, float], digits: OwnPopulation, tmp_path: Path
) -> None:
    result, events = storm(name, digits, tmp_path / "run", **faults)
    assert 0 < result.failures < 27
    assert len(events) == result.failures
    assert {event["fault"] for event in events} == {kind}
    assert {event["client"] for event in events} <= set(digits.ids)
    assert {event["round"] for event in events} <= {1, 2, 3}
    assert all(event["reason"] for event in events)
    calm = run(made(name), digits, small_net, rounds=3, seed=2)
    assert fingerprint(result)["state"] != fingerprint(calm)["state"]
    model = next(iter(result.models.values()))
    assert all(bool(torch.isfinite(tensor).all()) for tensor in model.values())


def test_replies_without_a_model_are_checked_too(digits: OwnPopulation, tmp_path: Path) -> None:
    """Local training answers with a number only: one that is not finite, or that are two, is refused."""
    for kind, faults in (("wrong shape", {"wrong_shape": 0.9}), ("not finite", {"nan": 0.9})):
        result, events = storm("local", digits, tmp_path / kind, **faults)
        assert 13 < result.failures < 27
        assert {event["fault"] for event in events} == {kind}


@pytest.mark.parametrize(
    ("faults", "why"),
    [
        ({"dropout": 1.0}, r"27 were dropped \(it did not answer\): find out why these clients do not answer"),
        ({"nan": 1.0}, r"27 were not finite \(model/.* has NaN .*\): try a smaller lr"),
        ({"wrong_shape": 1.0}, r"27 were wrong shape"),
        ({"huge": 1.0}, r"27 were too large \(its model has norm .*\): try a smaller lr, or bring the inputs"),
    ],
)
def test_a_run_without_any_valid_reply_fails(
    faults: dict[str, Any], why: str, digits: OwnPopulation, tmp_path: Path
) -> None:
    """The model would be the untrained one; also when the run is resumed at its end, and nothing is lost."""
    seen, out = Rows(), tmp_path / "run"
    fails = pytest.raises(NothingLearnt, match=rf"no reply counted in any of the 3 rounds; {why}")
    with fails:
        run(made("fedavg"), digits, small_net, rounds=3, seed=2, out=out, faults=Faults(**faults), view=seen)
    said = [note for note in seen.notes if note.startswith("warning: round 1: 9 of 9 replies do not count")]
    assert len(said) == 1, "said at once, and once"
    assert not (out / "result.json").exists()
    with fails:
        run(made("fedavg"), digits, small_net, rounds=3, seed=2, out=out, faults=Faults(**faults), resume=True)


def test_half_of_the_replies_lost_is_said_with_its_reason(digits: OwnPopulation, tmp_path: Path) -> None:
    """With seed 2 and nan = 0.6 more than half of round 1 is refused, but not all; the result says how many and why."""
    seen, out = Rows(), tmp_path / "run"
    result = run(made("fedavg"), digits, small_net, rounds=3, seed=2, out=out, faults=Faults(nan=0.6), view=seen)
    assert result.lost == {"not finite": result.failures}
    (warning,) = [text for text in result.warnings if "replies do not count" in text]
    assert re.match(r"round \d: \d of 9 replies do not count, most of them not finite \(model/", warning)
    assert f"warning: {warning}" in seen.notes
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    assert warning in [event["text"] for event in events if event["event"] == "warning"]
    calm = run(made("fedavg"), digits, small_net, rounds=3, seed=2, faults=Faults(nan=0.1))
    assert not any("replies" in text for text in calm.warnings)


def test_a_wrong_shape_is_as_long_as_it_is(digits: OwnPopulation) -> None:
    """The largest entry (8 x 64 numbers of 4 bytes) comes twice: that is counted."""

    def sent(faults: Faults) -> Ledger:
        method = made("fedavg")
        fed = Simulator(method, Task.of(small_net, digits), digits, seed=0, faults=faults)
        method.step(method.init(fed), fed)
        fed.close()
        return fed.ledger

    calm, broken = sent(Faults()), sent(Faults(wrong_shape=1.0))
    assert 9 * 2048 <= broken.up["train"] - calm.up["train"] < 9 * 2048 + 9 * 64
    assert broken.down == calm.down


def test_check_reply_says_what_is_wrong() -> None:
    template = {"w": torch.zeros(2)}
    reply = {
        "model/w": torch.tensor([[1.0, 2.0], [torch.nan, 0.0], [torch.inf, 0.0], [300.0, 400.0], [3e38, 3e38]]),
        "size": torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0]),
        "cluster": torch.tensor([0, 1, 2, 3, 4]),
    }
    good, bad = check_reply(list("abcde"), reply, template, limit=499.0)
    assert good == [0]
    assert {name: failure.kind for name, failure in bad.items()} == {
        "b": "not finite",
        "c": "not finite",
        "d": "too large",
        "e": "too large",
    }
    assert bad["d"].reason == "its model has norm 500, more than the 499 allowed"
    assert bad["b"].reason == "model/w has NaN or infinite numbers"
    _, bad = check_reply(["a"], {"model/w": torch.zeros(1, 3)}, template, limit=1.0)
    assert bad["a"].reason == "model/w has shape (3,) instead of (2,)"
    assert check_reply(list("abcd"), {"model/w": reply["model/w"][:4]}, template, limit=501.0)[0] == [0, 3]


def test_a_model_is_long_only_beside_those_of_the_others() -> None:
    """Norms 5, 5e4, 5, 5: the median is 5 and the limit 1000 * (1 + 5) = 6e3, so the second is refused.

    A million times longer, as large inputs make them, all are as long as the others, and none is refused; nor is a
    single one. At 5e10 the limit for all numbers, 1e10, holds whatever the others send.
    """
    template = {"w": torch.zeros(2)}
    usual, long = [3.0, 4.0], [3e4, 4e4]
    reply = {"model/w": torch.tensor([usual, long, usual, usual])}
    good, bad = check_reply(list("abcd"), reply, template)
    assert good == [0, 2, 3]
    assert bad["b"].reason == "its model has norm 5e+04, more than the 6e+03 allowed"
    scaled = {"model/w": torch.tensor([usual, usual, usual, usual]) * 1e6}
    assert check_reply(list("abcd"), scaled, template)[0] == [0, 1, 2, 3]
    assert check_reply(["a"], {"model/w": torch.tensor([long])}, template)[0] == [0]
    broken = {"model/w": torch.tensor([usual, usual, usual]) * 1e10}
    assert check_reply(list("abc"), broken, template)[0] == []
    lone_nan = {"model/w": torch.tensor([usual, [torch.nan, 0.0], long])}
    assert check_reply(list("abc"), lone_nan, template)[0] == [0], "numbers that are not finite have no say"


def test_numbers_that_may_be_anything() -> None:
    """The loss of a model that has diverged; what stands beside it is checked, and so is its shape."""
    reply = {
        "loss": torch.tensor([1.0, torch.nan, torch.inf, 1e200]),
        "correct": torch.tensor([1.0, 1.0, torch.nan, 1.0]),
    }
    good, bad = check_reply(list("abcd"), reply, {}, limit=1.0, unbounded=("loss",))
    assert good == [0, 1, 3]
    assert bad["c"].reason == "correct has NaN or infinite numbers"
    twice = {"loss": torch.zeros(1, 2)}
    assert check_reply(["a"], twice, {}, limit=1.0, like={"loss": torch.zeros(1)}, unbounded=("loss",))[0] == []


def test_clients_come_and_go_by_round() -> None:
    stays = Faults(joins=((2, 3.0), (4, 1.0)), leaves=((5, 2.0),)).calendar(0, MANY)
    assert Counter(stays.values()) == {(2, None): 3, (4, None): 1, (0, 5): 2}
    assert Faults().calendar(0, MANY) == {}
    assert stays == Faults(joins=((2, 3.0), (4, 1.0)), leaves=((5, 2.0),)).calendar(0, MANY[::-1])
    last = Faults(joins=((2, 2.0),), joiners="last").calendar(0, MANY)
    assert last == dict.fromkeys(sorted(MANY)[-2:], (2, None))


@pytest.mark.parametrize(
    ("faults", "says"),
    [
        ({"dropout": 1.2}, r"faults.dropout is a probability and must lie in \[0, 1\], not 1.2"),
        ({"huge": -0.1}, r"faults.huge is a probability"),
        ({"deadline": -1.0}, "faults.deadline must be at least 0"),
        ({"joins": ((1, 1.5),)}, "faults.joins needs pairs round:number"),
        ({"leaves": ((-1, 1.0),)}, "faults.leaves needs pairs round:number"),
    ],
)
def test_faults_out_of_range(faults: dict[str, Any], says: str) -> None:
    with pytest.raises(CoterieError, match=says):
        Faults(**faults)


@pytest.mark.parametrize(
    ("faults", "says"),
    [
        (Faults(joins=((1, 3.0),), leaves=((1, 1.0),)), "name 4 clients, but there are only 3"),
        (Faults(joins=((1, 3.0),)), "leave no client for round 0"),
        (Faults(leaves=((2, 3.0),)), "leave no client for round 2"),
        (Faults(joins=((4, 1.0),), leaves=((2, 2.0),)), "leave no client for round 2"),
    ],
)
def test_somebody_must_be_there(faults: Faults, says: str) -> None:
    with pytest.raises(CoterieError, match=says):
        faults.calendar(0, ["a", "b", "c"])

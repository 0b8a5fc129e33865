"""A run that was stopped and resumed is the run that was never stopped: for every method.

Bit for bit, on the same kind of CPU with the same torch (see the package's docstring).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coterie import Result, run
from coterie.core.errors import Interrupted
from coterie.data.own import OwnPopulation
from coterie.methods import METHODS
from coterie.runs.records import read_metrics
from coterie.simulation.faults import Faults
from coterie.simulation.simulator import EngineOptions

from ..tiny import StopAt, batchnorm_net, fingerprint, made, six_digits, small_net

EVERY = sorted(METHODS)
STORM = Faults(dropout=0.2, nan=0.1, huge=0.1, wrong_shape=0.1, slowness=0.5, deadline=1.5)


def play(name: str, population: OwnPopulation, out: Path, net: Any = small_net, **how: Any) -> Result:
    how = {"engine": EngineOptions(workers=2), "rounds": 3, **how}
    method = made(name, epochs=1, finetune_epochs=1)
    return run(method, population, net, seed=7, out=out, checkpoint_seconds=1e9, **how)


def logs(folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The events and metrics without the wall time."""
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    rows = read_metrics(folder)
    return ([{k: v for k, v in each.items() if k != "seconds"} for each in part] for part in (events, rows))  # type: ignore[return-value]


@pytest.mark.parametrize("faults", [Faults(), STORM], ids=["calm", "storm"])
@pytest.mark.parametrize("name", EVERY)
def test_resumed_is_never_interrupted(name: str, faults: Faults, tmp_path: Path) -> None:
    """In a storm on the kernel with two workers; in calm with buffers, which only torch takes, with one."""
    stop_at, rounds = (2, 3) if faults.dropout else (1, 2)
    digits = six_digits()
    how: dict[str, Any] = {"rounds": rounds}
    if not faults.dropout:
        how |= {"net": batchnorm_net, "engine": EngineOptions(workers=1)}
    whole = play(name, digits, tmp_path / "whole", faults=faults, **how)
    with pytest.raises(Interrupted, match=f"after {stop_at} of {rounds} rounds; nothing is lost: coterie resume"):
        play(name, digits, tmp_path / "parts", faults=faults, view=StopAt(stop_at), **how)
    resumed = play(name, digits, tmp_path / "parts", faults=faults, resume=True, **how)
    assert fingerprint(resumed) == fingerprint(whole)
    assert [list(part) for part in logs(tmp_path / "parts")] == [list(part) for part in logs(tmp_path / "whole")]


def test_joins_and_leaves_survive_an_interruption(digits: OwnPopulation, tmp_path: Path) -> None:
    faults = Faults(joins=((1, 2.0), (2, 1.0)), leaves=((2, 2.0),))
    whole = play("ifca", digits, tmp_path / "whole", faults=faults)
    for stop in (1, 2):
        with pytest.raises(Interrupted):
            play("ifca", digits, tmp_path / f"at{stop}", faults=faults, view=StopAt(stop))
        resumed = play("ifca", digits, tmp_path / f"at{stop}", faults=faults, resume=True)
        assert fingerprint(resumed) == fingerprint(whole)


def test_stopped_after_the_last_round_or_before_the_first(
    digits: OwnPopulation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = play("scaffold", digits, tmp_path / "whole")
    with pytest.raises(Interrupted, match="after 3 of 3"):
        play("scaffold", digits, tmp_path / "last", view=StopAt(3))
    assert fingerprint(play("scaffold", digits, tmp_path / "last", resume=True)) == fingerprint(whole)

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(METHODS["scaffold"], "init", stopped)
        with pytest.raises(Interrupted, match=r"before the first round; nothing was learnt yet: coterie resume"):
            play("scaffold", digits, tmp_path / "first")
    assert fingerprint(play("scaffold", digits, tmp_path / "first", resume=True)) == fingerprint(whole)


def test_without_a_folder_nothing_can_be_resumed(digits: OwnPopulation) -> None:
    with pytest.raises(Interrupted, match="give an output folder"):
        run(made("fedavg"), digits, small_net, rounds=3, view=StopAt(1))


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedper", "fedcg", "panm"])
def test_a_run_that_goes_on_beyond_its_end_is_one_that_was_longer_from_the_start(
    name: str, digits: OwnPopulation, tmp_path: Path
) -> None:
    """Two rounds and then up to five; evaluated in every second round, so that the first end is none of them."""
    how: dict[str, Any] = {"seed": 7, "evaluate_every": 2, "engine": EngineOptions(workers=1)}
    whole = run(made(name), digits, small_net, rounds=5, out=tmp_path / "whole", **how)
    run(made(name), digits, small_net, rounds=2, out=tmp_path / "parts", **how)
    longer = run(made(name), digits, small_net, rounds=5, out=tmp_path / "parts", resume=True, **how)
    assert fingerprint(longer) == fingerprint(whole)
    found, wanted = (list(logs(folder)) for folder in (tmp_path / "parts", tmp_path / "whole"))
    assert found[1] == wanted[1]
    # but for the first event, which says with how many rounds it began, and warnings, which depend on that
    said = [[event for event in events[1:] if event["event"] != "warning"] for events in (found[0], wanted[0])]
    assert said[0] == said[1]

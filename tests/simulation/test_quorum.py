"""Rounds that close before all have answered: who is late, when its reply comes, and how much it counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from coterie import Result, run
from coterie.core.errors import CoterieError, Interrupted
from coterie.core.quorum import Quorum, discounted, weight
from coterie.core.task import Task
from coterie.data.own import OwnPopulation
from coterie.methods import METHODS
from coterie.methods.base import Models
from coterie.methods.fedavg import FedAvg
from coterie.methods.p2p.base import PeerMethod
from coterie.simulation.faults import Faults
from coterie.simulation.simulator import EngineOptions, Simulator

from ..tiny import StopAt, fingerprint, made, small_net

SLOW = Faults(slow=0.3, slow_times=2.5, slowness=0.1)
SERVED = sorted(name for name, kind in METHODS.items() if not issubclass(kind, PeerMethod))


def test_a_share_of_the_replies_is_enough() -> None:
    assert [Quorum(0.9).enough(n) for n in (1, 9, 10, 11, 100)] == [1, 9, 9, 10, 90]
    assert Quorum().enough(7) == 7
    assert not Quorum(1.0, "use").uses_late
    for share in (0.0, -1.0, 1.1):
        with pytest.raises(CoterieError, match="quorum must be above 0 and at most 1"):
            Quorum(share)


def test_an_old_reply_counts_less() -> None:
    """Three rounds old: 1 / sqrt(4) of its samples."""
    assert [weight(0), weight(3)] == [1.0, 0.5]
    stacked = {"size": torch.tensor([10.0, 10.0]), "model/w": torch.ones(2, 3)}
    assert discounted(stacked, ["a", "b"], {"b": 3})["size"].tolist() == [10.0, 5.0]
    assert discounted(stacked, ["a", "b"], {})["size"].tolist() == [10.0, 10.0]


def test_a_late_reply_stands_for_the_next_one_of_its_client(digits: OwnPopulation) -> None:
    """Slow clients take 2.5 times as long as the others: asked in round 0, they are there in round 2.

    ceil(2.5) - 1 = 2 rounds late. In round 1 they are at work and not there. In round 2 their reply is what it would
    have been in round 0, and counts for 1 / sqrt(3) of their samples.
    """
    faults, method = Faults(slow=0.3, slow_times=2.5), FedAvg(epochs=1, batch=4, lr=0.05, fraction=2)
    slow = [client for client in digits.ids if faults.time(0, 0, client) > 1]
    assert 0 < len(slow) < 5
    task = Task.of(small_net, digits, dtype=torch.float64)
    one = EngineOptions(workers=1)
    all_, fed = (
        Simulator(method, task, digits, seed=0, faults=faults, options=one, quorum=quorum)
        for quorum in (None, Quorum(0.5, "use"))
    )
    sent = Models(task.init(0))
    whole = all_.ask(method.train, all_.ids, same=sent)
    first = fed.ask(method.train, fed.ids, same=sent)
    assert set(first.failed) == set(slow)
    assert {failure.kind for failure in first.failed.values()} == {"late"}
    fed.commit()
    fed.begin(1)
    assert set(fed.ids) == set(digits.ids) - set(slow)
    fed.begin(2)
    assert fed.ids == digits.ids
    assert set(slow) <= set(fed.sample(2)), "they are drawn, whoever else is"
    before = fed.ledger.up["train"]
    again = fed.ask(method.train, fed.ids, same=sent)
    assert again.ids == digits.ids
    assert again.stale == dict.fromkeys(slow, 2)
    assert whole.value is not None
    assert again.value is not None
    for client in slow:
        place = digits.ids.index(client)
        assert all(torch.equal(again.value.model[name][place], whole.value.model[name][place]) for name in sent.models)
        assert float(again.value.size[place]) == pytest.approx(float(whole.value.size[place]) / 3**0.5)
    assert fed.ledger.up["train"] - before == (9 - len(slow)) * all_.ledger.up["train"] // 9, "bytes count once"
    assert not fed.waiting


def play(name: str, digits: OwnPopulation, **how: Any) -> Result:
    how = {"quorum": 0.7, "late": "use", "engine": EngineOptions(workers=1), **how}
    return run(made(name, epochs=1), digits, small_net, rounds=4, seed=7, faults=SLOW, checkpoint_seconds=1e9, **how)


@pytest.mark.parametrize("name", SERVED)
def test_every_method_goes_on_without_the_late_and_resumes_with_their_replies(
    name: str, digits: OwnPopulation, tmp_path: Path
) -> None:
    """What is on its way is in the checkpoint; neither lanes nor an interruption change anything."""
    whole = play(name, digits, engine=EngineOptions(workers=1, lanes=2))
    with pytest.raises(Interrupted):
        play(name, digits, out=tmp_path / "parts", view=StopAt(2))
    resumed = play(name, digits, out=tmp_path / "parts", resume=True)
    assert fingerprint(resumed) == fingerprint(whole)
    assert resumed.notes == whole.notes
    assert len(whole.client_ids) == 9, "the last evaluation waits for all"
    if whole.bytes_up:
        assert whole.lost["late"] > 0
        assert f"{whole.lost['late']} replies came late" in whole.notes[0]


def test_dropped_replies_are_counted_and_change_the_result(digits: OwnPopulation) -> None:
    used, dropped, all_ = play("fedavg", digits), play("fedavg", digits, late="drop"), play("fedavg", digits, quorum=1)
    assert "were used, " in used.notes[0]
    assert "none was used" in dropped.notes[0]
    assert all_.notes == []
    states = [fingerprint(result)["state"] for result in (used, dropped, all_)]
    assert len(set(states)) == 3


def test_peers_have_no_quorum(digits: OwnPopulation) -> None:
    with pytest.raises(CoterieError, match="quorum is for methods with a server, and gossip has none"):
        play("gossip", digits)

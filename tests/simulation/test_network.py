"""Who knows whom, and what becomes of messages between peers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coterie.core.errors import CoterieError
from coterie.core.federation import Arrival
from coterie.core.message import Message
from coterie.core.rng import rng
from coterie.core.states import stack
from coterie.core.task import Task
from coterie.data.own import OwnPopulation
from coterie.methods.base import Models
from coterie.methods.fedavg import FedAvg
from coterie.methods.p2p.base import Answers, Inbox
from coterie.methods.p2p.simulation import Meeting
from coterie.methods.p2p.topology import (
    NO_PEER,
    Topology,
    acquaintances,
    as_rows,
    draw,
    introduced,
    members,
    peer_key,
    peer_keys,
)
from coterie.simulation.faults import Faults
from coterie.simulation.simulator import EngineOptions, Simulator
from tests.tiny import small_net

IDS = [f"c{i}" for i in range(12)]


def test_keys_depend_on_the_name_alone() -> None:
    assert peer_keys(["b", "a"]).tolist() == [peer_key("b"), peer_key("a")]
    assert len(set(peer_keys([str(i) for i in range(5000)]).tolist())) == 5000
    assert min(peer_keys(IDS)) > NO_PEER


def test_rows_of_keys_and_back() -> None:
    rows = as_rows([np.array([5, 7]), np.array([], dtype=np.int64)], width=3)
    assert rows.tolist() == [[5, 7, -1], [-1, -1, -1]]
    assert members(rows[0]).tolist() == [5, 7]


@given(st.integers(0, 30), st.integers(0, 12), st.integers(0, 10), st.integers(0, 99))
def test_draws_are_different_allowed_and_as_many_as_there_can_be(n: int, number: int, barred: int, seed: int) -> None:
    among, without = np.arange(n), np.arange(barred)
    drawn = draw(rng(seed, "test"), among, number, without)
    assert len(set(drawn.tolist())) == len(drawn) == min(number, max(0, n - barred))
    assert not set(drawn.tolist()) & set(without.tolist())


def test_draws_are_uniform() -> None:
    counts = np.zeros(6)
    for trial in range(3000):
        counts[draw(rng(trial, "uniform"), np.arange(6), 2, [3])] += 1
    assert counts[3] == 0
    assert counts[[0, 1, 2, 4, 5]] / 3000 == pytest.approx(0.4, abs=0.04)


@pytest.mark.parametrize("topology", ["random", "ring", "islands"])
def test_acquaintance_is_mutual_and_does_not_depend_on_the_order(topology: Topology) -> None:
    known = acquaintances(topology, IDS, seed=1, degree=4, bridges=1)
    assert known is not None
    for name in IDS:
        assert peer_key(name) not in known[name]
        for other in IDS:
            assert (peer_key(other) in known[name]) == (peer_key(name) in known[other])
    again = acquaintances(topology, IDS[::-1], seed=1, degree=4, bridges=1)
    assert again is not None
    assert all(known[name].tolist() == again[name].tolist() for name in IDS)


def test_the_shapes_of_the_topologies() -> None:
    assert acquaintances("full", IDS, seed=0, degree=3, bridges=0) is None
    ring = acquaintances("ring", IDS, seed=0, degree=4, bridges=0)
    drawn = acquaintances("random", IDS, seed=0, degree=3, bridges=0)
    islands = acquaintances("islands", IDS, seed=0, degree=3, bridges=0)
    bridged = acquaintances("islands", IDS, seed=0, degree=3, bridges=2)
    assert ring is not None
    assert drawn is not None
    assert islands is not None
    assert bridged is not None
    assert {len(keys) for keys in ring.values()} == {4}
    assert min(len(keys) for keys in drawn.values()) >= 3
    assert {len(keys) for keys in islands.values()} == {3}
    extra = sum(map(len, bridged.values())) - sum(map(len, islands.values()))
    assert 0 < extra <= 2 * 2 * 3  # three islands, two links each, both ways


def test_newcomers_and_those_they_meet_know_each_other() -> None:
    known = acquaintances("ring", IDS, seed=0, degree=2, bridges=0)
    assert known
    grown = introduced(known, ["new"], seed=0, degree=3)
    assert len(grown["new"]) == 3
    assert sum(peer_key("new") in keys for keys in grown.values()) == 3
    assert introduced({}, ["first"], seed=0, degree=3)["first"].tolist() == []


def test_answers_arrive_unless_they_are_lost_or_late() -> None:
    answered = torch.ones(200, 10, dtype=torch.bool)
    answered[:, 0] = False
    askers = [str(i) for i in range(200)]
    plain = Faults().carry(0, 0, askers, answered)
    assert torch.equal(plain == int(Arrival.FRESH), answered)
    fate = Faults(loss=0.2, delay=0.3).carry(0, 0, askers, answered)
    assert bool((fate[:, 0] == int(Arrival.LOST)).all())
    shares = [float((fate[:, 1:] == int(kind)).double().mean()) for kind in Arrival]
    assert shares == pytest.approx([0.2, 0.5, 0.3], abs=0.03)
    alone = Faults(loss=0.2, delay=0.3).carry(0, 0, askers[7:8], answered[7:8])
    assert torch.equal(alone[0], fate[7])


def test_outages_last_and_end() -> None:
    """With outage 3 a crash in round t silences t, t + 1 and t + 2; with outage 0 it is for ever."""
    crash, ever = Faults(crash=0.1, outage=3), Faults(crash=0.1, outage=0)
    began = [rng(0, "crashed", t, "a").random() < 0.1 for t in range(60)]
    assert any(began)
    for t in range(60):
        failure = crash.silence(0, t, "a")
        assert (failure is not None) == any(began[max(0, t - 2) : t + 1])
        assert failure is None or failure.kind == "crashed"
        assert (ever.silence(0, t, "a") is not None) == any(began[: t + 1])
    frozen = Faults(freeze=1.0).silence(0, 0, "a")
    assert frozen is not None
    assert frozen.kind == "frozen"


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"loss": 1.5}, "faults.loss is a probability"),
        ({"delay": -0.1}, "faults.delay is a probability"),
        ({"crash": 2.0}, "faults.crash is a probability"),
        ({"freeze": 2.0}, "faults.freeze is a probability"),
        ({"loss": 0.6, "delay": 0.6}, "must not exceed 1 together"),
        ({"outage": -1}, "faults.outage must be at least 0"),
    ],
)
def test_impossible_faults_are_refused(settings: dict[str, float], text: str) -> None:
    with pytest.raises(CoterieError, match=text):
        Faults(**settings)  # type: ignore[arg-type]


def test_common_parts_of_a_message_go_to_everyone_whole() -> None:
    message = Message.of(Meeting(box(), {"age": torch.arange(3)}, None), common=("inbox/pool",))
    some = message.rows([2, 0]).open()
    assert some.node["age"].tolist() == [2, 0]
    assert some.inbox.own.tolist() == [2, 0]
    assert some.inbox.pool.model["w"].tolist() == [0.0, 1.0, 2.0, 3.0]


def box() -> Inbox:
    pool = Answers({"w": torch.arange(4.0)}, None, torch.empty(4, 0, dtype=torch.int64))
    return Inbox(pool, torch.arange(3), torch.zeros(3, 1), torch.zeros(3, 1), torch.ones(3))


def test_work_among_peers_is_not_booked_as_a_server_s(digits: OwnPopulation) -> None:
    method = FedAvg()
    task = Task(small_net, digits.shape, digits.classes, digits.normalise)
    fed = Simulator(method, task, digits, seed=0, options=EngineOptions(workers=1))
    sent = Models(stack([task.init(0)]))
    fed.ask(method.judge, digits.ids, each=sent, rows=[0] * 9, counted=False)
    assert (fed.ledger.down["train"], fed.ledger.up["train"]) == (0, 0)
    answered = torch.tensor([[True, True], [True, False]])
    arrivals = fed.exchange(["c0", "c1"], answered, torch.tensor([10, 7]))
    assert torch.equal(arrivals == int(Arrival.FRESH), answered)
    assert (fed.ledger.down["train"], fed.ledger.up["train"]) == (27, 27)

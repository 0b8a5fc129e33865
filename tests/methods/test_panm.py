"""PANM: its stages on given similarities, its cost, and that it finds groups nobody told it of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from experiments.panm_theory import models_received
from torch import Tensor

from coterie import run
from coterie.core.cohort import Cohort
from coterie.core.task import Task
from coterie.data import build
from coterie.data.own import OwnPopulation
from coterie.methods.p2p.base import Answers, Inbox, PeerView
from coterie.methods.p2p.topology import (
    NO_PEER,
    as_rows,
    members,
    peer_key,
    peer_keys,
)
from coterie.methods.panm.method import PANM
from coterie.methods.panm.ours import PAPER
from coterie.methods.panm.settings import Matching
from coterie.models import build_model
from coterie.simulation.faults import Faults
from coterie.simulation.simulator import EngineOptions

from ..tiny import cohort, made, one_weight, rows, small_net

NAMES = [f"p{i:02d}" for i in range(30)]


@dataclass(frozen=True)
class Told(PANM):
    """PANM whose similarities are given: 1 to peers in `friends`, less to later names."""

    name: ClassVar[str] = "told"
    sketch_length: int = 0
    forget: float = 0.0
    friends: tuple[str, ...] = ()

    def measure(self, c: Cohort, node: Matching, inbox: Inbox) -> Tensor:
        """1 for friends, 0.1 and less for others, 0 where nothing came."""
        value = {peer_key(name): 0.1 - 0.001 * i for i, name in enumerate(NAMES)}
        value |= {peer_key(name): 1.0 - 0.001 * i for i, name in enumerate(self.friends)}
        return torch.tensor([[value.get(key, 0.0) for key in keys] for keys in inbox.keys.tolist()]) * inbox.mask


def asked(wanted: list[str], silent: tuple[str, ...] = ()) -> Inbox:
    """What one peer gets from those it asked; the models are 0, 1, 2, ..."""
    keys = torch.from_numpy(peer_keys(wanted))[None]
    index = torch.tensor([[-1 if name in silent else i + 1 for i, name in enumerate(wanted)]])
    pool = Answers({"weight": torch.arange(float(len(wanted) + 1)).view(-1, 1, 1)}, None, torch.empty(0, 0))
    return Inbox(pool, torch.zeros(1, dtype=torch.int64), keys, index, torch.tensor([29]))


def node(neighbours: list[str], age: int) -> Matching:
    return replace(Matching.first(1, 0, 0), neighbours=as_rows([peer_keys(neighbours)]), age=torch.tensor([age]))


def selected(method: PANM, c: Cohort, before: Matching, inbox: Inbox) -> tuple[Matching, Tensor]:
    """What a peer makes of the answers it has measured."""
    return method.select(c, before, inbox, method.measure(c, before, inbox))


def lone(round: int = 0) -> Cohort:
    task = Task(one_weight, (1,), 10, loss="mse")
    return replace(cohort(rows(([1.0], [1])), task), round=round)


def names(keys: Any) -> list[str]:
    by_key = {peer_key(name): name for name in NAMES}
    return sorted(by_key[int(key)] for key in keys)


def view(reachable: list[str] | None = None) -> PeerView:
    everyone = np.sort(peer_keys(NAMES))
    known = None if reachable is None else (np.sort(peer_keys(reachable)),)
    return PeerView(("p00",), 3, 0, everyone, known)


FRIENDS = ("p01", "p02", "p03", "p04")


def test_stage_one_asks_neighbours_and_strangers_and_keeps_the_most_similar() -> None:
    method = Told(l=3, k=2, t1=5, friends=FRIENDS)
    wanted = names(members(method.choose(node(["p09", "p01"], 1), view()).keys[0]))
    assert len(wanted) == 5
    assert {"p09", "p01"} < set(wanted)
    assert "p00" not in wanted
    after, chosen = selected(method, lone(), node(["p09", "p01"], 1), asked(["p09", "p01", "p20", "p03", "p10"]))
    assert names(members(after.neighbours[0])) == ["p01", "p03"]
    assert chosen.tolist() == [[False, True, False, True, False]]
    assert after.age.tolist() == [2]


def test_the_first_round_has_only_strangers() -> None:
    assert len(members(Told(l=3, k=2, t1=5).choose(node([], 0), view()).keys[0])) == 3


def test_silent_neighbours_stay_where_too_few_answer() -> None:
    method = Told(l=2, k=3, t1=5, friends=FRIENDS)
    before = node(["p01", "p02", "p09"], 1)
    after, _ = selected(method, lone(), before, asked(["p01", "p02", "p09", "p03"], silent=("p01", "p02", "p09")))
    assert "p03" in names(members(after.neighbours[0]))
    assert len(members(after.neighbours[0])) == 3
    nobody, chosen = selected(method, lone(), before, asked(["p01", "p09"], silent=("p01", "p09")))
    assert names(members(nobody.neighbours[0])) == ["p01", "p02", "p09"]
    assert not chosen.any()


def test_gossip_asks_k_of_the_neighbours_and_takes_them_all() -> None:
    method = Told(l=3, k=2, t1=5, tau=10, friends=FRIENDS)
    before = node(["p01", "p02", "p03"], 6)
    wanted = names(members(method.choose(before, view()).keys[0]))
    assert len(wanted) == 2
    assert set(wanted) < {"p01", "p02", "p03"}
    after, chosen = selected(method, lone(), before, asked(wanted))
    assert names(members(after.neighbours[0])) == ["p01", "p02", "p03"]
    assert chosen.all()
    assert after.scored.shape[1] == 0 or not (after.scored != NO_PEER).any()


def test_matching_drops_strangers_and_takes_in_friends() -> None:
    """N = {p01, p02, p09, p05}, all asked (l = 4) with candidates p03, p04, p20, p21: (N - S) + H = p01 to p04."""
    method = Told(l=4, k=2, t1=5, tau=10, friends=FRIENDS)
    before = node(["p01", "p02", "p09", "p05"], 9)
    assert method.stage(9, [1]) == "match"
    wanted = names(members(method.choose(before, view()).keys[0]))
    assert {"p01", "p02", "p05", "p09"} < set(wanted)
    assert len(wanted) == 8
    after, chosen = selected(method, lone(9), before, asked(["p01", "p02", "p09", "p05", "p03", "p04", "p20", "p21"]))
    assert names(members(after.neighbours[0])) == ["p01", "p02", "p03", "p04"]
    assert int(chosen.sum()) == 2
    assert not chosen[0, [2, 3, 6, 7]].any()


def test_matching_leaves_neighbours_alone_that_were_not_asked_or_are_silent() -> None:
    method = Told(l=2, k=2, t1=5, tau=10, friends=FRIENDS)
    before = node(["p01", "p02", "p09", "p11"], 9)
    after, _ = selected(method, lone(9), before, asked(["p01", "p09", "p03", "p20"], silent=("p09",)))
    assert names(members(after.neighbours[0])) == ["p01", "p02", "p03", "p09", "p11"]


def test_with_few_neighbours_more_candidates_are_asked() -> None:
    before = node(["p01"], 9)
    filled = Told(l=4, k=2, t1=5, tau=10).choose(before, view())
    plain = Told(l=4, k=2, t1=5, tau=10, fill=False).choose(before, view())
    assert len(members(filled.keys[0])) == 8
    assert len(members(plain.keys[0])) == 5


def test_more_neighbours_wanted_than_peers_known() -> None:
    method = Told(l=10, k=9, t1=5, friends=FRIENDS)
    wanted = names(members(method.choose(node([], 0), view(["p01", "p07"])).keys[0]))
    assert wanted == ["p01", "p07"]
    after, chosen = selected(method, lone(), node([], 0), asked(wanted))
    assert names(members(after.neighbours[0])) == ["p01", "p07"]
    assert chosen.all()
    alone = method.choose(node([], 0), view([]))
    assert not len(members(alone.keys[0]))
    still, _ = selected(method, lone(), node([], 0), asked([]))
    assert not len(members(still.neighbours[0]))


def test_a_peer_whose_neighbours_are_all_gone_looks_for_new_ones() -> None:
    method = Told(l=3, k=2, t1=5, tau=10, friends=FRIENDS)
    before = node(["p20", "p21"], 6)
    wanted = names(members(method.choose(before, view(["p01", "p02", "p09"])).keys[0]))
    assert wanted == ["p01", "p02", "p09"]
    after, _ = selected(method, lone(6), before, asked(wanted))
    assert names(members(after.neighbours[0])) == ["p01", "p02"]


def test_only_measuring_rounds_ask_for_the_change() -> None:
    method = Told(l=3, k=2, t1=5, tau=10)
    for age, neighbours, expected in ((0, [], True), (6, ["p01"], False), (9, ["p01"], True)):
        before = node(neighbours, age)
        assert method.choose(before, view()).starts.tolist() == [expected]
        assert replace(method, metric="loss").choose(before, view()).starts.tolist() == [False]
        assert replace(method, alpha=0.0).choose(before, view()).starts.tolist() == [False]


def test_the_papers_preset_has_nothing_of_ours() -> None:
    literal = PANM.preset("paper")
    assert (literal.weigh, literal.fill, literal.rules) == ("fixed", False, PAPER)


def test_identical_peers_have_no_direction(digits: OwnPopulation) -> None:
    """A learning rate too small to move anything: all differences are zero, all cosines 0, and the run goes on."""
    first = run(made("panm", lr=1e-30, t1=1, tau=1), digits, small_net, rounds=1, seed=1)
    assert bool((first.state.node["similarity"] == 0).all())
    later = run(made("panm", lr=1e-30, t1=1, tau=1), digits, small_net, rounds=3, seed=1)
    assert bool((later.state.node["neighbours"] != NO_PEER).any(1).all())


@pytest.mark.parametrize("k", [2, 3])
def test_the_cost_of_table_6_is_what_the_ledger_says(k: int) -> None:
    """l = 4, tau = 10, T1 = 100, T2 = 200: 1118 models a peer with k = 2, 1397 with k = 3; and a tenth of all rounds.

    The data are one number: w x with targets 0 or 9, so that the two groups are easily told apart. Every answer carries
    one model, with the loss as metric.
    """
    clients = {}
    for number in range(12):
        clients[f"p{number:03d}"] = ([1.0], [9 * (number % 2)])
    population = many(clients)
    method = PANM(
        l=4, k=k, t1=10, tau=5, metric="loss", loss_score="negative", epochs=1, batch=0, lr=0.05, momentum=0.0
    )
    alone = EngineOptions(workers=1)
    result = run(method, population, one_weight, rounds=30, loss="mse", evaluate_every=30, engine=alone)
    assert models_received(4, k, 100, 200, 10) == {2: 1118, 3: 1397}[k]
    expected = models_received(4, k, 10, 20, 5)
    assert set(result.state.received.tolist()) == {expected}
    assert result.bytes_down % (12 * expected) == 0
    assert result.state.history[-1]["precision"] == 1.0


def many(clients: dict[str, tuple[list[float], list[int]]]) -> OwnPopulation:
    one = rows(*[next(iter(clients.values()))])
    data = {}
    for name, (x, y) in clients.items():
        made_ = rows((x, y))
        data[name] = made_.clients["a"]
    return replace(one, clients=data, groups={name: y[0] // 9 for name, (_, y) in clients.items()})


@pytest.mark.parametrize("metric", ["grad", "loss"])
def test_the_groups_of_rotated_digits_are_found(metric: str) -> None:
    """16 peers in two rotations; nobody is told that there are two groups."""
    population = build("rotated-digits", seed=0, clients=16, groups=2, samples=35, test_samples=50)
    method = PANM(l=6, k=3, t1=6, tau=2, metric=metric, epochs=5, lr=0.1)  # type: ignore[arg-type]
    result = run(
        method,
        population,
        lambda: build_model("digits-mlp", tuple(population.shape), population.classes),
        rounds=12,
        seed=0,
        evaluate_every=12,
    )
    last = result.state.history[-1]
    assert last["precision"] > 0.9
    assert last["recall"] > 0.6
    assert result.ari == 1.0
    assert result.n_clusters == 2


def test_late_weighing_is_the_papers_in_stage_one_and_fishers_after_it(digits: OwnPopulation) -> None:
    def similarities(weigh: str, rounds: int) -> Tensor:
        method = made("panm", t1=3, tau=1, l=3, k=2, weigh=weigh)
        state = run(method, digits, small_net, rounds=rounds, seed=1).state
        return torch.as_tensor(state.node["similarity"])

    assert similarities("late", 3).equal(similarities("fixed", 3))
    assert not similarities("fisher", 3).equal(similarities("fixed", 3))
    assert not similarities("late", 4).equal(similarities("fixed", 4))


def test_lists_never_become_empty_under_churn(digits: OwnPopulation) -> None:
    faults = Faults(crash=0.2, freeze=0.2, loss=0.3, outage=2)
    result = run(made("panm", t1=2, tau=1, k=2, l=3), digits, small_net, rounds=8, seed=3, faults=faults)
    had = torch.tensor([bool((scored != NO_PEER).any()) for scored in result.state.node["scored"]])
    has = (result.state.node["neighbours"] != NO_PEER).any(1)
    assert bool(has[had].all())

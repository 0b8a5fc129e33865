"""PANM by sketches (ours), by hand: projections, memory of those who sleep, data that change, no groups at all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie import run
from coterie.core.states import spread
from coterie.core.task import Task
from coterie.data import build
from coterie.data.own import OwnPopulation
from coterie.methods.p2p.base import Answers, Inbox, Sketched
from coterie.methods.p2p.inbox import sketches_of
from coterie.methods.p2p.sketch import centred, cosines, lengths, sketched
from coterie.methods.p2p.topology import NO_PEER, members
from coterie.methods.panm.additions import blank, forgetting, judged
from coterie.methods.panm.looks import (
    answering,
    by_sketch,
    compared,
    recalled,
    remembered,
    strayed,
    to_ask,
    undivided,
    walked,
)
from coterie.methods.panm.method import PANM
from coterie.methods.panm.settings import Matching
from coterie.models import build_model
from coterie.simulation.faults import Faults

from ..tiny import cohort, made, small_net

TASK = Task(small_net, (1, 8, 8), 10, dtype=torch.float64)


def models(number: int, seed: int = 0) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {name: torch.randn(number, *t.shape, generator=g, dtype=t.dtype) for name, t in TASK.template.items()}


def looks(*numbers: list[int]) -> Tensor:
    """Sketches of length 2 whose two directions are the same, [n, 2, 2]."""
    return torch.tensor(numbers, dtype=torch.int8)[:, None, :].repeat(1, 2, 1)


def inbox(sketches: Tensor, keys: list[int], index: list[int]) -> Inbox:
    """One peer whose own sketch is the first."""
    pool = Answers({}, None, torch.empty(len(sketches), 0, dtype=torch.int64))
    own, known = torch.zeros(1, dtype=torch.int64), torch.tensor([9])
    return Inbox(pool, own, torch.tensor([keys]), torch.tensor([index]), known, sketches)


def test_cosines_of_sketches_are_those_of_the_ways() -> None:
    """Within five times 1 / sqrt(512); models that share a part have a cosine of about 0.5."""
    a, common, origin = models(6), models(1, 1), models(1, 2)
    ends = {name: t + common[name] for name, t in a.items()}
    begins = {name: torch.zeros_like(t) for name, t in origin.items()}
    rough = cosines(sketched(TASK, 3, 512, ends, [begins])[:, 0].numpy())
    flat = torch.cat([ends[name].reshape(6, -1) for name in TASK.parameters], 1)
    exact = torch.cosine_similarity(flat[:, None], flat[None], dim=2).numpy()
    assert np.abs(rough - exact).max() < 5 / 512**0.5
    assert 0.4 < exact[0, 1] < 0.6


def test_a_sketch_depends_on_the_model_and_the_seed_and_not_on_company() -> None:
    ends, begins = models(5), spread(TASK.template, 5)
    whole = sketched(TASK, 3, 64, ends, [begins, begins])
    assert whole.shape == (5, 2, 64)
    assert whole.dtype == torch.int8
    for place in range(5):
        alone = {name: t[place : place + 1] for name, t in ends.items()}
        assert sketched(TASK, 3, 64, alone, [spread(TASK.template, 1)])[0, 0].equal(whole[place, 0])
    assert not sketched(TASK, 4, 64, ends, [begins])[0, 0].equal(whole[0, 0])
    assert not sketched(TASK, 3, 64, begins, [begins]).any()
    assert lengths(TASK, begins, begins).tolist() == [0.0] * 5


def test_how_far_a_model_has_gone_by_hand() -> None:
    task = Task(lambda: torch.nn.Linear(2, 1, bias=False), (2,), 1)
    begin, end = {"weight": torch.tensor([[[1.0, 1.0]]])}, {"weight": torch.tensor([[[4.0, 5.0]]])}
    assert lengths(task, end, begin).tolist() == [5.0]


def test_cosines_and_their_centre_by_hand() -> None:
    """(3, 4), (6, 8) and (4, -3): 1, 0 and 0. Units u, u, v: the centre is (2u + v) / 3, u - c = (u - v) / 3 and
    v - c = -2 (u - v) / 3, so that from the centre the two are opposite."""
    plain = cosines(np.array([[3, 4], [6, 8], [4, -3], [0, 0]], dtype=np.int8))
    assert plain[0].tolist() == pytest.approx([1.0, 1.0, 0.0, 0.0])
    assert centred(plain[:3, :3]).tolist() == [pytest.approx(row) for row in ([1, 1, -1], [1, 1, -1], [-1, -1, 1])]
    assert not centred(np.ones((3, 3))).any()  # all the same: nothing to tell apart


def test_those_who_sleep_are_compared_with_too() -> None:
    """Own (1, 0). Peer 7 answers with (1, 0); peers 7 and 8 are remembered, 8 with (-1, 0), which is opposite."""
    met, old = torch.tensor([[7, 8]]), torch.zeros(1, 3, 2, 2, dtype=torch.int8)
    old[0, :2] = looks([0, 5], [-5, 0])
    box = inbox(looks([5, 0], [5, 0]), [7, 9], [1, -1])
    seen = recalled(box, met, old)
    assert seen.keys.tolist() == [[7, 9, 7, 8]]
    assert seen.valid.tolist() == [[True, False, False, True]]
    assert seen.came.tolist() == [[True, False, False, False]]
    similarity = by_sketch(looks([5, 0]), seen, 0.0, None)
    assert similarity[0].tolist() == pytest.approx([1.0, 0.0, 0.0, -1.0])
    mixed = by_sketch(looks([5, 0]), seen, 0.5, None)  # theta1 of the sleeper is the mean of those who answered, 1
    assert mixed[0].tolist() == pytest.approx([1.0, 0.0, 0.0, 0.0])
    keys, kept = remembered(seen, torch.tensor([True]), met, old)
    assert members(keys[0]).tolist() == [7, 8]
    assert kept[0, :2].tolist() == looks([5, 0], [-5, 0]).tolist()
    same, untouched = remembered(seen, torch.tensor([False]), met, old)
    assert (members(same[0]).tolist(), untouched.equal(old)) == ([7, 8], True)
    full, _ = remembered(seen, torch.tensor([True]), met, old[:, :1])  # room for one: the one that was met now
    assert members(full[0]).tolist() == [7]
    assert compared(box).valid.tolist() == [[True, False]]


def test_data_that_change_show_in_the_stride() -> None:
    """The first 2, then 1, 1, 9: the median of the last is 1, so 3.1 is more than 3 times it and than 1.5 times 2."""
    past = torch.tensor([[2.0, 9.0, 1.0, 1.0, 0.0, 0.0]])
    for stride, expected in ((3.1, True), (3.0, False), (2.9, False)):
        assert strayed(past, torch.tensor([stride]), 3.0).tolist() == [expected]
    assert not strayed(torch.tensor([[3.0, 1.0, 1.0, 1.0]]), torch.tensor([4.4]), 3.0)  # less than 1.5 times the first
    assert not strayed(torch.tensor([[1.0, 1.0, 1.0, 0.0]]), torch.tensor([99.0]), 3.0)  # too soon to judge
    none = torch.zeros(1, 4)
    for stride in (5.0, 1.0, 2.0, 3.0):
        none = walked(none, torch.tensor([stride]))
    assert none.tolist() == [[5.0, 3.0, 2.0, 1.0]]


def test_as_many_are_asked_as_it_takes() -> None:
    assert [to_ask(10, rate) for rate in (1.0, 0.5, 0.3, 0.0)] == [10, 20, 34, 100]
    asked, came = torch.ones(2, 4, dtype=torch.bool), torch.tensor([[True, False, False, False]] * 2)
    rate = answering(torch.ones(2).double(), asked, came, torch.tensor([True, False]))
    assert rate.tolist() == pytest.approx([0.3 + 0.7 / 4, 1.0])


def test_one_group_is_not_divided() -> None:
    """Three ways that are nearly own are one group, with one far away there are two."""
    same = torch.tensor([[True, False, False]])
    for theirs, expected in ((looks([99, 9], [99, 12], [99, 14]), True), (looks([99, 2], [99, 1], [-9, 99]), False)):
        box = inbox(torch.cat([looks([99, 0]), theirs]), [1, 2, 3], [1, 2, 3])
        seen = recalled(box, torch.empty(1, 0, dtype=torch.int64), torch.zeros(1, 0, 2, 2, dtype=torch.int8))
        assert undivided(looks([99, 0]), seen, same).tolist() == [expected]


def test_a_peer_that_strays_restarts() -> None:
    """Its list and its age go, the models it chose are left, its model becomes the common one; its fellow's do not."""
    method = PANM(l=2, k=1)
    before = replace(blank(method, 2), age=torch.tensor([7, 7]), strides=torch.ones(2, 6).double())
    after = replace(before, neighbours=torch.tensor([[5], [6]]), age=torch.tensor([8, 8]))
    box = replace(inbox(looks([1, 0]), [5], [0]), stride=torch.tensor([9.0, 1.0]).double())
    node, chosen = forgetting(method, before, after, box, torch.ones(2, 1, dtype=torch.bool))
    assert node.neighbours.tolist() == [[NO_PEER], [6]]
    assert node.age.tolist() == [0, 8]
    assert chosen.tolist() == [[False], [True]]
    stack = method.restarted({"w": torch.tensor([[3.0], [4.0]])}, node, {"w": torch.tensor([1.0])})
    assert stack["w"].tolist() == [[1.0], [4.0]]


def test_a_node_of_an_older_version_is_read() -> None:
    method = PANM()
    old = {"neighbours": torch.tensor([[3]]), "age": torch.tensor([4])}
    old |= {"scored": torch.tensor([[3]]), "similarity": torch.tensor([[0.5]])}
    node = method.unpack_node(old)
    assert isinstance(node, Matching)
    assert (node.age.tolist(), node.rate.tolist(), node.looks.shape) == ([4], [1.0], (1, 40, 2, 512))


def test_a_sketch_of_another_length_is_refused() -> None:
    none = torch.empty(1, 0, dtype=torch.int64)
    own, short = Sketched(looks([1, 2]), none), Sketched(looks([1, 2])[:, :, :1], none)
    box, bad = sketches_of(own, [4, 5, 6], {4: own, 5: short}, 3, None)
    assert box.index.tolist() == [[1, -1, -1]]
    assert [failure.reason for failure in bad.values()] == ["its sketch is not of the agreed length"]


def test_halves_are_apart_and_make_the_whole(digits: OwnPopulation) -> None:
    method = PANM(metric="loss", judge="half")
    c = cohort(digits, TASK)
    for data, half in zip(c.data, judged(method, c), strict=True):
        assert len(half) == len(data.train) // 2
    assert [len(part) for part in judged(PANM(metric="loss"), c)] == [len(part) for part in c.part("valid")]


def test_sketches_cost_little_beside_the_models() -> None:
    """At most 1.3 times gossip's bytes with as many partners, and the groups are found all the same."""
    population = build("rotated-digits", seed=0, clients=16, groups=2, samples=20, test_samples=10)

    def net() -> torch.nn.Module:
        return build_model("digits-mlp", tuple(population.shape), population.classes)

    results = {
        name: run(made(name, k=5, l=10), population, net, rounds=8, seed=0, evaluate_every=8)
        for name in ("gossip", "panm")
    }
    assert results["panm"].bytes_down < 1.3 * results["gossip"].bytes_down
    assert (results["panm"].ari or 0.0) > 0.7


def test_half_of_the_peers_asleep() -> None:
    population = build("rotated-digits", seed=0, clients=16, groups=2, samples=20, test_samples=10)

    def net() -> torch.nn.Module:
        return build_model("digits-mlp", tuple(population.shape), population.classes)

    faults = Faults(dropout=0.5)
    result = run(made("panm", k=3, l=6), population, net, rounds=16, seed=0, evaluate_every=16, faults=faults)
    assert result.ari is not None
    assert result.ari > 0.7

"""auto: groups that train at a rate of their own, and clients that have nothing to adapt to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from coterie import Result, run
from coterie.core import wire
from coterie.core.optimiser import Optimiser
from coterie.core.samples import ClientData, Normalise, Samples
from coterie.core.states import count, row, spread, stack
from coterie.core.task import Task
from coterie.core.training import local_sgd
from coterie.data.own import OwnPopulation
from coterie.methods import METHODS
from coterie.methods.auto import groups, pace, personal
from coterie.methods.auto.messages import Groups, Known, Pace, Visit
from coterie.methods.auto.method import Auto
from coterie.methods.auto.proposals import own_ways
from coterie.methods.auto.visits import Came
from coterie.runs.config import from_tables
from coterie.runs.experiment import execute
from coterie.simulation.simulator import EngineOptions, Simulator

from ..tiny import cohort, small_net
from .test_auto_proposals import looks_of

_NAMES = ("a", "b", "c", "d", "e", "f")


def state_of(loss: float, paces: dict[str, Pace]) -> Groups:
    """Six clients of one group, whose model is 2 and was 1 and has learnt; each had this loss when it last came."""
    models, before = (stack([{"w": torch.tensor([number])}]) for number in (2.0, 1.0))
    known = {name: Known(1, 10.0, loss) for name in _NAMES}
    return Groups(
        models, before, dict.fromkeys(_NAMES, 0), known, {}, {}, {}, visits=6, paces=paces, first_loss=2 * loss
    )


def came(*losses: float) -> Came:
    """The first of them, with the loss of each on arrival."""
    number = len(losses)
    models = {"w": torch.zeros(number, 1)}
    return Came(_NAMES[:number], Visit(models, torch.ones(number), torch.tensor(losses)), models, [0] * number)


def test_rounds_that_most_lose_by_are_taken_back() -> None:
    """Four of six must lose, five where labels are uneven, and the median of all more than 1 %; and that twice."""
    doubted = {"0": Pace(1.0, [], {"w": torch.tensor([1.0])}, doubted=True, waited=1)}
    for losses, uneven, taken in [
        ((1.2, 1.2, 1.2, 1.2, 0.9, 0.9), False, True),
        ((1.2, 1.2, 1.2, 1.2, 0.9, 0.9), True, False),
        ((1.2, 1.2, 1.2, 1.2, 1.2, 1.2), True, True),
        ((1.2, 1.2, 1.2, 0.9, 0.9, 0.9), False, False),
        ((1.005,) * 6, False, False),
    ]:
        state, back, held, afresh = pace.judged(state_of(1.0, doubted), [came(*losses)], uneven)
        assert not afresh
        assert back == held == ({0} if taken else set()), losses
        assert state.pace.tolist() == [0.5 if taken else 1.0]
        assert not state.paces["0"].doubted
        assert row(pace.taken_back(state, state.models, back), 0)["w"].item() == (1.0 if taken else 2.0)
        assert state.paces["0"].good["w"].item() == (1.0 if taken else 2.0), "what was not lost by is good"


def test_one_bad_round_after_a_good_one_is_a_doubt() -> None:
    """The group goes on as fast as before; what its members are known to lose stays that of the good model."""
    good = {"0": Pace(0.5, [], {"w": torch.tensor([1.0])})}
    state, back, held, _ = pace.judged(state_of(1.0, good), [came(*(1.5,) * 6)], False)
    assert (back, held, state.pace.tolist()) == (set(), {0}, [0.5])
    assert (state.paces["0"].doubted, state.paces["0"].good["w"].item()) == (True, 1.0)
    state, back, held, _ = pace.judged(state, [came(1.5, 1.5)], False)
    assert (back, held, len(state.paces["0"].rises)) == (set(), {0}, 2), "two of six say nothing yet"
    after = pace.judged(state, [came(0.9, 0.9)], False)
    assert (after.back, after.held, after.state.paces["0"].doubted) == (set(), set(), False), "half have recovered"
    after = pace.judged(state, [came(1.5, 1.5)], False)
    assert (after.back, after.held, after.state.pace.tolist()) == ({0}, {0}, [0.25])


def test_a_network_that_has_not_learnt_may_lose_by_two_rounds() -> None:
    """At 0.51 of its first loss it has not learnt, at 0.5 it has; a good round begins the count again."""
    worse, better = [came(*(1.5,) * 6)], [came(*(0.9,) * 6)]
    for first_loss, rounds in ((2.0, 1), (1.96, 2)):
        state = replace(state_of(1.0, {"0": Pace(1.0, [], {"w": torch.tensor([1.0])})}), first_loss=first_loss)
        for _ in range(rounds):
            state, back, held, _ = pace.judged(state, worse, False)
            assert (back, held) == (set(), {0})
        assert pace.judged(state, better, False).state.paces["0"].waited == 0
        state, back, _, _ = pace.judged(state, worse, False)
        assert (back, state.pace.tolist(), state.paces["0"].waited) == ({0}, [0.5], 0)


def test_a_group_in_doubt_is_held_to_the_losses_of_its_good_model(digits: OwnPopulation) -> None:
    """Losses 1 -> 1.2 -> 1.1: the second is better than the first, and still worse than the good one."""
    fed = Simulator(Auto(), Task.of(small_net, digits), digits, seed=0, options=EngineOptions(workers=1))
    state = state_of(1.0, {"0": Pace(1.0, [], {"w": torch.tensor([1.0])})})
    for loss, slower in ((1.2, False), (1.1, True)):
        sent = spread({"w": torch.tensor([2.0])}, 6)
        visit = Visit({"w": torch.full((6, 1), 3.0)}, torch.ones(6), torch.full((6,), loss))
        state = groups.averaged(state, [Came(_NAMES, visit, sent, [0] * 6)], "mean", fed)
        assert {known.loss for known in state.known.values()} == {1.0}
        assert (state.pace.tolist(), state.models["w"].item()) == (([0.5], 1.0) if slower else ([1.0], 3.0))


def test_who_comes_to_a_group_in_doubt_is_compared_from_its_next_good_model_on(digits: OwnPopulation) -> None:
    """e lost 0.1 elsewhere and f is new: with the good model both lose 1, as the others do, and have lost nothing.

    Losses 1 -> 1.2 -> 1: the second is a doubt, the third is as good as the first.
    """
    fed = Simulator(Auto(), Task.of(small_net, digits), digits, seed=0, options=EngineOptions(workers=1))
    state = state_of(1.0, {"0": Pace(1.0, [], {"w": torch.tensor([1.0])})})
    known = {name: known for name, known in state.known.items() if name != "f"}
    state = replace(state, known={**known, "e": Known(3, 10.0, 0.1)}, arrived=["e"])
    for loss, waiting in ((1.2, ["e", "f"]), (1.0, [])):
        sent = spread({"w": torch.tensor([2.0])}, 6)
        visit = Visit({"w": torch.full((6, 1), 3.0)}, torch.ones(6), torch.full((6,), loss))
        state = groups.averaged(state, [Came(_NAMES, visit, sent, [0] * 6)], "mean", fed)
        assert (state.arrived, state.paces["0"].doubted) == (waiting, bool(waiting))
    assert {known.loss for known in state.known.values()} == {1.0}


def test_a_group_stays_in_doubt_where_nobody_comes_who_can_tell() -> None:
    doubted = {"0": Pace(1.0, [], {"w": torch.tensor([1.0])}, doubted=True)}
    state, back, held, _ = pace.judged(replace(state_of(1.0, doubted), arrived=["a", "b"]), [came(1.5, 1.5)], False)
    assert (back, held, state.arrived) == (set(), {0}, ["a", "b"])


def test_few_at_a_time_are_judged_together() -> None:
    """Two of six say nothing yet; two more make four, which is enough. The model of before is the good one at first."""
    state, back, *_ = pace.judged(state_of(1.0, {}), [came(1.5, 1.5)], False)
    assert (back, state.paces["0"].share, len(state.paces["0"].rises)) == (set(), 1.0, 2)
    state, back, *_ = pace.judged(state, [came(1.5, 1.5)], False)
    assert (back, state.paces["0"].share, state.paces["0"].rises) == ({0}, 0.5, [])
    assert state.paces["0"].good["w"].item() == 1


def test_what_is_known_of_a_group_ends_where_its_clients_move() -> None:
    state = state_of(1.0, {"0": Pace(0.25, [0.1], {"w": torch.tensor([1.0])})})
    assert pace.kept(state, []) is state
    moved = pace.kept(state, ["b", "a"])
    assert moved.paces == {"0": Pace(0.25, [], {})}
    assert moved.arrived == ["a", "b"]


def test_what_newcomers_of_a_group_lost_elsewhere_does_not_count() -> None:
    """All six lose more than in their groups of before, four of which are new here: two say too little."""
    state = replace(state_of(1.0, {}), arrived=["a", "b", "c", "d"])
    state, back, _, afresh = pace.judged(state, [came(*(1.5,) * 6)], False)
    assert (back, afresh, state.arrived) == (set(), {"a", "b", "c", "d"}, [])
    assert len(state.paces["0"].rises) == 2


def test_where_the_good_model_does_worse_too_the_data_have_changed() -> None:
    """Taken back and slowed once; with the same losses again the group goes on from where it is, as fast as before."""
    state, back, _, afresh = pace.judged(state_of(1.0, {}), [came(*(1.5,) * 6)], False)
    assert (back, afresh, state.paces["0"].share, state.paces["0"].restored) == ({0}, set(), 0.5, True)
    state, back, held, afresh = pace.judged(state, [came(*(1.5,) * 6)], False)
    assert (back, held, afresh) == (set(), set(), set(_NAMES))
    assert (state.paces["0"].share, state.paces["0"].restored) == (1.0, False)


def test_a_new_group_after_a_drift_learns() -> None:
    """A fifth of the clients drift to a group that nobody was in: 14 points were lost where these were held back."""
    scenario = {"name": "rotated-digits", "group_sizes": "4,4,4,4,0", "drift": "5:0.25", "drift_to": "new"}
    tables = {"method": "auto", "scenario": scenario, "rounds": 14, "evaluate_every": 14, "engine": {"workers": 1}}
    result = execute(from_tables(tables), None)
    assert result.ari == 1
    assert result.accuracy > 0.8


def test_a_checkpoint_without_paces_is_read() -> None:
    """One that an older version has written; other fields must be there."""
    skeleton, tensors = wire.pack(state_of(1.0, {"0": Pace(0.5, [], {})}))
    assert wire.unpack(Groups, skeleton, tensors).pace.tolist() == [0.5]
    assert isinstance(skeleton, dict)
    old = {name: part for name, part in skeleton.items() if name != "paces"}
    assert wire.unpack(Groups, old, tensors).pace.tolist() == [1.0]
    with pytest.raises(wire.WireError):
        wire.unpack(Groups, {name: part for name, part in old.items() if name != "visits"}, tensors)


def test_each_client_trains_at_its_own_pace(digits: OwnPopulation) -> None:
    """Half the rate for all is that rate; in a mixed cohort each row is as by itself, and at 0 a model stays."""
    task = Task(small_net, digits.shape, digits.classes, digits.normalise)
    c = cohort(digits, task)
    start, opt = spread(task.init(0), len(c)), Optimiser(lr=0.1, lr_decay=0.9)
    share = torch.tensor([(1.0, 0.5, 0.0)[index % 3] for index in range(len(c))], dtype=torch.float64)
    mixed = pace.trained(c, start, opt, share)
    full, half = (local_sgd(c, start, Optimiser(lr=rate)) for rate in (0.1, 0.05))
    for index, value in enumerate(share.tolist()):
        expected = {1.0: full, 0.5: half, 0.0: start}[value]
        assert all(torch.equal(mixed[name][index], expected[name][index]) for name in expected)


def two_scales() -> OwnPopulation:
    """Two groups with opposite labels, of which one measures in other units: a rate that suits one kills the other."""
    clients, truth = {}, {}
    for number in range(12):
        generator = torch.Generator().manual_seed(number)
        group = number % 2
        x = torch.randn(80, 6, generator=generator)
        y = (x[:, :3].sum(1) > x[:, 3:].sum(1)).long()
        x, y = (12 * x, 1 - y) if group else (x, y)
        clients[f"c{number:02}"] = ClientData(Samples(x[:40], y[:40]), Samples(x[40:], y[40:]))
        truth[f"c{number:02}"] = group
    return OwnPopulation(clients, (6,), 2, Normalise(), truth)


def fast_run() -> Result:
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))
    engine = EngineOptions(workers=1)
    return run(METHODS["auto"](lr=0.5, batch=8), two_scales(), net, rounds=12, seed=1, engine=engine, evaluate_every=12)


def test_a_rate_that_is_too_high_for_one_group_does_not_ruin_it(monkeypatch: pytest.MonkeyPatch) -> None:
    saved = fast_run()
    slow = [float(share) for share in saved.state.pace]
    assert min(slow) < 1, "nothing was taken back"
    assert any("taken back" in event.text for event in saved.state.events)
    monkeypatch.setattr(pace, "lost", lambda *_: False)
    ruined = fast_run()
    assert count(ruined.state.models) == count(saved.state.models)
    assert saved.accuracy > ruined.accuracy + 0.05


def test_ways_of_their_own_show_in_both_halves() -> None:
    """Beyond its group a client shows noise, other in each half; with a way of its own it shows that in both."""
    group = [0, 1] * 12
    cluster = {f"c{number:02d}": own for number, own in enumerate(group)}
    without = [own_ways(looks_of(group, 0.5, seed=seed), cluster) for seed in range(10)]
    assert np.abs(without).max() < 3
    assert own_ways(looks_of(group, 0.5, own=0.7), cluster) > 6
    assert own_ways({}, {}) == 0


def test_clients_with_nothing_to_adapt_to_keep_their_groups_model() -> None:
    """Whatever samples say that the group's model has seen; their own models are still a choice."""
    tuned = torch.tensor([[1.0, 0.5, 0.6, 2.0], [1.0, 0.5, 0.6, 2.0]]).double()
    known = {f"c{number}": tuned + 0.01 * number for number in range(8)}
    assert personal.chosen(known, ["c0", "c1", "new"], alike={"c1"}) == [1, 0, 1]
    alone = {name: losses[:, [3, 2, 1, 0]] - 0.9 for name, losses in known.items()}
    assert personal.chosen(alone, ["c1"], alike={"c1"}) == [3]


def test_a_client_does_what_most_do_unless_it_is_sure() -> None:
    """Gently is best for most, and what their halves say of it is noisy. One gains much by full training, in both."""
    generator = torch.Generator().manual_seed(0)
    usual, tuned = torch.tensor([1.0, 0.5, 0.6, 2.0]).double(), torch.tensor([0.0, 1.0, 1.0, 0.0]).double()
    known = {}
    for number in range(40):
        own, noise = (torch.randn(shape, generator=generator).double() for shape in ((1, 1), (2, 1)))
        known[f"c{number:02}"] = usual + 0.2 * tuned * own + torch.tensor([0.0, 0.15, 0.03, 0.0]).double() * noise
    known["sure"] = usual + torch.tensor([0.0, 0.0, -0.5, 0.0]).double().expand(2, 4)
    assert personal.chosen(known, sorted(known)) == [1] * 40 + [2]

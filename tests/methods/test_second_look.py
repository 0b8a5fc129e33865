"""MD-ICFL's second look: who is doubted, what becomes of a doubt, and clients that change group."""

from __future__ import annotations

from math import exp, log

import pytest
import torch
from sklearn.metrics import adjusted_rand_score
from torch import nn

from coterie import run
from coterie.core.task import Task
from coterie.data import Drift, build
from coterie.methods.md_icfl.messages import Distanced, Doubts
from coterie.methods.md_icfl.method import MDICFL
from coterie.methods.md_icfl.second_look import NEVER_MEASURED, doubts_after, looked_again, neutral_start
from coterie.simulation.simulator import Simulator

CLUSTER = dict.fromkeys("abcdef", 0) | {"g": 1}


def state(doubts: Doubts) -> Distanced:
    return Distanced({}, CLUSTER, {}, {}, doubts=doubts)


def usual() -> Doubts:
    """Logarithms -3.2, -3.1, -3, -2.9, -2.8: the median is -3, the median deviation 0.1, a standard deviation 0.148."""
    return Doubts(usual=dict(zip("abcde", (-3.2, -3.1, -3.0, -2.9, -2.8), strict=True)))


def far(value: float, other: float = 2.0) -> torch.Tensor:
    return torch.tensor([[exp(value), other]], dtype=torch.float64)


def test_a_distance_far_beyond_the_usual_raises_a_doubt() -> None:
    """Three deviations are 0.44, less than a factor of two, which is the least: the limit is -3 + 0.69 = -2.31."""
    assert doubts_after(state(usual()), ["f"], far(-2.32), 3.0, 0.4).doubted == {}
    raised = doubts_after(state(usual()), ["f"], far(-2.30), 3.0, 0.4)
    assert raised.doubted == {"f": pytest.approx(-2.30)}
    assert "f" not in raised.usual
    # ten deviations are 1.48: the limit is -1.52
    assert doubts_after(state(usual()), ["f"], far(-1.53), 10.0, 0.4).doubted == {}
    assert "f" in doubts_after(state(usual()), ["f"], far(-1.51), 10.0, 0.4).doubted


def test_another_cluster_nearer_by_the_margin_raises_a_doubt() -> None:
    """With a margin of 0.4 another cluster must be nearer than 0.6 of the own distance."""
    own = exp(-3.0)
    assert doubts_after(state(usual()), ["f"], far(-3.0, 0.61 * own), 3.0, 0.4).doubted == {}
    assert "f" in doubts_after(state(usual()), ["f"], far(-3.0, 0.59 * own), 3.0, 0.4).doubted


def test_who_was_cleared_is_not_doubted_for_so_little_again() -> None:
    """Cleared at -2: only beyond twice that distance, -1.31, is it doubted again."""
    cleared = Doubts(usual=usual().usual, cleared={"f": -2.0})
    assert doubts_after(state(cleared), ["f"], far(-1.32), 3.0, 0.4).doubted == {}
    assert "f" in doubts_after(state(cleared), ["f"], far(-1.30), 3.0, 0.4).doubted


def test_a_look_moves_at_once_by_the_margin_and_else_the_second_time() -> None:
    """Own cluster at 1: one at 0.5 is nearer by 0.4, one at 0.9 is not and must be named twice."""
    doubted = state(Doubts(usual={"f": -3.0}, doubted={"f": -1.0}))
    clear, faint = torch.tensor([1.0, 0.5]), torch.tensor([1.0, 0.9])
    moves, left = looked_again(doubted, {"f": 1}, {"f": clear}, 0.4)
    assert (moves, left) == ({"f": 1}, Doubts())
    moves, left = looked_again(doubted, {"f": 1}, {"f": faint}, 0.4)
    assert (moves, left.named, left.doubted) == ({}, {"f": 1}, {"f": -1.0})
    moves, left = looked_again(state(left), {"f": 1}, {"f": faint}, 0.4)
    assert (moves, left) == ({"f": 1}, Doubts())
    # strong privacy: the server knows no distances, so every move is named twice
    moves, left = looked_again(doubted, {"f": 1}, {}, 0.4)
    assert (moves, left.named) == ({}, {"f": 1})


def test_a_look_that_finds_the_own_cluster_clears() -> None:
    doubted = state(Doubts(doubted={"f": -1.0, "g": NEVER_MEASURED}, named={"f": 1}))
    moves, left = looked_again(doubted, {"f": 0}, {}, 0.4)
    assert moves == {"f": 0}
    assert left == Doubts(doubted={"g": NEVER_MEASURED}, cleared={"f": -1.0})


def test_a_client_without_a_cluster_goes_to_the_first_that_is_named() -> None:
    assert looked_again(state(Doubts()), {"z": 1}, {}, 0.4) == ({"z": 1}, Doubts())


def test_the_neutral_start_is_a_mean_that_knows_little() -> None:
    """Models w of one weight, logits (w x, 0), samples x = 1: a cluster at w = 40 says class 0, one at -40 class 1.

    Their mean says (1/2, 1/2) and is at distance 1 from both: half of the largest, so it is taken as it is. Two
    clusters at 40 have a mean that knows all; drawn towards the initial 0 by a fifth each time it says class 0 with
    odds e^32 .. e^8 and never knows little, so that the last share, a fifth, is taken: w = 8.
    """

    class OneWeight(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(1, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([x @ self.w, torch.zeros(len(x), 1)], 1)

    task = Task(OneWeight, (1,), 2)
    samples = torch.ones(2, 2, 1, 1)
    initial = {"w": torch.zeros(1, 1)}

    def start(*weights: float, cluster: dict[str, int] | None = None) -> float:
        models = {"w": torch.tensor(weights).reshape(-1, 1, 1)}
        return float(neutral_start(task, initial, models, cluster or {"a": 0, "b": 1}, samples)["w"])

    assert start(40.0, -40.0) == 0.0
    assert start(40.0, 40.0) == pytest.approx(8.0)
    # a cluster that nobody is in does not count
    assert start(40.0, -40.0, cluster={"a": 0}) == pytest.approx(8.0)


def small() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


@pytest.mark.parametrize("privacy", ["weak", "strong"])
def test_clients_that_change_group_are_found_within_ten_rounds(privacy: str) -> None:
    """A quarter of 24 clients has another rotation from round 8 on; six of them, in groups of six, cost ARI 0.5."""
    population = build("rotated-digits", seed=1, clients=24, samples=60, test_samples=10, drift=Drift(8, 0.25))
    method = MDICFL(per_class=3, steps=20, warm_steps=5, lr=0.1, privacy=privacy)  # type: ignore[arg-type]
    fed = Simulator(method, Task.of(small, population), population, seed=1)
    state, scores = method.init(fed), []
    for number in range(18):
        fed.begin(number)
        state, _ = method.step(state, fed)
        fed.commit()
        truth = [population.group(client, number) for client in population.ids]
        scores.append(adjusted_rand_score(truth, method.clusters(state, population.ids)))
    fed.close()
    assert scores[7] == 1.0
    assert scores[8] < 0.7
    assert scores[-1] == 1.0


def test_a_fifth_of_the_clients_a_round_is_enough() -> None:
    population = build("rotated-digits", seed=3, test_samples=10)
    method = MDICFL(per_class=3, steps=20, warm_steps=5, epochs=5, batch=16, lr=0.1, fraction=0.2)
    assert run(method, population, small, rounds=34, evaluate_every=34).ari == pytest.approx(1.0, abs=0.05)


def test_label_shares_are_told_again_only_where_a_client_is_looked_at_again() -> None:
    """The clients' labels change at round 4, and the server hears of it by those it doubts."""
    population = build("rotated-digits", seed=1, clients=16, samples=40, test_samples=10)
    method = MDICFL(per_class=3, steps=20, warm_steps=5, lr=0.1, hold=0, agree=1, patience=1)
    fed = Simulator(method, Task.of(small, population), population, seed=1)
    state = method.init(fed)
    for number in range(3):
        fed.begin(number)
        state, _ = method.step(state, fed)
        fed.commit()
    stale = {client: torch.full_like(shares, 0.1) for client, shares in state.labels.items()}
    told = Distanced(**{**vars(state), "labels": stale, "doubts": Doubts(doubted={"03": log(0.5)})})
    fed.begin(3)
    after, _ = method.step(told, fed)
    fed.close()
    assert not torch.equal(after.labels["03"], stale["03"])
    assert torch.equal(after.labels["03"], state.labels["03"])
    assert all(torch.equal(after.labels[client], stale[client]) for client in stale if client != "03")

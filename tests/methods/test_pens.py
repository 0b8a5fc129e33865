"""PENS: counting, its two thresholds, and what it finds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie import run
from coterie.core.cohort import Cohort
from coterie.core.task import Task
from coterie.data import build
from coterie.methods.p2p.base import Answers, Inbox, PeerView
from coterie.methods.p2p.pens import PENS, SelectionCounts
from coterie.methods.p2p.topology import (
    NO_PEER,
    as_rows,
    members,
    peer_keys,
)
from coterie.models import build_model

from ..tiny import cohort, one_weight, rows

METHOD = PENS(l=3, k=2, t1=3)
NAMES = ["b", "c", "d", "e"]


def tally(seen: list[str], times: list[int], age: int, neighbours: list[str]) -> SelectionCounts:
    none = torch.empty(1, 0, dtype=torch.int64)
    order = np.argsort(peer_keys(seen))
    counts = np.array(times, dtype=np.int64)[order]
    return SelectionCounts(
        as_rows([peer_keys(seen)[order]]), as_rows([counts]), torch.tensor([age]), as_rows([peer_keys(neighbours)]),
        none, none.double(),
    )  # fmt: skip


def arrived(names: list[str], weights: list[float], known: int = 4) -> Inbox:
    model = {"weight": torch.tensor([0.0, *weights]).view(-1, 1, 1)}
    index = torch.arange(1, len(names) + 1)[None]
    pool = Answers(model, None, torch.empty(len(weights) + 1, 0, dtype=torch.int64))
    keys = torch.from_numpy(peer_keys(names))[None]
    return Inbox(pool, torch.zeros(1, dtype=torch.int64), keys, index, torch.tensor([known]))


def selected(method: PENS, c: Cohort, before: SelectionCounts, inbox: Inbox) -> tuple[SelectionCounts, Tensor]:
    return method.select(c, before, inbox, method.measure(c, before, inbox))


def times_of(node: SelectionCounts) -> dict[int, int]:
    return dict(zip(members(node.seen[0]).tolist(), members(node.times[0]).tolist(), strict=True))


def test_a_round_of_stage_one_by_hand() -> None:
    """Model w x with target 2 at 1: weights 2, 5, 1.5 have losses 0, 9, 0.25, so b and d are taken and counted."""
    c = cohort(rows(([1.0], [2])), Task(one_weight, (1,), 10, loss="mse"))
    after, chosen = selected(METHOD, c, tally(["b", "c"], [1, 1], 1, []), arrived(["b", "c", "d"], [2.0, 5.0, 1.5]))
    b, kept, d, _ = peer_keys(NAMES).tolist()
    assert chosen.tolist() == [[True, False, True]]
    assert times_of(after) == {b: 2, kept: 1, d: 1}
    assert set(members(after.neighbours[0]).tolist()) == {b, d}
    assert after.age.tolist() == [2]


@pytest.mark.parametrize(
    ("threshold", "known", "expected"), [("pens", 4, 3), ("pens", 2, 1), ("panm", 4, 1), ("panm", 2, 0)]
)
def test_thresholds_by_hand(threshold: str, known: int, expected: int) -> None:
    """After stage one b, c, d stand at 3, 2, 1. pens: more than 2 * 3 / 4 - 1 = 0.5, or 2 * 3 / 2 - 1 = 2 with n = 3;
    panm: at least ceil(3 * 5 / 5) = 3, or ceil(3 * 5 / 3) = 5."""
    c = cohort(rows(([1.0], [2])), Task(one_weight, (1,), 10, loss="mse"))
    method = replace(METHOD, threshold=threshold)  # type: ignore[arg-type]
    before = tally(["b", "c", "d"], [2, 1, 1], 2, [])
    after, _ = selected(method, c, before, arrived(["b", "c"], [2.0, 2.0], known))
    assert len(members(after.neighbours[0])) == expected


@pytest.mark.parametrize(("cutoff", "expected"), [(1, 3), (2, 2), (3, 1), (4, 0)])
def test_the_cutoff_can_be_a_number(cutoff: int, expected: int) -> None:
    """b, c, d stand at 3, 2, 1, whatever rule `threshold` names."""
    c = cohort(rows(([1.0], [2])), Task(one_weight, (1,), 10, loss="mse"))
    for threshold in ("pens", "panm"):
        method = replace(METHOD, threshold=threshold, cutoff=cutoff)
        after, _ = selected(method, c, tally(["b", "c", "d"], [2, 1, 1], 2, []), arrived(["b", "c"], [2.0, 2.0]))
        assert len(members(after.neighbours[0])) == expected


def test_stage_two_gossips_with_neighbours_or_with_anyone() -> None:
    view = PeerView(("a",), 5, 0, np.sort(peer_keys(["a", *NAMES])))
    near = METHOD.choose(tally([], [], 3, ["b", "c", "e"]), view)
    assert set(members(near.keys[0]).tolist()) < set(peer_keys(["b", "c", "e"]).tolist())
    assert len(members(near.keys[0])) == 2
    assert len(members(METHOD.choose(tally([], [], 3, []), view).keys[0])) == 2
    assert len(members(METHOD.choose(tally([], [], 0, []), view).keys[0])) == 3
    c = cohort(rows(([1.0], [2])), Task(one_weight, (1,), 10, loss="mse"))
    after, chosen = selected(METHOD, c, tally(["b"], [3], 3, ["b"]), arrived(["b"], [9.0]))
    assert chosen.all()
    assert times_of(after) == {int(peer_keys(["b"])[0]): 3}


def test_pens_finds_most_of_the_own_group() -> None:
    population = build("rotated-digits", seed=0, clients=16, groups=2, samples=35, test_samples=50)
    result = run(
        PENS(l=6, k=3, t1=12, epochs=5, lr=0.1),
        population,
        lambda: build_model("digits-mlp", tuple(population.shape), population.classes),
        rounds=14,
        seed=0,
        evaluate_every=14,
    )
    last = result.state.history[-1]
    assert last["recall"] > 0.8
    assert last["precision"] > 0.7  # chance would be 7/15
    assert bool((result.state.node["seen"] != NO_PEER).any())

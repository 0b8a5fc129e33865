"""Hard EM on similarities: by hand, degenerate rows, and against simulated groups."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.core.rng import rng
from coterie.methods.panm.matching import fitted
from coterie.methods.panm.ours import PAPER, Rules

OURS = Rules(guard=0.0, monotone=True, least_sigma=1e-3)


def judged(y: list[float], known: int, rules: Rules = OURS) -> list[bool]:
    """One row whose first `known` entries are neighbours."""
    values = np.array([y])
    neighbours = np.arange(len(y))[None] < known
    return [bool(v) for v in fitted(values, np.ones_like(neighbours), neighbours, rules)[0][0]]


def test_six_numbers_by_hand() -> None:
    """Neighbours 0.9, 0.8, 0.1 and candidates 0.85, 0.15, 0.05.

    At first "same" has mean 0.6 and variance (0.09 + 0.04 + 0.25) / 3 = 0.127, "other" mean 0.35 and variance
    (0.25 + 0.04 + 0.09) / 3 = 0.127: equal variances and shares, so the border is at 0.475. 0.1 goes to "other", 0.85
    to "same". Then the means are 0.85 and 0.1, both with variance 0.00167; the border stays between them: the end.
    """
    for rules in (OURS, PAPER):
        assert judged([0.9, 0.8, 0.1, 0.85, 0.15, 0.05], 3, rules) == [True, True, False, True, False, False]


def test_what_ends_with_the_larger_mean_is_the_own_group() -> None:
    """Bad neighbours and good candidates: the printed initialisation would call the lower group "same"."""
    assert judged([0.1, 0.12, 0.11, 0.9, 0.92, 0.91], 3) == [False, False, False, True, True, True]


@pytest.mark.parametrize(
    ("y", "known", "expected"),
    [
        ([0.5, 0.5, 0.5, 0.5], 2, [True] * 4),  # identical peers: nothing tells them apart
        ([0.5, 0.9, 0.1], 3, [True] * 3),  # no candidates: the neighbours stay
        ([0.9, 0.2], 1, [True, False]),  # one of each
        ([0.2, 0.9], 1, [False, True]),
        ([0.9], 1, [True]),
        ([0.9], 0, [False]),  # no neighbour to compare with
    ],
)
def test_degenerate_rows(y: list[float], known: int, expected: list[bool]) -> None:
    for rules in (OURS, PAPER):
        assert judged(y, known, rules) == expected


def test_what_did_not_arrive_does_not_count() -> None:
    y = np.array([[0.9, 99.0, 0.8, 0.1, 0.85, -99.0, 0.15, 0.05]])
    valid = np.abs(y) < 1
    known = np.array([[True, True, True, True, False, False, False, False]])
    assert fitted(y, valid, known)[0][0].tolist() == [True, False, True, False, True, False, False, False]


def test_a_very_similar_candidate_is_lost_to_the_wider_component_in_the_paper_alone() -> None:
    """The candidates spread widely, so that 5.0 is likelier under "other" than under "same", which is narrow."""
    y = [1.0, 1.01, 0.99, 1.005, 5.0, -3.0, -1.0, 0.0]
    assert judged(y, 4, Rules(monotone=True))[4]
    assert not judged(y, 4, PAPER)[4]


def test_a_component_without_width_takes_nobody_in_unless_there_is_a_floor() -> None:
    """Neighbours 0.9 and 0.9, candidates 0.8999, 0.1, 0.2: "same" has deviation 0, so 0.8999 has no density there.

    The range is 0.8, so a floor of 1e-3 is 8e-4: log(0.4 / 8e-4) - (1e-4 / 8e-4)^2 / 2 = 6.2 for "same" against
    log(0.6 / 0.356) - (0.5 / 0.356)^2 / 2 = -0.5 for "other", whose mean is 0.4 and deviation 0.356.
    """
    y = [0.9, 0.9, 0.8999, 0.1, 0.2]
    assert judged(y, 2, Rules(least_sigma=1e-3)) == [True, True, True, False, False]
    assert judged(y, 2, PAPER) == [True, True, False, False, False]


def test_the_guard_leaves_the_list_alone_where_there_is_one_group_only() -> None:
    """One group, evenly spread: the plain fit cuts it in two. With the guard nobody is dropped, and nobody added."""
    y = [0.50, 0.52, 0.54, 0.56, 0.51, 0.53, 0.55, 0.57]
    plain = judged(y, 4)
    assert sum(plain[:4]) < 4
    assert sum(plain[4:]) > 0
    assert judged(y, 4, Rules(2.0, monotone=True, least_sigma=1e-3)) == [True] * 4 + [False] * 4


def simulate(separation: float, share: float, impurity: float, rules: Rules = OURS) -> tuple[float, float]:
    """Precision and recall over 2,000 peers with ten neighbours and ten candidates, similarities with unit variance."""
    generator = rng(3, "em", int(10 * separation), int(100 * share))
    truth = np.concatenate([generator.random((2000, 10)) >= impurity, generator.random((2000, 10)) < share], axis=1)
    y = generator.normal(size=truth.shape) + separation * truth
    known = np.broadcast_to(np.arange(20) < 10, truth.shape)
    same, _ = fitted(y, np.ones_like(truth), known, rules)
    return float((same & truth).sum() / same.sum()), float((same & truth).sum() / truth.sum())


@pytest.mark.parametrize("rules", [OURS, PAPER])
def test_groups_four_deviations_apart_are_told_apart(rules: Rules) -> None:
    """METHODS 3.3: 0.99 and 0.95 with the corrected start, 0.07 and 0.05 as printed."""
    precision, recall = simulate(4.0, 0.25, 0.05, rules)
    assert precision == pytest.approx(0.99, abs=0.01)
    assert recall == pytest.approx(0.95, abs=0.015)


def test_all_candidates_of_one_group_halve_the_list_without_the_guard() -> None:
    """Ten of twenty are known. Without the guard half of the neighbours go; with it they stay, and few come in."""
    assert simulate(4.0, 1.0, 0.0)[1] == pytest.approx(0.50, abs=0.02)
    generator = rng(3, "one group")
    y, known = generator.normal(size=(2000, 20)), np.broadcast_to(np.arange(20) < 10, (2000, 20))
    kept = [float(fitted(y, known | True, known, Rules(c, True, 1e-3))[0][:, :10].mean()) for c in (0.0, 2.0)]
    assert kept[0] < 0.55
    assert kept[1] > 0.9


def matched(rounds: int, separation: float, rules: Rules) -> float:
    """Precision of 300 peers' lists after so many matchings (equation 18), l = 10, 24 of 99 others of the peer's group.

    Lists begin with five neighbours of which 85 % are right; similarities have unit variance and are drawn each time.
    """
    generator = rng(7, "rounds of matching", int(10 * separation))
    own = np.arange(99) < 24
    lists = np.zeros((300, 99), dtype=bool)
    for row in lists:
        right = int((generator.random(5) < 0.85).sum())
        row[generator.choice(24, right, replace=False)] = True
        row[24 + generator.choice(75, 5 - right, replace=False)] = True
    for _ in range(rounds):
        order, asked = generator.random(lists.shape), np.zeros_like(lists)
        for part in (lists, ~lists):
            asked |= part & (np.where(part, order, np.inf).argsort(1).argsort(1) < 10)
        same, _ = fitted(generator.normal(size=lists.shape) + separation * own, asked, lists, rules)
        new = (lists & ~asked) | same
        lists = np.where(new.any(1, keepdims=True), new, lists)
    return float((lists & own).sum() / lists.sum())


def test_the_guard_does_not_let_strangers_pile_up() -> None:
    """Groups two deviations apart: a guard that stopped removals alone let precision fall from 0.85 to 0.46."""
    guarded = Rules(2.0, monotone=True, least_sigma=1e-3)
    assert matched(0, 2.0, guarded) == pytest.approx(0.85, abs=0.02)
    assert matched(20, 2.0, guarded) > 0.8


rows = st.lists(st.floats(-3, 3, width=32), min_size=1, max_size=12)


@given(rows, st.integers(0, 12), st.floats(0, 3))
def test_judgements_hold_their_promises(y: list[float], known: int, guard: float) -> None:
    """Whichever candidates are accepted are no less similar than the rejected ones."""
    plain = judged(y, known, Rules(guard, monotone=True, least_sigma=1e-3))
    accepted = [value for value, same in zip(y[known:], plain[known:], strict=True) if same]
    refused = [value for value, same in zip(y[known:], plain[known:], strict=True) if not same]
    if accepted and refused:
        assert min(accepted) >= max(refused)

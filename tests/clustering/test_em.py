"""Hard EM on similarities: by hand, degenerate rows, and against simulated groups."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.clustering.em import same_group
from coterie.rng import rng


def judged(y: list[float], known: int, guard: float = 0.0) -> list[bool]:
    """One row whose first `known` entries are neighbours."""
    values = np.array([y])
    neighbours = np.arange(len(y))[None] < known
    return [bool(v) for v in same_group(values, np.ones_like(neighbours), neighbours, guard=guard)[0]]


def test_six_numbers_by_hand() -> None:
    """Neighbours 0.9, 0.8, 0.1 and candidates 0.85, 0.15, 0.05.

    At first "same" has mean 0.6 and variance (0.09 + 0.04 + 0.25) / 3 = 0.127, "other" mean 0.35 and variance
    (0.25 + 0.04 + 0.09) / 3 = 0.127: equal variances and shares, so the border is at 0.475. 0.1 goes to "other", 0.85
    to "same". Then the means are 0.85 and 0.1, both with variance 0.00167; the border stays between them: the end.
    """
    assert judged([0.9, 0.8, 0.1, 0.85, 0.15, 0.05], 3) == [True, True, False, True, False, False]


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
    assert judged(y, known) == expected


def test_what_did_not_arrive_does_not_count() -> None:
    y = np.array([[0.9, 99.0, 0.8, 0.1, 0.85, -99.0, 0.15, 0.05]])
    valid = np.abs(y) < 1
    known = np.array([[True, True, True, True, False, False, False, False]])
    assert same_group(y, valid, known)[0].tolist() == [True, False, True, False, True, False, False, False]


def test_a_very_similar_candidate_is_not_lost_to_the_wider_component() -> None:
    """The candidates spread widely, so without order 5.0 would be likelier under "other" than under "same"."""
    assert judged([1.0, 1.01, 0.99, 1.005, 5.0, -3.0, -1.0, 0.0], 4)[4]


def test_the_guard_keeps_neighbours_where_there_is_one_group_only() -> None:
    y = [0.50, 0.52, 0.54, 0.56, 0.51, 0.53, 0.55, 0.57]
    assert sum(judged(y, 4)[:4]) < 4
    assert judged(y, 4, guard=2.0)[:4] == [True] * 4


def simulate(separation: float, share: float, impurity: float, guard: float = 0.0) -> tuple[float, float]:
    """Precision and recall over 2,000 peers with ten neighbours and ten candidates, similarities with unit variance."""
    generator = rng(3, "em", int(10 * separation), int(100 * share))
    truth = np.concatenate([generator.random((2000, 10)) >= impurity, generator.random((2000, 10)) < share], axis=1)
    y = generator.normal(size=truth.shape) + separation * truth
    known = np.broadcast_to(np.arange(20) < 10, truth.shape)
    same = same_group(y, np.ones_like(truth), known, guard=guard)
    return float((same & truth).sum() / same.sum()), float((same & truth).sum() / truth.sum())


def test_groups_four_deviations_apart_are_told_apart() -> None:
    """METHODS 3.3: 0.99 and 0.95 with the corrected start, 0.07 and 0.05 as printed."""
    precision, recall = simulate(4.0, 0.25, 0.05)
    assert precision == pytest.approx(0.99, abs=0.01)
    assert recall == pytest.approx(0.95, abs=0.015)


def test_all_candidates_of_one_group_halve_the_list_without_the_guard() -> None:
    assert simulate(4.0, 1.0, 0.0)[1] == pytest.approx(0.50, abs=0.02)
    assert simulate(4.0, 1.0, 0.0, guard=2.0)[1] > 0.68


rows = st.lists(st.floats(-3, 3, width=32), min_size=1, max_size=12)


@given(rows, st.integers(0, 12), st.floats(0, 3))
def test_judgements_hold_their_promises(y: list[float], known: int, guard: float) -> None:
    """Whichever candidates are accepted are no less similar than the rejected ones."""
    plain = judged(y, known, guard)
    accepted = [value for value, same in zip(y[known:], plain[known:], strict=True) if same]
    refused = [value for value, same in zip(y[known:], plain[known:], strict=True) if not same]
    if accepted and refused:
        assert min(accepted) >= max(refused)

"""k-means, and how far two groupings agree."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

from coterie.core.groupings import adjusted_rand, alike, different, k_means


def test_by_hand() -> None:
    """Of 6 pairs 1 is together in both, 1 in the first alone, none in the second alone: 2 (1*4 - 0) / (2*5 + 1*4)."""
    assert adjusted_rand("aabb", [0, 0, 1, 2]) == pytest.approx(8 / 14)


@pytest.mark.parametrize(("one", "other", "wanted"), [("", "", 1), ("a", "b", 1), ("aab", "xxy", 1), ("aaa", "xyz", 0)])
def test_the_ends(one: str, other: str, wanted: int) -> None:
    assert adjusted_rand(one, other) == wanted


@given(st.lists(st.tuples(st.integers(-1, 4), st.integers(0, 3)), min_size=1, max_size=60))
def test_it_is_scikit_learns_to_the_last_bit(pairs: list[tuple[int, int]]) -> None:
    one, other = [first for first, _ in pairs], [second for _, second in pairs]
    assert adjusted_rand(one, other) == adjusted_rand_score(one, other)
    assert adjusted_rand(one, other) == adjusted_rand(other, one)


def test_k_means_by_hand() -> None:
    """Two pairs on a line, at 0 and 1 and at 10 and 12: the centres are 0.5 and 11."""
    points = torch.tensor([[0.0], [10.0], [1.0], [12.0]])
    groups, centres = k_means(points, 2, seed=3)
    assert groups[0] == groups[2] != groups[1] == groups[3]
    assert sorted(centres.flatten().tolist()) == [0.5, 11.0]


def test_k_means_from_given_centres_keeps_their_numbers() -> None:
    """The first row of `start` is group 0, so that clusters keep their numbers from round to round."""
    points = torch.tensor([[0.0], [10.0], [1.0], [12.0]])
    for start, wanted in (([[9.0], [2.0]], [1, 0, 1, 0]), ([[2.0], [9.0]], [0, 1, 0, 1])):
        assert k_means(points, 2, 0, torch.tensor(start, dtype=torch.float64))[0].tolist() == wanted


def test_equal_points_are_one() -> None:
    assert different(torch.tensor([[1.0, 2.0], [1.0, 2.0], [2.0, 1.0]])) == 2


def test_alike_looks_at_those_that_both_know() -> None:
    """The numbers of groups do not matter; two groupings that share no client say nothing of each other."""
    one = {"a": 0, "b": 0, "c": 1, "d": 1, "only here": 7}
    assert alike(one, {"a": 5, "b": 5, "c": 2, "d": 2})
    assert not alike(one, {"a": 5, "b": 2, "c": 5, "d": 2})
    assert not alike(one, {"x": 0})

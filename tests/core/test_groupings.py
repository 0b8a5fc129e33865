"""How far two groupings agree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

from coterie.core.groupings import adjusted_rand


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

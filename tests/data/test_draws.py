from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.core.errors import CoterieError
from coterie.data.draws import BalancedBlocks, DirichletDraws, Draw, EqualBlocks, FixedRows

LABELS = np.tile(np.arange(4), 30)


def draws(seed: int = 0) -> list[Draw]:
    return [
        EqualBlocks(120, 7, seed, "train"),
        BalancedBlocks(LABELS, 4, 10, seed, "train"),
        DirichletDraws(LABELS, 4, 10, 1.0, seed, "train"),
    ]


@given(size=st.integers(1, 60))
def test_blocks_are_disjoint_until_the_pool_is_used_up(size: int) -> None:
    blocks = EqualBlocks(120, size, 1, "train")
    first_turn = np.concatenate([blocks.rows(i) for i in range(120 // size)])
    assert len(np.unique(first_turn)) == len(first_turn) == 120 // size * size
    again = blocks.rows(120 // size)
    assert len(np.unique(again)) == size
    if size > 3:
        assert not np.array_equal(again, blocks.rows(0))


@given(size=st.integers(1, 40), number=st.integers(0, 1000))
def test_balanced_blocks(size: int, number: int) -> None:
    blocks = BalancedBlocks(LABELS, 4, size, 1, "train")
    rows = blocks.rows(number)
    counts = np.bincount(LABELS[rows], minlength=4)
    assert len(np.unique(rows)) == len(rows) == size
    assert counts.max() - counts.min() <= 1


def test_balanced_blocks_are_disjoint_until_a_class_is_used_up() -> None:
    """10 samples of 4 classes take 3 of each class at most; 30 of a class make 10 clients."""
    blocks = BalancedBlocks(LABELS, 4, 10, 1, "train")
    rows = np.concatenate([blocks.rows(i) for i in range(10)])
    assert len(np.unique(rows)) == 100


def test_a_client_is_the_same_whoever_was_asked_before() -> None:
    for one, other in zip(draws(), draws(), strict=True):
        alone = one.rows(54_321)
        for number in range(50):
            other.rows(number)
        assert np.array_equal(other.rows(54_321), alone)


def test_seeds_differ() -> None:
    for one, other in zip(draws(0), draws(1), strict=True):
        assert not np.array_equal(one.rows(3), other.rows(3))


def test_a_caller_may_change_its_rows() -> None:
    for draw in draws():
        before = draw.rows(2).copy()
        draw.rows(2)[:] = 0
        assert np.array_equal(draw.rows(2), before)


def test_fixed_rows() -> None:
    fixed = FixedRows.of([np.array([3, 4]), np.empty(0, np.int64), np.array([9])])
    assert [fixed.rows(i).tolist() for i in range(3)] == [[3, 4], [], [9]]


def test_repeated_samples_only_where_allowed() -> None:
    assert len(DirichletDraws(LABELS, 4, 500, 1.0, 0, "train", repeat=True).rows(0)) == 500
    with pytest.raises(CoterieError, match="500 samples a client are more than the 120"):
        DirichletDraws(LABELS, 4, 500, 1.0, 0, "train")


def test_errors() -> None:
    with pytest.raises(CoterieError, match="121 samples a client are more than the 120"):
        EqualBlocks(120, 121, 0, "train")
    with pytest.raises(CoterieError, match="at least one sample and 0"):
        EqualBlocks(120, 0, 0, "train")
    with pytest.raises(CoterieError, match="class 3 has 1"):
        BalancedBlocks(np.array([0, 0, 0, 0, 0, 1, 1, 2, 2, 3]), 4, 8, 0, "train")

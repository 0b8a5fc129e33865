from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core.errors import CoterieError
from coterie.core.rng import rng
from coterie.data import partition
from coterie.data.partition import Index

seeds = st.integers(0, 2**32)


@st.composite
def labelled(draw: st.DrawFn, classes: int = 4, most: int = 300) -> Index:
    """Labels in which each class occurs."""
    n = draw(st.integers(classes * 10, most))
    extra = rng(draw(seeds), "labels").integers(0, classes, n - classes)
    return np.concatenate([np.arange(classes), extra]).astype(np.int64)


def assert_disjoint(parts: list[Index], n: int) -> Index:
    flat = np.concatenate(parts)
    assert len(np.unique(flat)) == len(flat)
    assert flat.min() >= 0
    assert flat.max() < n
    return flat


@given(n=st.integers(1, 200), clients=st.integers(1, 20), seed=seeds)
def test_equal_gives_out_all(n: int, clients: int, seed: int) -> None:
    if clients > n:
        with pytest.raises(CoterieError, match="do not fit"):
            partition.equal(n, clients, rng(seed, "p"))
        return
    parts = partition.equal(n, clients, rng(seed, "p"))
    assert len(assert_disjoint(parts, n)) == n
    assert {len(part) for part in parts} <= {n // clients, n // clients + 1}


@given(clients=st.integers(1, 10), size=st.integers(1, 10), seed=seeds)
def test_equal_with_a_size(clients: int, size: int, seed: int) -> None:
    parts = partition.equal(100, clients, rng(seed, "p"), size=size)
    assert_disjoint(parts, 100)
    assert [len(part) for part in parts] == [size] * clients


@given(labels=labelled(), clients=st.integers(1, 4), alpha=st.floats(0.5, 100), seed=seeds)
@settings(deadline=None)
def test_dirichlet_gives_out_all(labels: Index, clients: int, alpha: float, seed: int) -> None:
    parts = partition.dirichlet(labels, clients, alpha, rng(seed, "p"), smallest=1)
    assert len(assert_disjoint(parts, len(labels))) == len(labels)
    assert min(len(part) for part in parts) >= 1


def test_dirichlet_is_uneven_for_a_small_alpha_and_even_for_a_large_one() -> None:
    labels = np.repeat(np.arange(10), 600)

    def largest_share(alpha: float) -> float:
        parts = partition.dirichlet(labels, 20, alpha, rng(0, "p"))
        return float(np.mean([np.bincount(labels[part], minlength=10).max() / len(part) for part in parts]))

    assert largest_share(0.1) > 0.4
    assert largest_share(1000) < 0.12


def test_dirichlet_gives_up_with_a_sentence() -> None:
    labels = np.zeros(100, np.int64)
    with pytest.raises(CoterieError, match="raise alpha or ask for fewer clients"):
        partition.dirichlet(labels, 10, 0.001, rng(0, "p"))


@given(labels=labelled(), size=st.integers(1, 60), alpha=st.floats(1e-4, 1e3), seed=seeds)
@settings(deadline=None)
def test_dirichlet_draw(labels: Index, size: int, alpha: float, seed: int) -> None:
    members = list(partition.by_owner(labels).values())
    rows = partition.dirichlet_draw(members, alpha, size, rng(seed, "p"))
    assert len(rows) == size
    assert np.array_equal(rows, partition.dirichlet_draw(members, alpha, size, rng(seed, "p")))
    for label, of_class in enumerate(members):
        drawn = rows[labels[rows] == label]
        if len(drawn) <= len(of_class):
            assert len(np.unique(drawn)) == len(drawn)


def test_dirichlet_draw_has_concentration_alpha_over_classes() -> None:
    """The share of one class under Dirichlet(a, .., a) with C classes has the variance (C-1) / (C^2 (C a + 1)).

    With alpha = 10 and C = 10, a = 1: 9 / (100 * 11) = 0.00818. Were a = alpha = 10 it would be 9 / 10100 = 0.00089.
    """
    members = [np.arange(c * 4000, (c + 1) * 4000) for c in range(10)]
    draws = [partition.dirichlet_draw(members, 10.0, 4000, rng(0, "p", i)) for i in range(300)]
    shares = np.array([np.bincount(rows // 4000, minlength=10) / 4000 for rows in draws])
    assert shares.var() == pytest.approx(0.00818, rel=0.15)


def test_dirichlet_draw_means_labels_after_the_shift() -> None:
    """With labels (1, 0) the rows of class 0 are those of new label 1: the two counts change places."""
    members = [np.arange(0, 50), np.arange(50, 100)]
    plain = partition.dirichlet_draw(members, 0.5, 40, rng(3, "p"))
    swapped = partition.dirichlet_draw(members, 0.5, 40, rng(3, "p"), labels=(1, 0))
    assert (plain < 50).sum() == (swapped >= 50).sum()
    assert (plain < 50).sum() != 20


def test_dirichlet_draw_without_a_class() -> None:
    members = [np.arange(5), np.empty(0, np.int64), np.arange(5, 10)]
    rows = partition.dirichlet_draw(members, 3.0, 40, rng(1, "p"))
    assert len(rows) == 40
    assert rows.max() < 10


@given(labels=labelled(), clients=st.integers(1, 3), size=st.integers(1, 12), seed=seeds)
@settings(deadline=None)
def test_balanced(labels: Index, clients: int, size: int, seed: int) -> None:
    need = -(-size // 4) * clients
    if need > np.bincount(labels).min():
        with pytest.raises(CoterieError, match="class-balanced clients"):
            partition.balanced(labels, clients, size, rng(seed, "p"))
        return
    parts = partition.balanced(labels, clients, size, rng(seed, "p"))
    assert_disjoint(parts, len(labels))
    for part in parts:
        counts = np.bincount(labels[part], minlength=4)
        assert len(part) == size
        assert counts.max() - counts.min() <= 1


def test_odd_samples_go_round() -> None:
    assert partition.balanced_counts(0, 5, 4) == [2, 1, 1, 1]
    assert partition.balanced_counts(1, 5, 4) == [1, 2, 1, 1]
    assert partition.balanced_counts(1, 3, 4) == [1, 1, 0, 1]


@given(labels=labelled(), clients=st.integers(1, 5), hand=st.integers(1, 3), seed=seeds)
def test_shards(labels: Index, clients: int, hand: int, seed: int) -> None:
    parts = partition.shards(labels, clients, hand, rng(seed, "p"))
    assert len(assert_disjoint(parts, len(labels))) == len(labels)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= hand


def test_a_shard_is_a_run_of_sorted_labels() -> None:
    labels = np.repeat(np.arange(10), 20)
    rng(0, "mix").shuffle(labels)
    for part in partition.shards(labels, 10, 2, rng(0, "p")):
        assert len(np.unique(labels[part])) <= 2


@given(clients=st.integers(1, 8), alpha=st.floats(1e-3, 100), seed=seeds)
def test_quantity(clients: int, alpha: float, seed: int) -> None:
    parts = partition.quantity(200, clients, alpha, rng(seed, "p"), smallest=5)
    assert len(assert_disjoint(parts, 200)) == 200
    assert min(len(part) for part in parts) >= 5


def test_quantity_is_skewed() -> None:
    sizes = sorted(len(part) for part in partition.quantity(1000, 10, 0.1, rng(0, "p")))
    assert sizes[-1] > 10 * sizes[0]


def test_by_owner() -> None:
    found = partition.by_owner(np.array([7, 2, 7, 2, 9]))
    assert {owner: rows.tolist() for owner, rows in found.items()} == {2: [1, 3], 7: [0, 2], 9: [4]}


def test_equal_seeds_give_equal_parts_and_others_do_not() -> None:
    labels = np.repeat(np.arange(4), 50)

    def parts(seed: int) -> list[list[Index]]:
        return [
            partition.equal(200, 4, rng(seed, "p")),
            partition.dirichlet(labels, 4, 1.0, rng(seed, "p")),
            partition.balanced(labels, 4, 20, rng(seed, "p")),
            partition.shards(labels, 4, 2, rng(seed, "p")),
            partition.quantity(200, 4, 1.0, rng(seed, "p")),
        ]

    for one, same, other in zip(parts(5), parts(5), parts(6), strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
        assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf")])
def test_alpha_must_be_positive(alpha: float) -> None:
    labels = np.zeros(100, np.int64)
    with pytest.raises(CoterieError, match="must be a number above 0"):
        partition.dirichlet(labels, 2, alpha, rng(0, "p"))
    with pytest.raises(CoterieError, match="must be a number above 0"):
        partition.quantity(100, 2, alpha, rng(0, "p"))
    with pytest.raises(CoterieError, match="must be a number above 0"):
        partition.dirichlet_draw([labels], alpha, 3, rng(0, "p"))


def test_clients_and_sizes_are_checked() -> None:
    labels = np.zeros(10, np.int64)
    with pytest.raises(CoterieError, match="at least one client and 0"):
        partition.equal(10, 0, rng(0, "p"))
    with pytest.raises(CoterieError, match="need 12 and there are 10"):
        partition.equal(10, 3, rng(0, "p"), size=4)
    with pytest.raises(CoterieError, match="at least one shard"):
        partition.shards(labels, 3, 0, rng(0, "p"))
    with pytest.raises(CoterieError, match="do not fit into 10 samples"):
        partition.dirichlet(labels, 3, 1.0, rng(0, "p"))

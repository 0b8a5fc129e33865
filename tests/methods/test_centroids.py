"""Centres that follow their members."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.core.rng import rng
from coterie.methods.embedding.clustering.centroids import Centroids


def bits(seed: int, clients: int, length: int = 40) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    return rng(seed, "bits").integers(0, 2, (clients, length)).astype(np.uint8)


@given(st.integers(0, 1000), st.integers(2, 12))
def test_joining_and_leaving_one_by_one_gives_the_mean(seed: int, clients: int) -> None:
    own, late = bits(seed, clients), bits(seed + 1, 3)
    centres = Centroids.of(own, np.arange(clients) % 2)
    for each in late:
        centres = centres.with_member(1, each)
    centres = centres.without_member(1, late[0])
    expected = np.concatenate([own[1::2], late[1:]]).mean(0)
    assert np.allclose(centres.means[1], expected)
    assert centres.sizes.tolist() == [(clients + 1) // 2, clients // 2 + 2]


def test_the_last_member_leaves_its_centre_behind() -> None:
    own = bits(0, 2)
    centres = Centroids.of(own, np.array([0, 1])).without_member(1, own[1])
    assert centres.means[1].tolist() == own[1].tolist()
    assert centres.sizes.tolist() == [1, 0]


def test_nearest_is_by_euclidean_distance_and_the_first_among_equals() -> None:
    centres = Centroids.of(np.array([[0, 0, 0], [1, 1, 0], [1, 1, 1]], np.uint8), np.array([0, 1, 1]))
    assert centres.means.tolist() == [[0, 0, 0], [1, 1, 0.5]]
    found = centres.distances(np.array([[0, 0, 0], [1, 1, 1]], np.uint8))
    assert found.tolist() == [[0, 2.25], [3, 0.25]]
    assert centres.nearest(np.array([[1, 1, 1], [0, 0, 1]], np.uint8)).tolist() == [1, 0]
    same = Centroids.of(np.array([[1], [1]], np.uint8), np.array([0, 1]))
    assert same.nearest(np.array([[0]], np.uint8)).tolist() == [0]


def test_strangers_are_far_from_all() -> None:
    patterns = bits(1, 3, 200)
    members = np.repeat(patterns[:2], 15, axis=0) ^ (rng(1, "flips").random((30, 200)) < 0.1)
    labels = np.repeat([0, 1], 15)
    centres = Centroids.of(members, labels)
    more = np.repeat(patterns, 5, axis=0) ^ (rng(2, "flips").random((15, 200)) < 0.1)
    assert centres.strangers(more, members, labels).tolist() == [False] * 10 + [True] * 5


def test_without_a_cluster_of_two_nobody_is_a_stranger() -> None:
    own = bits(3, 2)
    centres = Centroids.of(own, np.array([0, 1]))
    assert not centres.strangers(1 - own, own, np.array([0, 1])).any()


def test_a_new_cluster() -> None:
    own = bits(4, 6)
    centres = Centroids.of(own[:4], np.array([0, 0, 1, 1])).with_cluster(own[4:])
    assert len(centres) == 3
    assert centres.means[2].numpy() == pytest.approx(own[4:].mean(0))
    assert centres.sizes.tolist() == [2, 2, 2]

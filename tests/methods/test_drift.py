"""Who moves, who stays, who founds a cluster."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coterie.core.rng import rng
from coterie.methods.embedding.clustering.centroids import Centroids, Followed, nearest
from coterie.methods.embedding.drift import follow

CLASSES, LENGTH = 10, 200
PATTERNS = rng(0, "patterns").integers(0, 2, (4, LENGTH)).astype(np.uint8)


def noisy(groups: NDArray[np.int64], seed: int, flips: float) -> NDArray[np.uint8]:
    return PATTERNS[groups] ^ (rng(seed, "flips").random((len(groups), LENGTH)) < flips).astype(np.uint8)


def moved(old: NDArray[np.int64], new: NDArray[np.int64], flips: float) -> tuple[Followed, NDArray[np.int64]]:
    """Clients in the groups `old`, then `new`; only those that change group send other bits."""
    before = noisy(old, 1, flips)
    after = np.where((old == new)[:, None], before, noisy(new, 2, flips))
    centres = Centroids.of(before, old)
    return follow(centres, old, before, after, CLASSES), new


def test_who_drifts_to_a_known_group_moves_there() -> None:
    old = np.arange(30) % 3
    new = old.copy()
    new[:5] = (new[:5] + 1) % 3
    found, truth = moved(old, new, 0.1)
    assert found.labels.tolist() == truth.tolist()
    assert found.parents == []
    assert found.centroids.sizes.tolist() == np.bincount(truth).tolist()


def test_nobody_moves_where_nothing_changes() -> None:
    old = np.arange(30) % 3
    found, _ = moved(old, old, 0.3)
    assert found.labels.tolist() == old.tolist()
    assert found.parents == []


def test_several_who_drift_to_an_unknown_group_found_one_cluster() -> None:
    old = np.arange(45) % 3
    new = old.copy()
    new[:12] = 3
    for flips in (0.02, 0.15):
        found, truth = moved(old, new, flips)
        assert found.labels.tolist() == truth.tolist()
        assert len(found.parents) == 1
        assert np.allclose(found.centroids.sizes, np.bincount(truth))


def test_clients_of_one_new_group_meet_again_from_different_clusters() -> None:
    """The new pattern lies between two known ones, so its clients first go to either of them."""
    between = PATTERNS.copy()
    between[3] = np.where(np.arange(LENGTH) % 2, PATTERNS[0], PATTERNS[1])
    old = np.arange(60) % 3
    new = old.copy()
    new[:20] = 3
    before = noisy(old, 1, 0.15)
    flips = (rng(2, "flips").random((60, LENGTH)) < 0.15).astype(np.uint8)
    after = np.where((old == new)[:, None], before, between[new] ^ flips)
    centres = Centroids.of(before, old)
    assert len(set(centres.nearest(after[:20]).tolist())) > 1
    found = follow(centres, old, before, after, CLASSES)
    assert found.labels.tolist() == new.tolist()
    assert len(found.parents) == 1


def test_one_stranger_founds_a_cluster_of_its_own_where_bits_are_clear() -> None:
    old = np.arange(30) % 3
    new = old.copy()
    new[7] = 3
    found, truth = moved(old, new, 0.02)
    assert found.labels.tolist() == truth.tolist()
    assert len(found.parents) == 1


def test_centres_are_the_means_of_their_members() -> None:
    old = np.arange(40) % 3
    new = old.copy()
    new[:12] = 3
    new[20] = (new[20] + 1) % 3
    before = noisy(old, 1, 0.1)
    after = np.where((old == new)[:, None], before, noisy(new, 2, 0.1))
    found = follow(Centroids.of(before, old), old, before, after, CLASSES)
    for cluster in range(len(found.centroids)):
        assert np.allclose(found.centroids.means[cluster], after[found.labels == cluster].mean(0))


def test_newcomers_join_known_groups_and_found_unknown_ones() -> None:
    """30 members of three groups; 6 newcomers of them, and 12 of a fourth, whose rows of `before` do not count."""
    truth = np.concatenate([np.arange(30) % 3, np.arange(6) % 3, np.full(12, 3)])
    bits = noisy(truth, 1, 0.1)
    labels = np.where(np.arange(48) < 30, truth, -1)
    before = np.where((labels < 0)[:, None], 0, bits).astype(np.uint8)
    found = follow(Centroids.of(bits[:30], truth[:30]), labels, before, bits, CLASSES)
    assert found.labels.tolist() == truth.tolist()
    assert len(found.parents) == 1
    assert found.centroids.sizes.tolist() == np.bincount(truth).tolist()


def test_a_newcomer_that_is_like_nobody_goes_to_the_nearest_until_there_are_more() -> None:
    truth = np.concatenate([np.arange(30) % 3, [3]])
    bits = noisy(truth, 1, 0.02)
    centres = Centroids.of(bits[:30], truth[:30])
    assert centres.strangers(bits[30:], bits[:30], truth[:30]).all()
    found = follow(centres, np.where(truth == 3, -1, truth), bits, bits, CLASSES)
    assert found.labels[30] == nearest(centres, np.array([-1]), bits[30:]).labels[0]
    assert found.parents == []

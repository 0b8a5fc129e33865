"""Ward's tree against scikit-learn, and every score read off it against the score computed from the points."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.cluster import AgglomerativeClustering
from sklearn.metrics import adjusted_rand_score, calinski_harabasz_score, silhouette_score

from coterie.core.errors import CoterieError
from coterie.core.rng import rng
from coterie.methods.embedding.clustering.ward import silhouettes, squared_distances, ward


def blobs(seed: int, groups: int, each: int, length: int = 60, noise: float = 0.1) -> NDArray[np.uint8]:
    """Bits of clients in groups: a random pattern per group, some bits flipped."""
    generator = rng(seed, "blobs")
    patterns = generator.random((groups, length)) < 0.5
    flips = generator.random((groups * each, length)) < noise
    return (np.repeat(patterns, each, axis=0) ^ flips).astype(np.uint8)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(2, 8))
def test_every_cut_is_scikit_learns(seed: int, groups: int, each: int) -> None:
    bits = blobs(seed, groups, each, length=97)
    tree = ward(bits)
    for k in (1, 2, 3, min(5, len(bits))):
        theirs = AgglomerativeClustering(n_clusters=min(k, len(bits))).fit_predict(bits)
        # equal distances may be merged in another order: then both are Ward trees, of equal heights
        if len(np.unique(tree.heights.round(6))) == len(tree.heights):
            assert adjusted_rand_score(theirs, tree.cut(min(k, len(bits)))) == 1.0


def test_thresholds_are_on_scikit_learns_scale() -> None:
    bits = blobs(3, 3, 6)
    tree = ward(bits)
    for threshold in (1.0, 4.0, 6.0, 9.0, 14.0, 50.0):
        theirs = AgglomerativeClustering(n_clusters=None, distance_threshold=threshold).fit(bits)
        assert tree.clusters_at(threshold) == theirs.n_clusters_


def test_scores_of_all_cuts_equal_those_computed_from_the_points() -> None:
    bits = blobs(1, 3, 7).astype(np.uint8)
    tree = ward(bits)
    found = dict(silhouettes(tree, squared_distances(bits), len(bits)))
    for k in range(2, len(bits)):
        labels = tree.cut(k)
        means = np.stack([bits[labels == c].mean(0) for c in range(k)])
        assert tree.within[k - 1] == pytest.approx(((bits - means[labels]) ** 2).sum(), abs=1e-9)
        assert tree.calinski_harabasz[k - 1] == pytest.approx(calinski_harabasz_score(bits, labels))
        assert tree.smallest[k - 1] == np.bincount(labels).min()
        assert found[k] == pytest.approx(silhouette_score(bits, labels))
    assert set(found) == set(range(2, len(bits)))


def test_nodes_sizes_and_members_agree() -> None:
    tree = ward(blobs(2, 2, 5))
    assert tree.members(tree.root).tolist() == list(range(10))
    left, right = tree.children(tree.root)
    assert sorted([*tree.members(left), *tree.members(right)]) == list(range(10))
    assert tree.sizes[left] + tree.sizes[right] == 10
    assert tree.cut(2)[0] == 0, "clusters are numbered by their first member"


def test_distances_of_bits_and_of_numbers() -> None:
    bits = blobs(4, 2, 3)
    hamming = (bits[:, None] != bits[None]).sum(2)
    assert (squared_distances(bits) == hamming).all()
    numbers = rng(0, "numbers").random((5, 3))
    assert np.allclose(squared_distances(numbers), ((numbers[:, None] - numbers[None]) ** 2).sum(2))


def test_one_point_and_equal_points() -> None:
    one = ward(np.ones((1, 8), np.uint8))
    assert one.cut(1).tolist() == [0]
    assert one.root == 0
    same = ward(np.ones((4, 8), np.uint8))
    assert same.heights.tolist() == [0, 0, 0]
    assert same.cut(4).tolist() == [0, 1, 2, 3]


def test_refusals() -> None:
    with pytest.raises(CoterieError, match="a row per client"):
        ward(np.zeros((0, 3)))
    with pytest.raises(CoterieError, match="cannot be cut into 9"):
        ward(np.eye(4)).cut(9)

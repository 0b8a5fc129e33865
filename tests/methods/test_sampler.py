"""Partitions by the likelihood with the groups' means integrated out."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sklearn.metrics import adjusted_rand_score

from coterie.core.rng import rng
from coterie.methods.embedding.clustering.sampler import Evidence, likeliest, merged


def test_the_likelihood_is_that_of_the_normal_with_both_effects() -> None:
    """One bit, two classes, three clients of one group; the first holds both classes, the others one each."""
    own, shared, noise = np.array([[0.3], [0.2]]), np.array([0.15]), np.array([[0.5], [0.4]])
    held = np.array([[1.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    values = rng(0, "values").normal(size=(3, 2, 1)) * held[:, :, None]
    evidence = Evidence(values, held, own, shared, noise)
    place, seen = [0, 1, 0, 1], np.array([values[0, 0, 0], values[0, 1, 0], values[1, 0, 0], values[2, 1, 0]])
    alone = np.diag([noise[c, 0] for c in place])
    together = alone + shared[0] + np.array([[own[c, 0] * (c == d) for d in place] for c in place])
    expected = multivariate_normal.logpdf(seen, cov=together) - multivariate_normal.logpdf(seen, cov=alone)
    assert float(evidence.likelihood(values.sum(0), held.sum(0))) == pytest.approx(expected)


def test_clients_without_a_common_class_are_joined_by_what_a_group_does_to_all_classes() -> None:
    """Two groups; half of the clients hold classes 0 and 1, half 2 and 3; half of the bits are the group's alone."""
    g = rng(1, "shared")
    truth, half = np.arange(24) % 2, np.arange(24) // 2 % 2
    of_group, of_class = g.random((2, 1, 40)) < 0.5, g.random((1, 4, 40)) < 0.5
    x = np.where(np.arange(40) < 20, of_group, of_class)[truth] ^ (g.random((24, 4, 40)) < 0.1)
    held = np.where(half[:, None] == np.arange(4)[None] // 2, 1.0, 0.0)
    found = likeliest(Evidence.of(x.astype(float), held), 6, rng(0, "chains"))
    assert adjusted_rand_score(truth, found) == 1.0


def test_merging_ends_with_one_group_and_leaves_none_empty() -> None:
    g = rng(2, "merging")
    x, held = (g.random((20, 3, 8)) < 0.5).astype(float), np.ones((20, 3))
    steps = merged(Evidence.of(x, held), np.arange(20) % 5)
    assert [len(np.unique(labels)) for labels in steps] == [5, 4, 3, 2, 1]
    assert all(labels.max() + 1 == len(np.unique(labels)) for labels in steps)


def test_probabilities_vary_less_than_bits() -> None:
    """Two of four bits are 1: the mean is (2 + 1) / (4 + 2) = 1/2 and the variance 1/4, of which 0.5 is noise.

    As probabilities 0.9 and 0.1 they are 0.4 from the mean and not 0.5: all variances are 0.64 times as large.
    """
    bits, held = np.array([1.0, 1.0, 0.0, 0.0])[:, None, None], np.ones((4, 1))
    sure, unsure = Evidence.of(bits, held), Evidence.of(0.1 + 0.8 * bits, held)
    assert sure.noise == pytest.approx(np.array([[0.125]]))
    for name in ("noise", "own", "shared"):
        assert getattr(unsure, name) == pytest.approx(0.64 * getattr(sure, name))

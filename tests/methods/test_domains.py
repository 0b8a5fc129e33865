"""Domains from clients' mean features: the closed-form student, pooling, balance and the measures of collapse."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.methods.fedcg.domains import (
    Moments,
    features_of,
    find_domains,
    kmeans,
    mix,
    pool,
    posterior,
    simplex_shares,
    square,
    triangle,
)
from coterie.methods.fedcg.panels import evenness

WIDTH = 6


def clients(mixed: bool, seed: int = 0, n: int = 40) -> list[Tensor]:
    """Twelve clients, each in one of three domains with far means, or with samples of all three in random shares."""
    g = np.random.default_rng(seed)
    centres = 2.0 * g.normal(size=(3, WIDTH))
    made = []
    for k in range(12):
        own = g.choice(3, n, p=g.dirichlet([0.5] * 3)) if mixed else np.full(n, k % 3)
        made.append(torch.from_numpy(centres[own] + g.normal(size=(n, WIDTH))).float())
    return made


def moments(features: list[Tensor]) -> Moments:
    products = torch.stack([triangle(f.T @ f) for f in features])
    number = torch.tensor([float(len(f)) for f in features])
    return Moments.of(torch.stack([f.sum(0) for f in features]), square(products, WIDTH), number)


def test_triangle_and_square_are_inverse() -> None:
    x = torch.randn(3, 5, 5)
    symmetric = x + x.transpose(1, 2)
    assert torch.equal(square(triangle(symmetric), 5), symmetric)
    assert triangle(symmetric).shape == (3, 15)


def test_moments_add_up() -> None:
    features = clients(mixed=False)
    whole, parts = moments(features), moments(features[:5]).plus(moments(features[5:]))
    for name in ("total", "number", "products", "within"):
        assert torch.allclose(getattr(whole, name), getattr(parts, name))
    covariance = sum(torch.cov(f.double().T) for f in features)
    assert torch.allclose(whole.within, torch.as_tensor(covariance), atol=1e-3)


def test_the_student_is_the_ridge_regression_on_all_samples() -> None:
    """As a regression that sees every sample: (Z^T Z + ridge n I)^-1 Z^T Y with Z = (x - mean) / scale and a 1."""
    features = clients(mixed=False)
    found = find_domains(moments(features), 3, 0, 0.05)
    x = torch.cat(features).double()
    z = (x - found.student["mean"].double()) / found.student["scale"].double()
    z = torch.cat([z, torch.ones(len(z), 1, dtype=torch.float64)], 1)
    y = torch.eye(3, dtype=torch.float64)[found.labels.repeat_interleave(40)]
    right = torch.linalg.solve(z.T @ z + 0.05 * len(z) * torch.eye(WIDTH + 1, dtype=torch.float64), z.T @ y)
    assert torch.allclose(found.student["weight"].double(), right, atol=1e-4)


def test_single_domain_clients_are_found_and_told_from_mixed_ones() -> None:
    found = find_domains(moments(clients(mixed=False)), 3, 0, 0.01)
    assert len({tuple(found.labels[k::3].tolist()) for k in range(3)}) == 3
    assert all(len(set(found.labels[k::3].tolist())) == 1 for k in range(3))
    assert found.unevenness < 2
    assert find_domains(moments(clients(mixed=True, n=200)), 3, 0, 0.01).unevenness > 4


def test_posterior_pools_to_certainty() -> None:
    features = clients(mixed=False)
    found = find_domains(moments(features), 3, 0, 0.01)
    for k, own in enumerate(features):
        told = posterior(found.student, own)
        assert torch.allclose(told.sum(1), torch.ones(len(own)))
        together = pool(told)
        assert together.shape == told.shape
        assert (together.argmax(1) == found.labels[k]).all()
        assert together[0].max() >= told.mean(0).max()


def test_shares_of_a_known_simplex_are_found() -> None:
    """Thirty mixtures of three corners in five dimensions, the corners among them: shares to the third digit."""
    g = np.random.default_rng(3)
    corners = torch.from_numpy(g.normal(size=(3, 5)))
    shares = torch.from_numpy(np.vstack([np.eye(3), g.dirichlet([0.7] * 3, 27)]))
    found = simplex_shares(shares @ corners, torch.full((30,), 10.0), 3)
    renamed = found[:, found[:3].argmax(1)]
    assert torch.allclose(renamed, shares, atol=1e-3)


@pytest.mark.parametrize("points", [torch.ones(1, 4), torch.ones(5, 4), torch.eye(2)])
def test_shares_of_too_few_different_points_still_sum_to_one(points: Tensor) -> None:
    found = simplex_shares(points, torch.ones(len(points)), 4)
    assert torch.allclose(found.sum(1), torch.ones(len(points), dtype=torch.float64))
    assert (found >= 0).all()


def test_images_of_mixed_clients_are_told_apart_better_in_the_light_of_their_client() -> None:
    g = np.random.default_rng(5)
    centres = 1.2 * g.normal(size=(3, WIDTH))
    own = [g.choice(3, 200, p=g.dirichlet([0.4] * 3)) for _ in range(24)]
    features = [torch.from_numpy(centres[k] + g.normal(size=(200, WIDTH))).float() for k in own]
    found = find_domains(moments(features), 3, 0, 0.01)
    true = torch.stack([torch.bincount(torch.from_numpy(k), minlength=3) / 200 for k in own]).double()
    name = (found.shares.T @ true).argmax(1)
    assert sorted(name.tolist()) == [0, 1, 2]
    assert float((found.shares - true[:, name]).abs().mean()) < 0.08

    def right(how: Callable[[Tensor], Tensor]) -> float:
        told = [name[how(posterior(found.student, each)).argmax(1)] for each in features]
        return float(np.mean(torch.cat(told).numpy() == np.concatenate(own)))

    assert right(lambda told: told) > 0.75
    assert right(mix) > right(lambda told: told) + 0.02
    assert right(mix) > right(pool) + 0.1


def test_features_depend_on_the_seed_alone() -> None:
    x = torch.randn(4, 3, 32, 32)
    assert features_of(x, 1, 9).shape == (4, 9)
    assert torch.equal(features_of(x, 1, 9), features_of(x.clone(), 1, 9))
    assert not torch.equal(features_of(x, 1, 9), features_of(x, 2, 9))
    assert features_of(torch.randn(2, 5), 1, 9).shape == (2, 9)


def test_evenness_of_histograms() -> None:
    assert evenness(torch.tensor([5, 5, 5, 5])) == pytest.approx(1.0)
    assert evenness(torch.tensor([20, 0, 0, 0])) == pytest.approx(0.0, abs=1e-6)
    assert evenness(torch.tensor([3])) == 1.0
    assert evenness(torch.zeros(3)) == pytest.approx(0.0, abs=1e-6)


def test_kmeans_with_too_few_points() -> None:
    assert kmeans(torch.zeros(0, 2), 4, 0).tolist() == []
    assert kmeans(torch.ones(3, 2), 4, 0).tolist() == [0, 0, 0]
    empty = find_domains(moments([torch.zeros(0, WIDTH), *clients(mixed=False)]), 3, 0, 0.01)
    assert torch.isfinite(empty.student["weight"]).all()

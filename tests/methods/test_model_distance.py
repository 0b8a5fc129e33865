"""The federated model distance, by hand on a linear model of two classes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from coterie.core.states import Stack, stack
from coterie.core.task import Task
from coterie.methods.md_icfl.distance import label_shares, nearest, read_samples


def linear(dtype: torch.dtype = torch.float64, *, use_kernel: bool = True) -> Task:
    """Logits (a x, b x) of one number x."""
    return Task(lambda: nn.Linear(1, 2, bias=False), (1,), 2, dtype=dtype, use_kernel=use_kernel)


def models(*weights: tuple[float, float], dtype: torch.dtype = torch.float64) -> Stack:
    """Stacked linear models."""
    return {"weight": torch.tensor([[[a], [b]] for a, b in weights], dtype=dtype)}


def samples(*clusters: list[list[float]]) -> Tensor:
    """[K, C, M, 1] from nested lists [class][sample]."""
    return torch.tensor(clusters, dtype=torch.float64)[..., None]


@pytest.mark.parametrize("use_kernel", [True, False])
def test_by_hand(use_kernel: bool) -> None:
    """Cluster model (0, 0) says (1/2, 1/2) to all; client model (ln 3, 0) says (3/4, 1/4) to 1, (1/4, 3/4) to -1.

    So x = 1 and x = -1 are at distance |3/4 - 1/2| + |1/4 - 1/2| = 1/2 and x = 0 at distance 0. Class 0 has the samples
    1 and 0: d = 1/4. Class 1 has 1 and -1: d = 1/2. The second cluster model is the client's own: d = 0.
    """
    clients = models((math.log(3), 0.0))
    clusters = models((0.0, 0.0), (math.log(3), 0.0))
    read = read_samples(linear(use_kernel=use_kernel), clients, clusters, samples([[1, 0], [1, -1]], [[1, 5], [2, -3]]))
    wanted = torch.tensor([[0.25, 0.5], [0.0, 0.0]], dtype=torch.float64)
    assert torch.allclose(read.distances[0], wanted, atol=1e-12)
    # the client's mean probabilities on class 0 of cluster 0: the mean of (3/4, 1/4) and (1/2, 1/2)
    assert read.outputs[0, 0, 0].tolist() == pytest.approx([0.625, 0.375])


def test_label_shares_weigh_the_classes_and_an_absent_class_does_not_count() -> None:
    """d_i0 = (1, 0), d_i1 = (0, 0.4). A client of class 1 alone is at 0 from cluster 0, whatever class 0 says."""
    distances = torch.tensor([[[1.0, 0.0], [0.0, 0.4]]] * 3)
    shares = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.25, 0.75]])
    # the third client: 0.25 against 0.3
    assert nearest(distances, shares).tolist() == [0, 1, 0]


def test_ties_go_to_the_lowest_number() -> None:
    assert nearest(torch.full((2, 3, 4), 0.5), torch.full((2, 4), 0.25)).tolist() == [0, 0]


def test_a_model_that_overflows_is_as_far_as_can_be() -> None:
    huge = models((1e38, -1e38), (0.0, 0.0), dtype=torch.float32)
    points = samples([[1e10, -1e10]] * 2).float()
    read = read_samples(linear(torch.float32), huge, models((0.0, 0.0), dtype=torch.float32), points)
    assert bool(torch.isfinite(read.distances).all())
    assert bool(torch.isfinite(read.outputs).all())
    assert read.distances[0].min() >= 1.0
    assert read.distances[1].tolist() == [[0.0, 0.0]]


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 7), st.integers(1, 3), st.integers(1, 4), st.integers(0, 1000))
def test_distances_lie_between_0_and_2_and_are_0_to_oneself(n: int, k: int, m: int, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    clients = {"weight": torch.randn(n, 2, 1, generator=g, dtype=torch.float64) * 3}
    clusters = {"weight": clients["weight"][torch.arange(k) % n]}
    points = torch.randn(k, 2, m, 1, generator=g, dtype=torch.float64)
    found = read_samples(linear(), clients, clusters, points).distances
    assert found.shape == (n, k, 2)
    assert 0 <= float(found.min()) <= float(found.max()) <= 2
    assert all(float(found[j % n, j].max()) < 1e-12 for j in range(k))
    alone = [read_samples(linear(), {"weight": clients["weight"][i : i + 1]}, clusters, points) for i in range(n)]
    assert torch.equal(found, torch.cat([one.distances for one in alone]))


def test_label_shares_of_clients() -> None:
    shares = label_shares([torch.tensor([0, 0, 2]), torch.tensor([], dtype=torch.int64)], 4)
    assert shares.tolist() == [pytest.approx([2 / 3, 0, 1 / 3, 0]), [0.25] * 4]


def test_images_and_many_models_at_once() -> None:
    """Kernel and torch agree on a convolutional net, all clients in one call."""

    def net() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))

    fast, plain = (Task(net, (1, 4, 4), 3, use_kernel=use) for use in (True, False))
    clients, clusters = stack([fast.init(0, i) for i in range(5)]), stack([fast.init(1, i) for i in range(2)])
    points = torch.randn(2, 3, 4, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    one, two = (read_samples(task, clients, clusters, points) for task in (fast, plain))
    assert torch.allclose(one.distances, two.distances, atol=1e-5)
    assert torch.allclose(one.outputs, two.outputs, atol=1e-5)

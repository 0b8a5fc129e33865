"""W of FedCG's graph: what each kind computes, how it starts, and how large it may be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from coterie.core.errors import CoterieError
from coterie.methods.fedcg.graph import DomainGraph, Graph, WKind, fixed_adjacency
from coterie.methods.fedcg.network import fedcg
from coterie.models import build_model

from .test_fedcg_layers import A3, normed


def test_a_literal_w_that_does_not_fit_is_refused_with_its_size() -> None:
    """FEMNIST's second convolution: q = 51,264 with the bias, so W is 51,264^2 floats = 10.5 GB."""
    femnist = build_model("femnist-port", (1, 28, 28), 62)
    with pytest.raises(CoterieError, match=r"51264 x 51264 .* 10\.5 GB.*1 GiB are allowed.*low_rank.*w_limit"):
        fedcg(femnist, graph=Graph(w="full"))
    with pytest.raises(CoterieError, match=r"bottleneck W .* 1\.3 GB"):
        fedcg(femnist, graph=Graph(w="bottleneck", bottleneck=16))
    small = fedcg(femnist, graph=Graph(w="per_filter"))
    assert small.state_dict()["network.3.graph.weight"].shape == (801, 801)


def test_the_limit_of_w_is_the_users() -> None:
    """FEMNIST's bottleneck of 2 * 51,264 * 3,204 floats is 1.22 GiB; on torch's "meta" device it takes no memory."""
    graph = Graph(w="bottleneck", limit=1.3)
    with torch.device("meta"):
        made = DomainGraph((64, 32, 5, 5), True, graph)
    assert made.narrow.shape == (51264, 3204)
    with pytest.raises(CoterieError, match=r"and 1\.2 GiB are allowed"):
        DomainGraph((64, 32, 5, 5), True, replace(graph, limit=1.2))
    for w in ("full", "low_rank", "per_filter"):
        with pytest.raises(CoterieError, match="would take"):
            DomainGraph((6, 4, 3, 3), True, Graph(w=w, limit=1e-9))


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("rank", [1, 3, 14])
def test_a_w_of_low_rank_is_the_full_one_with_their_product(rank: int, relu: bool) -> None:
    """sigma(A V (U V^T)) and its gradients by V, U and V^T: by the product of q x q first, or never made."""
    sigma: Any = "relu" if relu else "none"
    g = torch.Generator().manual_seed(2)
    thin = DomainGraph((2, 3, 2), True, Graph(w="low_rank", sigma=sigma, rank=rank)).double()
    whole = DomainGraph((2, 3, 2), True, Graph(w="full", sigma=sigma)).double()
    with torch.no_grad():
        for part in (thin.left, thin.right):
            part.copy_(torch.randn(part.shape, generator=g, dtype=torch.float64))
        whole.weight.copy_(thin.left @ thin.right.T)
    values = torch.randn(3, 14, generator=g, dtype=torch.float64, requires_grad=True)
    rows = torch.tensor([2, 0])
    found, right = (graph(values, A3.double(), rows) for graph in (thin, whole))
    assert torch.allclose(found, right, rtol=1e-12, atol=1e-12)
    by_values, by_left, by_right = torch.autograd.grad(found.sin().sum(), [values, thin.left, thin.right])
    values_again, by_w = torch.autograd.grad(right.sin().sum(), [values, whole.weight])
    assert torch.allclose(by_values, values_again, rtol=1e-10, atol=1e-12)
    assert torch.allclose(by_left, by_w @ thin.right, rtol=1e-10, atol=1e-12)
    assert torch.allclose(by_right, by_w.T @ thin.left, rtol=1e-10, atol=1e-12)


def test_a_w_of_low_rank_keeps_the_first_parameters() -> None:
    """W = Q Q^T at first, Q with orthonormal columns: a projection of that rank, and A V W = A V."""
    for start, scale in (("random", 1.0), ("zero", 1.0), (None, None)):
        graph = Graph(A3, "low_rank", "none", rank=8)
        net = fedcg(normed(), domains=3, layers="3", graph=graph, start=start, scale=scale)  # type: ignore[arg-type]
        layer: Any = net.layers()[0][1]
        w = (layer.graph.left @ layer.graph.right.T).detach()
        assert torch.allclose(w @ w, w, atol=1e-6)
        assert float(w.trace()) == pytest.approx(8, abs=1e-4)
        mixed = A3 @ layer.residual
        assert torch.allclose(layer.graph(layer.residual, A3, torch.arange(3)), mixed, atol=1e-6)


def test_the_start_of_a_w_of_low_rank_depends_on_no_number_of_threads() -> None:
    """A solver of LAPACK's would sum 50,000 numbers in as many parts as there are threads."""
    values = torch.randn(4, 51264)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 4):
            torch.set_num_threads(threads)
            graph = DomainGraph((64, 32, 5, 5), True, Graph(w="low_rank", rank=6))
            with torch.no_grad():
                graph.left.copy_(torch.randn(51264, 6, generator=torch.Generator().manual_seed(1)))
            graph.begin(values)
            found.append(graph.left.detach())
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)


def test_femnists_graph_runs_with_a_w_of_low_rank() -> None:
    """2 * 51,264 * 16 floats are 6.6 MB, where the paper's two layers would be 1.3 GB; a step reaches all parts."""
    graph = Graph(fixed_adjacency("uniform", 4, 0.5), "low_rank")
    net = fedcg(build_model("femnist-port", (1, 28, 28), 62), graph=graph)
    layer: Any = net.layers()[0][1]
    assert 4 * (layer.graph.left.numel() + layer.graph.right.numel()) == 6_561_792
    net(torch.rand(4, 1, 28, 28), torch.tensor([0, 1, 2, 2])).logsumexp(1).sum().backward()
    for part in (layer.residual, layer.graph.left, layer.graph.right):
        assert part.grad.abs().sum() > 0


def test_a_filters_w_cannot_mix_filters_and_a_full_one_can() -> None:
    """One row of V that is 1 in the first of two filters: what W makes of it in the second filter."""
    values = torch.zeros(1, 12)
    values[0, 0] = 1.0
    other = slice(6, 12)
    for w, mixes in (("per_filter", False), ("full", True), ("low_rank", True)):
        graph = DomainGraph((2, 3, 2), False, Graph(w=w, sigma="none"))  # type: ignore[arg-type]
        with torch.no_grad():
            for parameter in graph.parameters():
                parameter.fill_(0.5)
        assert bool((graph(values, torch.eye(1), torch.tensor([0]))[:, other] != 0).any()) == mixes


def test_w_starts_as_the_identity() -> None:
    values = torch.randn(3, 14)
    kinds: tuple[WKind, ...] = ("none", "full", "per_filter")
    for w in kinds:
        graph = DomainGraph((2, 3, 2), True, Graph(w=w, sigma="none"))
        assert torch.allclose(graph(values, torch.eye(3), torch.tensor([2, 0])), values[[2, 0]])

"""Domain layers: equations 4 and 5 by hand, routing, the gradient through A, export."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from coterie.core.errors import CoterieError
from coterie.methods.fedcg import route
from coterie.methods.fedcg.classifier import domain_classifier
from coterie.methods.fedcg.graph import distance_adjacency, fixed_adjacency
from coterie.methods.fedcg.network import DomainNet, Graph, choose_layers, export, fedcg
from coterie.models import build_model


def normed() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 3, stride=2, bias=False),
        nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(54, 5), nn.ReLU(), nn.Linear(5, 3),
    )  # fmt: skip


def shaken(net: DomainNet, seed: int = 0) -> DomainNet:
    """Every parameter moved, so that nothing is zero or the identity by chance."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in net.parameters():
            width = parameter.shape[-1] if parameter.dim() else 1
            parameter.add_(0.3 / width**0.5 * torch.randn(parameter.shape, generator=g))
    return net


def images(n: int = 7) -> Tensor:
    return torch.randn(n, 2, 7, 7, generator=torch.Generator().manual_seed(3))


A3 = torch.tensor([[0.5, 0.2, 0.3], [0.1, 0.6, 0.3], [0.25, 0.25, 0.5]])


def test_equation_4_and_5_by_hand() -> None:
    """D = 2, a layer of one weight w = 2 without bias, V = (1, -3), A = (.75 .25; .5 .5), W = (2), lambda = 10.

    A V = (0, -1); times W (0, -2); ReLU (0, 0). Without ReLU: z_0 = 2 x and z_1 = (2 + 10 * -2) x = -18 x.
    """
    adjacency = torch.tensor([[0.75, 0.25], [0.5, 0.5]])
    for sigma, expected in (("none", [2.0, -18.0]), ("relu", [2.0, 2.0]), ("on_activation", [2.0, 2.0])):
        layer = nn.Linear(1, 1, bias=False)
        layer.weight.data.fill_(2.0)
        graph = Graph(adjacency, "per_filter", sigma)  # type: ignore[arg-type]
        net = fedcg(layer, domains=2, scale=10.0, graph=graph)
        domain_layer: Any = net.layers()[0][1]
        domain_layer.residual.data = torch.tensor([[1.0], [-3.0]])
        domain_layer.graph.weight.data.fill_(2.0)
        out = net(torch.tensor([[1.0], [1.0]]), torch.tensor([0, 1]))
        assert out.flatten().tolist() == expected
    # the activation is rectified, not the parameter: a negative input lets domain 1 through, -2 * 1 + 10 * relu(2)
    assert net(torch.tensor([[-1.0]]), torch.tensor([1])).item() == pytest.approx(18.0)


def test_without_an_agnostic_part_the_activation_is_rectified_too() -> None:
    """V = (1, -3) alone: f_0(2) = relu(2), f_1(2) = relu(-6), f_1(-2) = relu(6)."""
    layer = nn.Linear(1, 1, bias=False)
    net = fedcg(layer, domains=2, scale=None, graph=Graph(torch.eye(2), "none", "on_activation"))
    domain_layer: Any = net.layers()[0][1]
    domain_layer.residual.data = torch.tensor([[1.0], [-3.0]])
    out = net(torch.tensor([[2.0], [2.0], [-2.0]]), torch.tensor([0, 1, 1]))
    assert out.flatten().tolist() == [2.0, 0.0, 6.0]


def test_adjacency_by_hand() -> None:
    """Distances 3 (0-1), 4 (0-2), 5 (1-2): row 0 shares .5 as 1/3 : 1/4, row 1 as 1/3 : 1/5, row 2 as 1/4 : 1/5."""
    theta = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0]])
    found = distance_adjacency(theta, 0.5)
    right = torch.tensor([[0.5, 2 / 7, 3 / 14], [5 / 16, 0.5, 3 / 16], [5 / 18, 2 / 9, 0.5]])
    assert torch.allclose(found, right, atol=1e-6)
    sharper = distance_adjacency(theta, 0.5, sharpness=2.0)
    assert sharper[0, 1] > found[0, 1]


@pytest.mark.parametrize("domains", [1, 2, 5])
@pytest.mark.parametrize("beta", [0.1, 0.5, 1.0])
def test_rows_of_every_adjacency_sum_to_one(domains: int, beta: float) -> None:
    g = torch.Generator().manual_seed(1)
    theta = torch.randn(domains, 9, generator=g)
    made = [fixed_adjacency(kind, domains, beta, g) for kind in ("eye", "random", "uniform", "hamming")]
    made += [distance_adjacency(theta, beta), distance_adjacency(theta.new_ones(domains, 4), beta)]
    made += [distance_adjacency(theta, beta, sharpness=4.0, samples=torch.arange(domains), few=3.0)]
    twins = theta.clone()
    twins[-1] = twins[0]
    made.append(distance_adjacency(twins, beta))
    for adjacency in made:
        assert torch.isfinite(adjacency).all()
        assert torch.allclose(adjacency.sum(1), torch.ones(domains))
        assert (adjacency >= 0).all()


def test_poor_domains_borrow_and_rich_ones_do_not() -> None:
    found = distance_adjacency(torch.eye(3), 0.5, samples=torch.tensor([990.0, 10.0, 0.0]), few=10.0)
    assert found.diagonal().tolist() == pytest.approx([0.99, 0.5, 0.5])


def test_hamming_weighs_by_differing_digits() -> None:
    found = fixed_adjacency("hamming", 4, 0.5)
    assert found[0].tolist() == pytest.approx([0.5, 0.2, 0.2, 0.1])


def test_equal_domains_share_alike() -> None:
    assert torch.allclose(distance_adjacency(torch.ones(3, 4), 0.4), fixed_adjacency("uniform", 3, 0.4))


@pytest.mark.parametrize("layers", ["last", "convolutions", "all", "0,7"])
@pytest.mark.parametrize("w", ["none", "full", "low_rank", "per_filter", "bottleneck"])
@pytest.mark.parametrize("sigma", ["none", "relu", "on_activation"])
@pytest.mark.parametrize("mixed", [[2, 0, 0, 1, 2, 2, 0], [2, 0, 0, 0, 0, 0, 0]])
def test_routing_in_one_batch_equals_sample_by_sample(layers: str, w: Any, sigma: Any, mixed: list[int]) -> None:
    torch.manual_seed(0)
    net = shaken(fedcg(normed(), domains=3, layers=layers, graph=Graph(A3, w, sigma, 4), start="random")).eval()
    x, domains = images(), torch.tensor(mixed)
    together = net(x, domains)
    one_by_one = torch.cat([net(x[i : i + 1], domains[i : i + 1]) for i in range(len(x))])
    assert torch.allclose(together, one_by_one, atol=1e-5)
    hot = torch.nn.functional.one_hot(domains, 3).float()
    assert torch.allclose(together, net(x, hot), atol=1e-5)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv2d(4, 6, 3), (4, 7, 5)),
        (nn.Conv2d(4, 6, (3, 2), stride=2, padding=1, dilation=2, groups=2, bias=False), (4, 7, 5)),
        (nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), (4, 7, 5)),
        (nn.BatchNorm2d(4), (4, 3, 2)),
        (nn.Linear(5, 3), (5,)),
        (nn.Linear(5, 3, bias=False), (4, 5)),
    ],
)
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_one_call_for_all_domains_equals_one_for_each(
    layer: nn.Module, shape: tuple[int, ...], form: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = shaken(fedcg(layer, domains=4, layers="all", start="random")).double()
    domains = torch.tensor([3, 1, 1, 0, 3, 0, 3])  # three of four domains, and an empty place in two of them
    x = torch.randn(7, *shape, dtype=torch.float64)
    x = x.to(memory_format=form) if x.dim() == 4 else x
    x.requires_grad_()
    found = []
    for limit in (route._EVEN, 0.0):
        monkeypatch.setattr(route, "_EVEN", limit)
        z = net(x, domains)
        assert net._route.is_even == (limit > 0)
        if form is torch.channels_last and z.dim() == 4:
            assert z.is_contiguous(memory_format=form)  # or the next layers would be slower
        found.append([z, *torch.autograd.grad(z.sin().sum(), [x, *net.parameters()])])
    for one, each in zip(*found, strict=True):
        assert torch.allclose(one, each, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("sigma", ["none", "relu", "on_activation"])
@pytest.mark.parametrize("w", ["none", "full", "low_rank", "per_filter", "bottleneck"])
def test_export_gives_the_same_outputs_without_the_graph(sigma: Any, w: Any) -> None:
    torch.manual_seed(0)
    net = shaken(fedcg(normed(), domains=3, layers="all", graph=Graph(A3, w, sigma, 4), start="random")).eval()
    folded = export(net)
    weights = torch.rand(7, 3, generator=torch.Generator().manual_seed(5))
    weights = weights / weights.sum(1, keepdim=True)
    with torch.no_grad():
        for domains in (torch.tensor([0, 1, 2, 2, 1, 0, 1]), weights, weights[:1].expand(7, 3)):
            assert torch.allclose(net(images(), domains), folded(images(), domains), atol=1e-6, rtol=1e-5)
    names = list(folded.state_dict())
    assert not any("graph" in name or name == "adjacency" for name in names)
    freed = sum(p.numel() for p in net.parameters()) - sum(p.numel() for p in folded.parameters())
    w_size = sum(p.numel() for name, p in net.named_parameters() if "graph" in name)
    agnostic = sum(p.numel() for name, p in net.named_parameters() if not name.endswith("residual")) - w_size
    assert freed == w_size + (0 if sigma == "on_activation" else agnostic)


def test_soft_domains_are_equation_4() -> None:
    """f_a(x) + lambda sum_d w_d f_d(x), computed layer by layer from its parts."""
    torch.manual_seed(0)
    net = shaken(fedcg(nn.Sequential(nn.Linear(4, 3)), domains=2, start="random"))
    layer: Any = net.layers()[0][1]
    x, w = torch.randn(5, 4), torch.tensor([[0.3, 0.7]] * 2 + [[1.0, 0.0]] * 3)
    parts = [x @ v[:12].view(3, 4).T + v[12:] for v in layer.residual]
    weight, bias = layer.common
    right = x @ weight.T + bias + layer.scale * (w[:, :1] * parts[0] + w[:, 1:] * parts[1])
    assert torch.allclose(net(x, w), right, atol=1e-6)
    even = torch.full((5, 2), 0.5)
    assert torch.equal(net(x), net(x, even))


def test_the_gradient_reaches_every_domain_through_the_adjacency_and_only_then() -> None:
    for adjacency, reached in ((A3, True), (None, False)):
        torch.manual_seed(0)
        net = fedcg(normed(), domains=3, layers="convolutions", graph=Graph(adjacency, "per_filter", "none"))
        net(images(), torch.ones(7, dtype=torch.int64)).sum().backward()
        for _, layer in net.layers():
            moved = layer.residual.grad.abs().sum(1) > 0  # type: ignore[union-attr]
            assert moved.tolist() == [reached, True, reached]


def test_one_domain_is_the_plain_network_plus_one_residual() -> None:
    torch.manual_seed(0)
    plain = normed().eval()
    net = fedcg(plain, domains=1, layers="all").eval()
    zeros = torch.zeros(7, dtype=torch.int64)
    assert torch.allclose(net(images(), zeros), plain(images()), atol=1e-6)
    again = copy.deepcopy(plain)
    with torch.no_grad():
        for name, layer in net.layers():
            layer.residual.fill_(0.1)
            own: Any = again.get_submodule(name.removeprefix("network."))
            own.weight.add_(0.1)
            if own.bias is not None:
                own.bias.add_(0.1)
    assert torch.allclose(net(images(), zeros), again(images()), atol=1e-5)


def test_without_agnostic_part_each_domain_starts_as_the_layer() -> None:
    torch.manual_seed(0)
    plain = normed().eval()
    net = fedcg(plain, domains=2, layers="convolutions", scale=None).eval()
    assert torch.allclose(net(images(), torch.tensor([0, 1] * 3 + [0])), plain(images()), atol=1e-6)
    assert not any(name.endswith("scale") for name in net.state_dict())


def test_normalisation_statistics_are_common() -> None:
    torch.manual_seed(0)
    plain = normed().train()
    net = fedcg(plain, domains=3, layers="all").train()
    net(images(), torch.tensor([0, 1, 2, 0, 1, 2, 0]))
    plain(images())
    found, right = net.state_dict(), plain.state_dict()
    assert torch.allclose(found["network.1.normalise.running_mean"], right["1.running_mean"])
    assert found["network.1.normalise.num_batches_tracked"] == 1


def test_what_last_means() -> None:
    assert list(choose_layers(normed(), "last")) == ["3", "4"]
    assert list(choose_layers(build_model("digits-cnn", (1, 8, 8), 10), "last")) == ["3"]
    assert list(choose_layers(build_model("digits-mlp", (1, 8, 8), 10), "last")) == ["3"]
    assert list(choose_layers(build_model("mlp", (1, 28, 28), 10), "last")) == ["5"]
    assert list(choose_layers(nn.Linear(3, 2), "last")) == [""]
    assert list(choose_layers(normed(), ["7", "0"])) == ["0", "7"]


def test_a_layer_used_twice_is_replaced_in_both_places() -> None:
    shared = nn.Linear(4, 4)
    net = fedcg(nn.Sequential(shared, nn.ReLU(), shared), domains=2, layers="all")
    assert len(net.layers()) == 1
    network: Any = net.network
    assert network[0] is network[2]


def test_bad_input_is_refused_in_a_sentence() -> None:
    with pytest.raises(CoterieError, match="has none of them"):
        fedcg(nn.ReLU())
    with pytest.raises(CoterieError, match="no layer 'nine'"):
        fedcg(normed(), layers="nine")
    with pytest.raises(CoterieError, match="no convolution"):
        fedcg(nn.Linear(2, 2), layers="convolutions")
    with pytest.raises(CoterieError, match="at least 1 domain"):
        fedcg(normed(), domains=0)
    net = fedcg(normed(), domains=2)
    with pytest.raises(CoterieError, match="there are 2"):
        net(images(), torch.tensor([0, 1, 2, 0, 0, 0, 0]))
    with pytest.raises(CoterieError, match="batch of 7 while the network got 3"):
        net(images(), torch.tensor([0, 1, 1]))
    with pytest.raises(CoterieError, match="needs images"):
        domain_classifier((64,), 4)

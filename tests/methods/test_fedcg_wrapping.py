"""What `fedcg` does with networks out of the ordinary, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie import method
from coterie.core.errors import CoterieError
from coterie.methods.fedcg import FedCG
from coterie.methods.fedcg.graph import fixed_adjacency
from coterie.methods.fedcg.network import Graph, export, fedcg

DOMAINS = torch.tensor([0, 1, 1, 2, 0])


class Encoder(nn.Module):
    """A network that torch computes past its layers when nothing is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        encoded: Tensor = self.layer(x)
        return encoded.mean(1)


def test_torch_takes_no_shortcut_past_domain_layers() -> None:
    net = fedcg(Encoder(), domains=3, layers="layer.linear1,layer.linear2", start="random").eval()
    x = torch.randn(5, 4, 8)
    right = net(x, DOMAINS)
    with torch.no_grad():
        assert torch.allclose(net(x, DOMAINS), right, atol=1e-6)
        assert torch.allclose(export(net)(x, DOMAINS), right, atol=1e-6)
    assert not torch.allclose(net(x, DOMAINS.flip(0)), right, atol=1e-3)


class Reader(nn.Module):
    """A network that computes with a layer's weight itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.first(x), self.second.weight)


def test_a_weight_that_is_read_past_its_layer_is_refused() -> None:
    x = torch.randn(5, 4)
    with pytest.raises(CoterieError, match=r"reads the weight of a layer by itself.*leave that layer out"):
        fedcg(Reader(), domains=3)(x, DOMAINS)
    assert fedcg(Reader(), domains=3, layers="first")(x, DOMAINS).shape == (5, 2)
    layer = fedcg(nn.Linear(2, 2)).layers()[0][1]
    assert not hasattr(layer, "weight")


@pytest.mark.parametrize("sigma", ["none", "relu", "on_activation"])
@pytest.mark.parametrize("affine", [True, False])
def test_float64_stays_float64(sigma: Any, affine: bool) -> None:
    plain = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3, affine=affine), nn.Flatten(), nn.Linear(12, 2)).double()
    graph = Graph(fixed_adjacency("uniform", 3, 0.5), sigma=sigma)
    for start in ("random", None):
        net = fedcg(plain, domains=3, layers="all", graph=graph, start=start)
        net(torch.randn(5, 2, 4, 4, dtype=torch.float64), DOMAINS).sum().backward()
        assert {value.dtype for value in net.state_dict().values()} <= {torch.float64, torch.int64}


def test_what_is_frozen_stays_frozen_and_residuals_learn() -> None:
    plain = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    plain[2].requires_grad_(False)
    net = fedcg(plain, domains=3)
    assert [name for name, parameter in net.named_parameters() if not parameter.requires_grad] == [
        "network.2.weight",
        "network.2.bias",
    ]
    net(torch.randn(5, 4), DOMAINS).sum().backward()
    residual: Any = net.layers()[0][1].residual
    assert residual.grad.abs().sum() > 0


def test_a_sample_that_is_not_finite_harms_its_own_domain_alone() -> None:
    net = fedcg(nn.Linear(3, 2), domains=2, scale=None)
    x = torch.randn(5, 3)
    x[0] = torch.inf
    net(x, torch.tensor([0, 0, 0, 1, 1]))[3:].sum().backward()
    residual: Any = net.layers()[0][1].residual
    assert torch.isfinite(residual.grad[1]).all()


def test_a_graph_starts_residuals_at_random_where_zero_would_hold_them() -> None:
    graph = Graph(torch.eye(3))
    assert graph.sigma == "relu"
    residual: Any = fedcg(nn.Linear(4, 2), domains=3, graph=graph).layers()[0][1].residual
    assert (residual != 0).all()
    with pytest.raises(CoterieError, match="stay there behind a ReLU"):
        fedcg(nn.Linear(4, 2), domains=3, graph=graph, start="zero")


def tied() -> nn.Module:
    network = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    network[2].weight = network[0].weight
    return network


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: fedcg(tied(), layers="2"), "Layer '2' shares its weight with another one"),
        (lambda: fedcg(fedcg(nn.Linear(2, 2))), "has domain layers already"),
        (lambda: fedcg(nn.Linear(2, 2), graph=Graph(w="fulll")), "w is one of none, .*, not 'fulll'"),  # type: ignore[arg-type]
        (lambda: fedcg(nn.Linear(2, 2), graph=Graph(sigma="Relu")), "sigma is one of .*, not 'Relu'"),  # type: ignore[arg-type]
        (lambda: fedcg(nn.Linear(2, 2), graph=Graph(torch.eye(3))), "With 4 domains A must be 4 x 4, not 3 x 3"),
        (lambda: fedcg(nn.Linear(2, 2))(torch.zeros(3, 2), torch.ones(3, 2)), r"weights \[n, 4\], not .*\(3, 2\)"),
        (lambda: fedcg(nn.Linear(2, 2))(torch.zeros(3, 2), torch.tensor(1)), r"not a tensor of \(\)"),
        (lambda: fedcg(nn.Linear(2, 2))(torch.zeros(1, 2), torch.tensor([-1])), r"Domain -1 .* counted from 0\.$"),
    ],
)
def test_what_cannot_be_wrapped_or_routed_is_refused_in_a_sentence(made: Any, message: str) -> None:
    with pytest.raises(CoterieError, match=message):
        made()


def test_the_wrong_number_of_channels_is_told_in_the_layers_own_numbers() -> None:
    net = fedcg(nn.Conv2d(3, 4, 3), domains=3)
    with pytest.raises(RuntimeError, match="to have 3 channels, but got 1"):
        net(torch.randn(5, 1, 6, 6), DOMAINS)


def test_a_preset_is_a_setting_in_python_too() -> None:
    assert method("fedcg", preset="paper", domains=2) == FedCG.preset("paper", domains=2)
    with pytest.raises(CoterieError, match="'papr'"):
        method("fedcg", preset="papr")

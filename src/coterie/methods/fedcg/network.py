"""Any network with domain layers in it: `fedcg` puts them in, `export` folds the graph away."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import ClassVar, get_args

import torch
from torch import Tensor, nn

from coterie.core.errors import CoterieError
from coterie.methods.fedcg.graph import DomainGraph, Graph, Sigma, WKind
from coterie.methods.fedcg.layers import DomainLayer, ResidualStart, domain_layer, parameters_of
from coterie.methods.fedcg.route import Route

__all__ = ["DomainNet", "Graph", "choose_layers", "export", "fedcg"]

_REPLACEABLE = (nn.Linear, nn.Conv2d, nn.BatchNorm2d)


class DomainNet(nn.Module):
    """A network whose samples come with their domains: numbers [n], or weights [n, D]; without any, all weigh alike."""

    wants_extra: ClassVar[bool] = True

    def __init__(self, network: nn.Module, route: Route, domains: int, adjacency: Tensor | None) -> None:
        super().__init__()
        self.network, self.domains, self._route = network, domains, route
        self.adjacency: Tensor | None
        self.register_buffer("adjacency", adjacency)

    def forward(self, x: Tensor, domains: Tensor | None = None) -> Tensor:
        """The network's output."""
        if domains is None:
            domains = torch.full((1, self.domains), 1 / self.domains).expand(len(x), -1)
        self._route.send(domains.to(x.dtype) if domains.is_floating_point() else domains, self.domains)
        self._route.adjacency = self.adjacency
        output: Tensor = self.network(x)
        return output

    def layers(self) -> list[tuple[str, DomainLayer]]:
        """The domain layers by name."""
        return [(name, layer) for name, layer in self.named_modules() if isinstance(layer, DomainLayer)]

    @property
    def residuals(self) -> list[str]:
        """Names of V of every domain layer in the network's state, where a layer used twice is twice."""
        return [f"{name}.residual" for name, _ in self._places()]

    @property
    def scales(self) -> list[str]:
        """Names of lambda of every domain layer with an agnostic part in the network's state."""
        return [f"{name}.scale" for name, layer in self._places() if layer.agnostic]

    def _places(self) -> Iterator[tuple[str, DomainLayer]]:
        for name, layer in self.named_modules(remove_duplicate=False):
            if isinstance(layer, DomainLayer):
                yield name, layer


def fedcg(
    module: nn.Module,
    *,
    domains: int = 4,
    layers: str | Sequence[str] = "last",
    graph: Graph | None = None,
    scale: float | None = 1.0,
    start: ResidualStart | None = None,
) -> DomainNet:
    """A network with domain layers in the place of the chosen ones.

    `layers` is "last" (the last convolution with its normalisation, or, in a network without any, its last layer),
    "convolutions" (all of them and all normalisations), "all" (linear layers too) or the names of layers.
    `scale` is the first lambda; None leaves the agnostic part out. Residuals start at zero, or at random where a
    rectifier would hold them there. The module is copied.
    """
    if domains < 1:
        raise CoterieError(f"There must be at least 1 domain, not {domains}.")
    if any(isinstance(part, DomainLayer) for part in module.modules()):
        raise CoterieError("This network has domain layers already; give FedCG the plain one.")
    rectified = graph is not None and graph.sigma != "none"
    if rectified and start == "zero" and scale is not None:
        raise CoterieError('Residuals at zero stay there behind a ReLU; set start to "random", or sigma to "none".')
    start = start or ("random" if rectified else "zero")
    if graph is not None:
        _check(graph, domains)
    network, route = copy.deepcopy(module), Route()
    chosen = choose_layers(network, layers)
    for name, layer in chosen.items():
        weight, bias = parameters_of(layer)
        if sum(any(own is weight for own in part.parameters(recurse=False)) for part in network.modules()) > 1:
            raise CoterieError(f"Layer {name!r} shares its weight with another one; leave it out of layers.")
        joined = None
        if graph is not None:
            joined = DomainGraph(weight.shape, bias is not None, graph)
            joined.to(weight.dtype)
        new = domain_layer(
            layer,
            route,
            domains,
            start=start,
            scale=scale,
            graph=joined,
            on_activation=graph is not None and graph.sigma == "on_activation",
        )
        if joined is not None:
            joined.begin(new.residual.detach())
        network = _replaced(network, layer, new)
    adjacency = None if graph is None or graph.adjacency is None else graph.adjacency.to(weight.dtype)
    return DomainNet(network, route, domains, adjacency)


def _check(graph: Graph, domains: int) -> None:
    for name, kinds in (("w", get_args(WKind)), ("sigma", get_args(Sigma))):
        if getattr(graph, name) not in kinds:
            raise CoterieError(f"A graph's {name} is one of {', '.join(kinds)}, not {getattr(graph, name)!r}.")
    if graph.adjacency is not None and graph.adjacency.shape != (domains, domains):
        shape = " x ".join(map(str, graph.adjacency.shape))
        raise CoterieError(f"With {domains} domains A must be {domains} x {domains}, not {shape}.")


def export(net: DomainNet) -> DomainNet:
    """The network for inference: one precomputed kernel per layer and domain, no graph, no W, nothing to train."""
    folded = copy.deepcopy(net).eval()
    folded._route.adjacency = folded.adjacency
    for _, layer in folded.layers():
        layer.fold()
    folded.adjacency = None
    return folded.requires_grad_(False)


def choose_layers(module: nn.Module, layers: str | Sequence[str]) -> dict[str, nn.Module]:
    """The layers that a choice names, in the order of the network."""
    known = {name: layer for name, layer in module.named_modules() if type(layer) in _REPLACEABLE}
    if not known:
        raise CoterieError("FedCG needs a Linear, Conv2d or BatchNorm2d layer, and this network has none of them.")
    if layers == "all":
        return known
    images = {name: layer for name, layer in known.items() if not isinstance(layer, nn.Linear)}
    if layers == "convolutions":
        if not images:
            raise CoterieError('This network has no convolution; set layers to "last", "all" or names of layers.')
        return images
    if layers == "last":
        return dict(_last(known))
    names = [part.strip() for part in layers.split(",")] if isinstance(layers, str) else list(layers)
    strangers = [name for name in names if name not in known]
    if strangers or not names:
        raise CoterieError(
            f"There is no layer {strangers[0] if strangers else ''!r} that FedCG can replace; "
            f"there are {', '.join(known)}, or last, convolutions, all."
        )
    return {name: known[name] for name in known if name in names}


def _last(known: dict[str, nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    items = list(known.items())
    convolutions = [place for place, (_, layer) in enumerate(items) if isinstance(layer, nn.Conv2d)]
    place = convolutions[-1] if convolutions else len(items) - 1
    yield items[place]
    if place + 1 < len(items) and isinstance(items[place + 1][1], nn.BatchNorm2d):
        yield items[place + 1]


def _replaced(network: nn.Module, old: nn.Module, new: nn.Module) -> nn.Module:
    """The network with a layer exchanged wherever it is used."""
    if network is old:
        return new
    for parent in list(network.modules()):
        for name, child in list(parent._modules.items()):
            if child is old:
                parent._modules[name] = new
                if isinstance(parent, nn.TransformerEncoderLayer):
                    new.register_forward_pre_hook(_no_shortcut)
    return network


def _no_shortcut(module: nn.Module, inputs: object) -> None:
    """torch computes a TransformerEncoderLayer from its weights, past its layers, unless one of these has a hook."""

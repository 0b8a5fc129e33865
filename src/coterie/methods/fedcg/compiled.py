"""What FedCG's layers are to the compiled kernel."""

from __future__ import annotations

from coterie.kernel.chain import Chain, NotKnown, Routed, register_layer, register_network
from coterie.methods.fedcg.layers import DomainBatchNorm2d, DomainConv2d, DomainLayer, DomainLinear
from coterie.methods.fedcg.network import DomainNet


def _linear(chain: Chain, name: str, layer: DomainLinear) -> None:
    _check(chain, name, layer)
    chain.linear(name, layer.kernel_shape[1], layer.kernel_shape[0], layer.domains)


def _convolution(chain: Chain, name: str, layer: DomainConv2d) -> None:
    _check(chain, name, layer)
    chain.convolution(name, layer.like, layer.domains)


def _normalisation(chain: Chain, name: str, _: DomainBatchNorm2d) -> None:
    raise NotKnown(f"layer {chain.label(name)} is not known to the kernel")


def _check(chain: Chain, name: str, layer: DomainLayer) -> None:
    beyond = _beyond_sums(layer)
    if beyond:
        raise NotKnown(f"{chain.label(name)} has {beyond}, which is left to torch")


def _beyond_sums(layer: DomainLayer) -> str:
    """What keeps a domain from having one kernel that is made by nothing but sums; "" where it has one."""
    if layer.graph is not None and layer.graph.kind != "none":
        return f"a graph with W = {layer.graph.kind}"
    if layer.on_activation or (layer.graph is not None and layer.graph.relu):
        return "a ReLU on its residual"
    return "" if layer.agnostic else "no part for all domains"


def register() -> None:
    """Have the kernel take networks with domains, as far as it can."""
    register_layer(DomainLinear, _linear)
    register_layer(DomainConv2d, _convolution)
    register_layer(DomainBatchNorm2d, _normalisation)
    register_network(DomainNet, Routed(network="network", mix="adjacency"))

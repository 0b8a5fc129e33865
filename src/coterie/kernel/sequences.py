"""Layers over sequences of tokens: from an embedding of all columns to the step that the last layers read."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import fx, nn

from coterie.kernel.chain import Chain, NotKnown
from coterie.kernel.columns import Front
from coterie.kernel.layers import Layer

_ALL = slice(None, None, None)
_SUMS: frozenset[Any] = frozenset((operator.add, operator.iadd, torch.add, "add", "add_"))
_KINDS = (nn.LSTM, nn.TransformerEncoder, nn.TransformerEncoderLayer)


@dataclass(frozen=True)
class _Sequence:
    """What a node of a traced `forward` is: outputs of all steps, those with the states, the states, or all last h."""

    kind: Literal["outputs", "both", "states", "hidden"]
    width: int


_INSIDE: dict[tuple[str, int], Literal["outputs", "states", "hidden"]] = {
    ("both", 0): "outputs",
    ("both", 1): "states",
    ("states", 0): "hidden",
}


class Sequences:
    """The nodes of a traced `forward` that are sequences, as long as no other layer has come."""

    def __init__(self, chain: Chain, front: Front) -> None:
        self.chain, self.front = chain, front
        self.found: dict[fx.Node, _Sequence] = {}
        self.last: set[fx.Node] = set()
        """Nodes that are the last step of all layers so far."""

    def name(self, node: fx.Node) -> None:
        """A parameter that `forward` uses by itself: only positions, which are added to a sequence, are known."""
        if not all(user.op == "call_function" and user.target in _SUMS for user in node.users):
            raise NotKnown(f"its forward uses {node.target} outside a layer")

    def takes(self, node: fx.Node) -> bool:
        """Whether a node reads a sequence, or makes one of rows of an embedding."""
        sources = [each for each in node.args if isinstance(each, fx.Node)]
        if not sources:
            return False
        if node.target in _SUMS and any(each.op == "get_attr" for each in sources):
            return True
        begins = node.op == "call_module" and type(self.chain.modules[str(node.target)]) in _KINDS
        return sources[0] in self.found or (begins and self.front.read(sources[0]))

    def add(self, node: fx.Node) -> tuple[int, ...]:
        """A node that `takes` is true of; returned is its shape, as far as it has one."""
        value = self.found.get(node.args[0]) if isinstance(node.args[0], fx.Node) else None
        if node.target in _SUMS:
            return self._positions(node)
        if node.op == "call_module":
            if value is not None and value.kind != "outputs":
                raise NotKnown(f"{self.chain.label(str(node.target))} does not read the outputs of all steps")
            return self._layer(node)
        if node.target is not operator.getitem or value is None:
            raise NotKnown(
                f"{node.name} of a sequence is not known to the kernel: it reads the last step of its layers"
            )
        return self._part(node, value, node.args[1])

    def _part(self, node: fx.Node, value: _Sequence, index: Any) -> tuple[int, ...]:
        """One of the results of an LSTM, or the last step of its outputs."""
        if value.kind in ("both", "states") and isinstance(index, int):
            inside = _INSIDE.get((value.kind, index))
            if inside:
                self.found[node] = _Sequence(inside, value.width)
                return ()
            if not node.users:
                return ()  # the cells, which `forward` only names
        is_last = index in ((_ALL, -1), (_ALL, -1, _ALL)) if value.kind == "outputs" else index == -1
        if value.kind not in ("outputs", "hidden") or not is_last or self.chain.layers[-1].kind == "positions":
            raise NotKnown("its layers read another part of a sequence than its last step")
        self.last.add(node)
        self.chain.shape = (value.width,)
        return self.chain.shape

    def _positions(self, node: fx.Node) -> tuple[int, ...]:
        """Learnt positions that are added to rows of an embedding."""
        rows, named = node.args[:2] if node.args[1:] else (None, None)
        if isinstance(rows, fx.Node) and rows.op == "get_attr":
            rows, named = named, rows
        if not isinstance(named, fx.Node) or len(node.args) != 2 or node.kwargs or not self.front.read(rows):
            raise NotKnown(f"{node.name} adds a parameter to what are not rows of an embedding")
        owner, _, own = str(named.target).rpartition(".")
        parameter = self.chain.modules[owner]._parameters.get(own)
        shape = None if parameter is None else tuple(parameter.shape)
        if shape not in (self.chain.shape, (1, *self.chain.shape)):
            raise NotKnown(f"its {named.target} of shape {shape} is added to a sequence of shape {self.chain.shape}")
        self.chain.append(Layer("positions", self.chain.shape[1], weight=self.chain.use(owner, own)))
        self.found = {node: _Sequence("outputs", self.chain.shape[1])}
        return self.chain.shape

    def _layer(self, node: fx.Node) -> tuple[int, ...]:
        name = str(node.target)
        layer, label = self.chain.modules[name], self.chain.label(name)
        if type(layer) not in _KINDS:
            raise NotKnown(f"layer {label} is not known to the kernel behind a sequence")
        if len(node.args) != 1 or node.kwargs:
            raise NotKnown(f"{label} is called with more than its input")
        before = {"lookup", "lstm"} if isinstance(layer, nn.LSTM) else {"lookup", "positions", "block"}
        if self.last or {each.kind for each in self.chain.layers} - before:
            raise NotKnown(f"{label} does not follow a layer of its kind")
        if isinstance(layer, nn.LSTM):
            add_lstm(self.chain, name, layer)
        elif isinstance(layer, nn.TransformerEncoder):
            add_encoder(self.chain, name, layer)
        else:
            add_block(self.chain, name, layer)
        # what came before must not be read again
        self.found = {node: _Sequence("both" if isinstance(layer, nn.LSTM) else "outputs", self.chain.shape[1])}
        return self.chain.shape


def add_lstm(chain: Chain, name: str, module: nn.LSTM) -> None:
    """The layers of an LSTM."""
    _refuse(
        chain.label(name),
        {
            "is bidirectional": module.bidirectional,
            "has a proj_size": module.proj_size,
            "drops values between its layers": module.dropout and module.num_layers > 1,
            "reads steps before samples (batch_first is not set)": not module.batch_first,
        },
    )
    _check_width(chain, name, module.input_size)
    for layer in range(module.num_layers):
        parts = ("weight_ih", "weight_hh", *(("bias_ih", "bias_hh") if module.bias else ()))
        first = _use_all(chain, name, [(name, f"{part}_l{layer}") for part in parts])
        chain.append(Layer("lstm", module.hidden_size, weight=first, bias=first if module.bias else -1))
    chain.shape = (chain.shape[0], module.hidden_size)


def add_encoder(chain: Chain, name: str, module: nn.TransformerEncoder) -> None:
    """The blocks of an encoder."""
    _refuse(chain.label(name), {"normalises what its blocks give": module.norm is not None})
    for number in range(len(module.layers)):
        inside = f"{name}.layers.{number}"
        block = chain.modules[inside]
        if type(block) is not nn.TransformerEncoderLayer:
            raise NotKnown(f"layer {chain.label(inside)} is not known to the kernel behind a sequence")
        add_block(chain, inside, block)


def add_block(chain: Chain, name: str, module: nn.TransformerEncoderLayer) -> None:
    """One block of an encoder: attention and two linear layers, each behind a norm."""
    attention = module.self_attn
    _refuse(
        chain.label(name),
        {
            "normalises last (norm_first is not set)": not module.norm_first,
            "has another activation than relu": module.activation_relu_or_gelu != 1,
            "drops values": any((module.dropout.p, module.dropout1.p, module.dropout2.p, attention.dropout)),
            "reads steps before samples (batch_first is not set)": not attention.batch_first,
            "has no biases": module.linear1.bias is None or attention.in_proj_bias is None,
            "has keys of its own": attention.bias_k is not None or attention.add_zero_attn,
            "has norms of two kinds": module.norm1.eps != module.norm2.eps,
        },
    )
    width = module.linear1.in_features
    _check_width(chain, name, width)
    inner = ("self_attn.out_proj", "linear1", "linear2", "norm1", "norm2")
    parts = [(f"{name}.self_attn", "in_proj_weight"), (f"{name}.self_attn", "in_proj_bias")]
    parts += [(f"{name}.{layer}", part) for layer in inner for part in ("weight", "bias")]
    first = _use_all(chain, name, parts)
    options = {"groups": attention.num_heads, "rows": module.linear1.out_features, "eps": module.norm1.eps}
    chain.append(Layer("block", width, weight=first, **options))


def _refuse(label: str, reasons: dict[str, Any]) -> None:
    for reason, holds in reasons.items():
        if holds:
            raise NotKnown(f"{label} {reason}, which is not known to the kernel")


def _check_width(chain: Chain, name: str, width: int) -> None:
    if len(chain.shape) != 2 or chain.shape[1] != width:
        raise NotKnown(f"{chain.label(name)} gets inputs of shape {chain.shape}, not steps of {width} values")


def _use_all(chain: Chain, name: str, parts: list[tuple[str, str]]) -> int:
    """Where the first of these parameters begins; the others follow it, one behind the other."""
    places = [chain.use(*part) for part in parts]
    sizes = [chain.modules[module].get_parameter(parameter).numel() for module, parameter in parts]
    ends = [place + size for place, size in zip(places, sizes, strict=True)]
    if ends[:-1] != places[1:]:
        raise NotKnown(f"{chain.label(name)} has its parameters in another order than torch")
    return places[0]

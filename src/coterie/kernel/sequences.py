"""Layers over sequences of tokens: what follows an embedding of all columns, up to the step that the last layers read."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from torch import fx, nn

from coterie.kernel.chain import Chain, NotKnown
from coterie.kernel.columns import Front
from coterie.kernel.layers import Layer

_WHOLE = slice(None, None, None)


@dataclass(frozen=True)
class _Sequence:
    """What a node of a traced `forward` is: outputs of all steps, those and the states, the states, or the last h."""

    kind: str
    width: int


class Sequences:
    """The nodes of a traced `forward` that are sequences, as long as no other layer has come."""

    def __init__(self, chain: Chain, front: Front) -> None:
        self.chain, self.front = chain, front
        self.found: dict[fx.Node, _Sequence] = {}
        self.last: set[fx.Node] = set()
        """Nodes that are the last step of all layers so far."""

    def takes(self, node: fx.Node) -> bool:
        """Whether a node reads a sequence, or makes one of rows of an embedding."""
        source = node.args[0] if node.args else None
        if not isinstance(source, fx.Node):
            return False
        begins = node.op == "call_module" and type(self.chain.modules[str(node.target)]) is nn.LSTM
        return source in self.found or (begins and self.front.read(source))

    def add(self, node: fx.Node) -> tuple[int, ...]:
        """A node that `takes` is true of; returned is its shape, as far as it has one."""
        value = self.found.get(node.args[0]) if isinstance(node.args[0], fx.Node) else None
        if node.op == "call_module":
            if value is not None and value.kind != "outputs":
                raise NotKnown(f"{self.chain.label(str(node.target))} does not read the outputs of all steps")
            return self._layer(node)
        if node.target is not operator.getitem or value is None:
            raise NotKnown(f"{node.name} of a sequence is not known to the kernel: it reads the last step of its layers")
        return self._part(node, value, node.args[1])

    def _part(self, node: fx.Node, value: _Sequence, index: Any) -> tuple[int, ...]:
        """One of the results of an LSTM, or the last step of its outputs."""
        inner = {("both", 0): "outputs", ("both", 1): "states", ("states", 0): "hidden"}
        if value.kind in ("both", "states") and isinstance(index, int):
            kind = inner.get((value.kind, index), "")
            if kind:
                self.found[node] = _Sequence(kind, value.width)
                return ()
            if value.kind == "states" and not node.users:
                return ()  # the cells, which `forward` only names
        is_last = index in ((_WHOLE, -1), (_WHOLE, -1, _WHOLE)) if value.kind == "outputs" else index == -1
        if value.kind not in ("outputs", "hidden") or not is_last:
            raise NotKnown("its layers read another part of a sequence than its last step")
        self.last.add(node)
        self.chain.shape = (value.width,)
        return self.chain.shape

    def _layer(self, node: fx.Node) -> tuple[int, ...]:
        name = str(node.target)
        layer, label = self.chain.modules[name], self.chain.label(name)
        if type(layer) is not nn.LSTM:
            raise NotKnown(f"layer {label} is not known to the kernel behind a sequence")
        if len(node.args) != 1 or node.kwargs:
            raise NotKnown(f"{label} is called with more than its input")
        if self.last:
            raise NotKnown("its forward is not a chain")
        add_lstm(self.chain, name, layer)
        self.found = {node: _Sequence("both", layer.hidden_size)}  # what came before must not be read again
        return ()


def add_lstm(chain: Chain, name: str, module: nn.LSTM) -> None:
    """The layers of an LSTM."""
    label = chain.label(name)
    reasons = {
        "is bidirectional": module.bidirectional,
        "has a proj_size": module.proj_size,
        "drops values between its layers": module.dropout and module.num_layers > 1,
        "reads steps before samples (batch_first is not set)": not module.batch_first,
    }
    for reason, holds in reasons.items():
        if holds:
            raise NotKnown(f"{label} {reason}, which is not known to the kernel")
    if len(chain.shape) != 2 or chain.shape[1] != module.input_size:
        raise NotKnown(f"{label} gets inputs of shape {chain.shape}, not steps of {module.input_size} values")
    for layer in range(module.num_layers):
        parts = ("weight_ih", "weight_hh", *(("bias_ih", "bias_hh") if module.bias else ()))
        places = [chain.use(name, f"{part}_l{layer}") for part in parts]
        sizes = [getattr(module, f"{part}_l{layer}").numel() for part in parts]
        if any(after != place + size for place, size, after in zip(places, sizes, places[1:], strict=False)):
            raise NotKnown(f"{label} has its parameters in another order than torch")
        chain.append(Layer("lstm", module.hidden_size, weight=places[0], bias=places[2] if module.bias else -1))
    chain.shape = (chain.shape[0], module.hidden_size)

"""Inputs that are cut into columns: some are numbers, some are looked up in embeddings, and all are put side by side.

This comes before a network's first layer. What `forward` makes of the input is followed column by column; the first
layer that is none of this reads the result.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from coterie.kernel.chain import BATCH, Chain, NotKnown
from coterie.kernel.layers import Layer

_MOST_ROWS = 1 << 24  # whole numbers that float32 has
_FRONT = ("lookup", "lstm", "positions", "block")
_WHOLE: frozenset[Any] = frozenset(("long", "int"))
_WHOLE_TYPES = (torch.int64, torch.int32)
_JOINS: frozenset[Any] = frozenset((torch.cat, torch.concat, torch.concatenate))
_FLATTENS: frozenset[Any] = frozenset(("flatten", torch.flatten))
_RESHAPES: frozenset[Any] = frozenset(("view", "reshape", torch.reshape))


@dataclass(frozen=True)
class Part:
    """What is made of one column of the input: itself, or the row of an embedding that it names."""

    column: int
    name: str = ""
    """Of the embedding; empty: the column itself."""
    width: int = 1
    rows: int = 0


@dataclass(frozen=True)
class Columns:
    """Some columns; `shape` is that of one sample."""

    shape: tuple[int, ...]
    parts: tuple[Part, ...]
    whole: bool = False
    """Cut to whole numbers."""

    @property
    def looked_up(self) -> bool:
        """Whether there are embeddings among them."""
        return any(part.name for part in self.parts)


class Front:
    """What the nodes of a traced `forward` are, as long as they are columns."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.found: dict[fx.Node, Columns] = {}
        self._input: Columns | None = None

    def begin(self, node: fx.Node) -> None:
        """The network's input."""
        if len(self.chain.input_shape) == 1:
            shape = self.chain.input_shape
            self._input = self.found[node] = Columns(shape, tuple(Part(column) for column in range(shape[0])))

    def takes(self, node: fx.Node) -> bool:
        """Whether a node makes columns of columns."""
        if self.chain.layers or not node.args:
            return False
        if node.target in _JOINS:
            return isinstance(node.args[0], list | tuple) and any(self._at(each) for each in node.args[0])
        value = self._at(node.args[0])
        if value is None:
            return False
        if node.op == "call_module":
            return type(self.chain.modules[str(node.target)]) is nn.Embedding
        if node.target in _WHOLE or node.target == "to" or node.target is operator.getitem:
            return True
        return value is not self._input and (node.target in _FLATTENS or node.target in _RESHAPES)

    def add(self, node: fx.Node, sizes: dict[fx.Node, Any]) -> tuple[int, ...]:
        """A node that `takes` is true of; returned is its shape. `sizes` are the nodes that are numbers."""
        if node.target in _JOINS:
            made = self._joined(node)
        else:
            value = self._at(node.args[0])
            assert value is not None
            if node.op == "call_module":
                made = self._embedded(value, str(node.target), node)
            elif node.target is operator.getitem:
                made = _picked(value, node.args[1])
            elif node.target in _WHOLE or node.target == "to":
                made = _cut(value, node)
            else:
                made = _flattened(value, node, sizes)
        self.found[node] = made
        return made.shape

    def read(self, source: Any) -> bool:
        """Have the next layer read this node, if it is columns other than the input; whether it is."""
        value = self._at(source)
        if value is None or value is self._input or self.chain.layers:
            return False
        if value.whole:
            raise NotKnown("a layer reads columns that were cut to whole numbers")
        for layer in _layers(value, self.chain):
            self.chain.append(layer)
        self.chain.shape = value.shape
        return True

    def check(self) -> None:
        """Behind columns come layers over sequences or linear ones: nothing else has been made for them."""
        kinds = [layer.kind for layer in self.chain.layers]
        behind = next((kind for kind in kinds if kind not in _FRONT), "linear")
        if "lookup" in kinds and behind != "linear":
            raise NotKnown(f"{behind} behind columns of the input is not known to the kernel")

    def _at(self, node: Any) -> Columns | None:
        return self.found.get(node) if isinstance(node, fx.Node) else None

    def _joined(self, node: fx.Node) -> Columns:
        dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
        values = [self._at(each) for each in node.args[0]]  # type: ignore[union-attr]
        known = [value for value in values if value is not None and len(value.shape) == 1 and not value.whole]
        if len(known) != len(values) or dim not in (1, -1):
            raise NotKnown("it puts side by side what are not columns and rows of embeddings")
        return Columns((sum(value.shape[0] for value in known),), tuple(part for each in known for part in each.parts))

    def _embedded(self, value: Columns, name: str, node: fx.Node) -> Columns:
        layer, label = self.chain.modules[name], self.chain.label(name)
        assert isinstance(layer, nn.Embedding)
        # columns that are not cut are token ids, whole numbers as they come: of others torch makes an error (verify.py)
        if len(node.args) != 1 or node.kwargs or value.looked_up or layer.num_embeddings > _MOST_ROWS:
            raise NotKnown(f"{label} is not called with columns of whole numbers alone, or has too many rows")
        if layer.padding_idx is not None or layer.max_norm is not None or layer.scale_grad_by_freq or layer.sparse:
            raise NotKnown(f"{label} has a padding_idx, max_norm or kind of gradient that is not known to the kernel")
        columns = tuple(part.column for part in value.parts)
        if columns != tuple(range(columns[0], columns[0] + len(columns))):
            raise NotKnown(f"{label} looks up columns that are not neighbours")
        parts = tuple(Part(column, name, layer.embedding_dim, layer.num_embeddings) for column in columns)
        return Columns((*value.shape, layer.embedding_dim), parts)


def _picked(value: Columns, index: Any) -> Columns:
    """Some columns, as numpy would pick them from two samples."""
    if value.looked_up or not _is_plain(index):
        raise NotKnown("it indexes its input in a way that is not known")
    count = len(value.parts)
    try:
        two = np.arange(2 * count).reshape(2, *value.shape)[index if not isinstance(index, list) else tuple(index)]
    except IndexError:
        raise NotKnown("it indexes its input beyond its columns") from None
    if two.ndim == 0 or len(two) != 2 or not two.size or not np.array_equal(two[0] + count, two[1]):
        raise NotKnown("it does not keep the samples apart where it cuts its input into columns")
    parts = tuple(value.parts[place] for place in two[0].flatten().tolist())
    return Columns(tuple(two.shape[1:]), parts, value.whole)


def _is_plain(index: Any) -> bool:
    if isinstance(index, tuple | list):
        return all(_is_plain(each) for each in index)
    if isinstance(index, slice):
        return all(each is None or isinstance(each, int) for each in (index.start, index.stop, index.step))
    return index is None or index is Ellipsis or isinstance(index, int)


def _cut(value: Columns, node: fx.Node) -> Columns:
    types = [*node.args[1:], *node.kwargs.values()]
    if value.looked_up or (node.target == "to" and (len(types) != 1 or types[0] not in _WHOLE_TYPES)):
        raise NotKnown(f"{node.target} is not known to the kernel here")
    return Columns(value.shape, value.parts, whole=True)


def _flattened(value: Columns, node: fx.Node, sizes: dict[fx.Node, Any]) -> Columns:
    """Only to vectors: rows of embeddings one behind the other."""
    given = [sizes.get(each, each) if isinstance(each, fx.Node) else each for each in node.args[1:]]
    size = math.prod(value.shape)
    if node.target in _FLATTENS:
        start = node.kwargs.get("start_dim", given[0] if given else 0)
        flattens = start == 1 and len(given) < 2 and "end_dim" not in node.kwargs
    else:
        flattens = len(given) == 2 and (given[0] is BATCH or given[0] == -1) and given[1] in (-1, size)
        flattens = flattens and (given[0] is BATCH or given[1] == size) and not node.kwargs
    if not flattens:
        raise NotKnown("a reshape of columns does more than flatten")
    return Columns((size,), value.parts, value.whole)


def _layers(value: Columns, chain: Chain) -> list[Layer]:
    """Neighbours that are treated alike are one layer."""
    runs: list[list[Part]] = []
    for part in value.parts:
        last = runs[-1][-1] if runs else None
        if last is not None and (last.name, last.column + 1) == (part.name, part.column):
            runs[-1].append(part)
        else:
            runs.append([part])
    made = []
    for run in runs:
        first = run[0]
        weight = chain.use(first.name, "weight") if first.name else -1
        made.append(Layer("lookup", first.width, columns=(first.column, len(run)), rows=first.rows, weight=weight))
    return made

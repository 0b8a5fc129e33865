"""Layers as the compiled kernel knows them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from coterie.kernel.library import LayerRecord, array_of

Loss = Literal["cross_entropy", "mse"]
Kind = Literal[
    "convolution", "linear", "relu", "tanh", "sigmoid", "pool", "average", "dropout", "norm", "add", "field", "lookup",
    "lstm", "positions", "block", "relu6", "depthwise",
]  # fmt: skip
ACTIVATIONS: tuple[Kind, ...] = ("relu", "tanh", "sigmoid", "relu6")
_KINDS: dict[Kind, int] = {kind: number for number, kind in enumerate(get_args(Kind))}
BEFORE = -2
"""As `source`: the layer before. A number is that layer, -1 the network's input."""


@dataclass(frozen=True)
class Layer:
    """One layer; offsets are places in the flat vector of parameters and running statistics."""

    kind: Kind
    outputs: int = 0
    kernel: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    weight: int = -1
    bias: int = -1
    domains: int = 0
    residual: int = -1
    scale: int = -1
    rate: float = field(default=0.0, kw_only=True)
    """Of dropout, which also says what it is applied to: maps (channels, height, width) or vectors (features,)."""
    shape: tuple[int, ...] = field(default=(), kw_only=True)
    source: int = field(default=BEFORE, kw_only=True)
    other: int = field(default=-1, kw_only=True)
    """The second summand of an addition."""
    stride: tuple[int, int] = field(default=(1, 1), kw_only=True)
    size: tuple[int, int] = field(default=(0, 0), kw_only=True)
    """Height and width behind a convolution or a pool."""
    groups: int = field(default=0, kw_only=True)
    """Of channels that are normalised together (0: each channel over the batch); the heads of an encoder's block."""
    mean: int = field(default=-1, kw_only=True)
    variance: int = field(default=-1, kw_only=True)
    columns: tuple[int, int] = field(default=(0, 0), kw_only=True)
    """Of the input, that are looked up: the first, and how many."""
    rows: int = field(default=0, kw_only=True)
    """Of an embedding (0: columns are taken as they are); of a block of an encoder: the width of its inner layer."""
    eps: float = field(default=0.0, kw_only=True)
    momentum: float = field(default=0.0, kw_only=True)

    @property
    def in_graph(self) -> bool:
        """Whether it makes a network more than a chain of the layers that are computed with samples innermost."""
        strides = self.kind == "convolution" and self.stride != (1, 1)
        return strides or self.kind in ("norm", "add", "field", "depthwise") or self.source != BEFORE


def size_behind(
    sides: Sequence[int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    rounds_up: bool = False,
) -> tuple[int, int]:
    """Height and width behind a convolution or pool. A field that begins behind the map does not count."""
    found = []
    for side, field_side, step, edge in zip(sides, kernel, stride, padding, strict=True):
        count = (side + 2 * edge - field_side + (step - 1) * rounds_up) // step + 1
        found.append(count - (rounds_up and (count - 1) * step >= side + edge))
    return found[0], found[1]


def records(layers: Sequence[Layer]) -> ctypes.Array[LayerRecord]:
    """Layers as the compiled kernel reads them."""
    return array_of(
        [
            LayerRecord(
                *(_KINDS[layer.kind], layer.outputs, *layer.kernel, *layer.padding, layer.weight, layer.bias),
                *(layer.domains, layer.residual, layer.scale, layer.source, layer.other, *layer.stride, *layer.size),
                *(
                    layer.groups,
                    layer.mean,
                    layer.variance,
                    *layer.columns,
                    layer.rows,
                    layer.rate,
                    layer.eps,
                    layer.momentum,
                ),
            )
            for layer in layers
        ]
    )

"""What dropout keeps, drawn by torch as its own layers would draw it, so that both paths drop the same values."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from coterie.kernel.checks import MASK_SLACK
from coterie.kernel.layers import Layer
from coterie.kernel.net import Net


def masks(
    net: Net,
    draws: Callable[[], torch.Generator],
    samples: int,
    epochs: int,
    batch: int,
    dtype: torch.dtype,
    smallest: int = 1,
) -> Tensor | None:
    """The masks of all steps as the kernel reads them (masks.hpp); None for a network without dropout.

    Batches of fewer samples than `smallest` are left out: for those nothing is drawn. `draws` makes
    the generator, which is only done where there is dropout.
    """
    places = [place for place, layer in enumerate(net.layers) if layer.kind == "dropout"]
    if not places:
        return None
    generator = draws()
    linear = next(place for place, layer in enumerate(net.layers) if layer.kind == "linear")
    layers = [net.layers[place] for place in places]
    found = torch.zeros(
        samples * epochs * sum(math.prod(each.shape) for each in layers) + MASK_SLACK, dtype=torch.uint8
    )
    at = 0
    for _ in range(epochs):
        for first in range(0, samples, batch):
            number = min(batch, samples - first)
            if number < smallest:
                at += number * sum(math.prod(each.shape) for each in layers)
                continue
            for place, layer in zip(places, layers, strict=True):
                drawn = _drawn(layer, number, generator, dtype)
                ordered = drawn.movedim(0, -1) if place < linear else drawn
                found[at : at + drawn.numel()].view(ordered.shape).copy_(ordered)
                at += drawn.numel()
    return found


def _drawn(layer: Layer, samples: int, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """One layer's, in one step. Drawn in memory's order: on torch's path maps have their channels innermost."""
    layout = torch.channels_last if len(layer.shape) == 3 else torch.contiguous_format
    noise = torch.empty((samples, *layer.shape), dtype=dtype, memory_format=layout)
    return noise.bernoulli_(1 - layer.rate, generator=generator).to(torch.uint8)

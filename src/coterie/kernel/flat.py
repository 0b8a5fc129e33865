"""Where the parameters of a network begin in the flat vector that the kernel trains."""

from __future__ import annotations

from torch import nn


class NotKnown(Exception):
    """Ends a translation with a reason."""


def offsets_of(module: nn.Module, known: set[str]) -> tuple[dict[str, int], dict[str, int], tuple[str, ...], int]:
    """Where each parameter and each running statistic begins, the names of BatchNorm's counters, and the length.

    `known` buffers are no part of it.
    """
    offsets, buffers, counters, size = {}, {}, [], 0
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            raise NotKnown(f"its parameter {name} is frozen")
        offsets[name] = size
        size += parameter.numel()
    if len(list(module.named_parameters(remove_duplicate=False))) != len(offsets):
        raise NotKnown("it shares a parameter between layers")
    norms = tuple(name for name, layer in module.named_modules() if type(layer) is nn.BatchNorm2d)
    for name, buffer in module.named_buffers():
        owner, _, own = name.rpartition(".")
        if owner in norms and own == "num_batches_tracked":
            counters.append(name)
        elif owner in norms:
            buffers[name] = size
            size += buffer.numel()
        elif name not in known:
            raise NotKnown("it holds buffers (running statistics, masks)")
    return offsets, buffers, tuple(counters), size

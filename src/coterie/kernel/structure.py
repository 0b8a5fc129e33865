"""Which networks are alike: what was found out about one need not be found out about the next."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import _has_any_global_hook

_PLAIN = (int, float, bool, str, type(None), torch.dtype)


def structure(module: nn.Module) -> Hashable | None:
    """All that decides what a network of torch's own layers computes, but for its weights; None for any other.

    A network with a class, a hook or an attribute of somebody else's may compute anything.
    """
    if _has_any_global_hook():
        return None
    tensors: dict[int, int] = {}
    found = []
    for name, layer in module.named_modules(remove_duplicate=False):
        if getattr(nn, type(layer).__name__, None) is not type(layer):
            return None
        attributes = []
        for key, value in vars(layer).items():
            if key in ("_modules", "training"):  # children come in their turn, and a plan is for both modes
                continue
            if key in ("_parameters", "_buffers"):
                value = tuple((own, _tensor(tensor, tensors)) for own, tensor in value.items())
            elif not _is_plain(value):
                return None
            attributes.append((key, repr(value)))
        found.append((name, type(layer), type(layer).forward, tuple(attributes)))
    return tuple(found)


def _is_plain(value: Any) -> bool:
    """Whether it is a number, a word or several of them; a dictionary holds hooks, or is empty."""
    if isinstance(value, dict):
        return not value
    return all(isinstance(part, _PLAIN) for part in (value if isinstance(value, tuple | list | set) else (value,)))


def _tensor(tensor: Any, seen: dict[int, int]) -> Hashable:
    """All of a tensor but its numbers; the same tensor at two places is another network than two tensors."""
    if tensor is None:
        return None
    number = seen.setdefault(id(tensor), len(seen))
    return number, type(tensor), tuple(tensor.shape), tensor.dtype, tensor.requires_grad

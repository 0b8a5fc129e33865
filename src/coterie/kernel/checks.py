"""What is checked before numbers go to the compiled kernel, which trusts what it gets."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.samples import Normalise
from coterie.kernel.library import DTYPES


def dtype_of(weights: Tensor) -> torch.dtype:
    """The type of the weights, if the kernel has it."""
    if not isinstance(weights, Tensor) or weights.dtype not in DTYPES:
        raise CoterieError("The weights must be a float32 or float64 tensor.")
    return weights.dtype


def check_flat(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Refuse a tensor whose memory is not what the kernel will read."""
    if not isinstance(tensor, Tensor):
        raise CoterieError(f"{name} must be a tensor, not {type(tensor).__name__}.")
    if tuple(tensor.shape) != shape or 0 in shape:
        raise CoterieError(f"{name} has shape {tuple(tensor.shape)}, but the network needs {shape}.")
    if tensor.dtype != dtype:
        raise CoterieError(f"{name} is {tensor.dtype}, but {dtype} is needed; convert it first.")
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or not tensor.is_contiguous():
        raise CoterieError(f"{name} must be a contiguous tensor on the CPU; call .cpu().contiguous() first.")
    if tensor.is_conj() or tensor.is_neg():
        raise CoterieError(f"{name} is a lazy view; call .resolve_neg() first.")


def check_hyper(
    lr: float, momentum: float, weight_decay: float, mu: float, eps: float, betas: tuple[float, float]
) -> None:
    """Refuse settings of training that are not numbers or below 0."""
    values = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "mu": mu, "eps": eps}
    for name, value in values.items():
        if not math.isfinite(value) or value < 0:
            raise CoterieError(f"{name} must be a finite number of at least 0, not {value}.")
    if eps < torch.finfo(torch.float32).tiny:  # weights without a gradient would become 0 / 0
        raise CoterieError(f"eps must be above 0, not {eps}.")
    if not all(0 <= beta < 1 for beta in betas):
        raise CoterieError(f"betas must be from 0 to below 1, not {betas}.")


def check_channels(normalise: Normalise, channels: int) -> None:
    """Refuse a normalisation of another number of channels."""
    counts = len(normalise.mean), len(normalise.std)
    if set(counts) - {1, channels}:
        raise CoterieError(f"mean and std must have 1 or {channels} values, not {counts[0]} and {counts[1]}.")


MASK_SLACK = 64
"""Bytes behind the masks of dropout, which vectors may read."""


def check_masks(masks: Tensor | None, values: int) -> None:
    """One byte for every value that dropout may drop, and some behind them; none without dropout."""
    if (masks is not None) != (values > 0):
        raise CoterieError("Masks go with a network that has dropout, and only with such a one.")
    if masks is not None:
        check_flat("masks", masks, (values + MASK_SLACK,), torch.uint8)

"""Clusters of equal size without seeing the samples: offsets of a classifier's outputs, found from sums over clients.

This is Sinkhorn's balancing as in self-labelling (Asano et al. 2020), federated: a sample has the soft assignment
softmax(sharpness * (output + offset)); clients sum it over their samples, and the server lowers the offset of what has
too much. A client with one domain stays whole: only the sums over all clients are made equal.
"""

from __future__ import annotations

import torch
from torch import Tensor

MOST_PASSES = 20
"""A last pass more or less hardly matters, and each one asks all clients."""
_CERTAIN = 10.0
"""The deviation of the outputs, once they are made sharp. Untrained networks on multi-source digits (three seeds): with
1 the sums are even and the largest assignments are not (two seeds leave a domain with 0 to 2 % of the samples); with 10
every domain has at least 18 %."""
_CLOSE = 0.05
_TINY = 1e-12


def first_offsets(total: Tensor, squares: Tensor, number: float) -> tuple[Tensor, Tensor]:
    """Offsets that centre the outputs, and how sharp to make them; from sums over all samples, [D] each."""
    centre = total.double() / max(number, 1.0)
    variance = (squares.double() / max(number, 1.0) - centre**2).clamp_min(0).mean()
    return -centre, _CERTAIN / variance.sqrt().clamp_min(_TINY)


def soft_assignments(outputs: Tensor, offsets: Tensor, sharpness: Tensor) -> Tensor:
    """How much of each sample is in each cluster, [n, D]; rows sum to 1."""
    return torch.softmax(sharpness * (outputs.double() + offsets), 1)


def is_even(soft: Tensor) -> bool:
    """Whether no cluster has more than a twentieth too much or too little."""
    share = soft.double() / soft.sum().clamp_min(_TINY)
    return bool(((share * len(soft) - 1).abs() <= _CLOSE).all())


def next_offsets(offsets: Tensor, soft: Tensor, sharpness: Tensor) -> Tensor:
    """One step of Sinkhorn's: where a cluster has k times its part, its outputs go down by log(k) / sharpness."""
    share = soft.double() / soft.sum().clamp_min(_TINY)
    return offsets - (share * len(soft)).clamp_min(_TINY).log() / sharpness

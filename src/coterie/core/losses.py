"""The losses that have a name; any function (output, target) -> mean loss will do as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor
from torch.nn import functional as F

LossName = Literal["cross_entropy", "bce", "mse", "reconstruction"]
LossChoice = Literal["auto", "cross_entropy", "bce", "mse", "reconstruction"]
"""The setting `loss`: a name, or "auto" for that of the task's kind."""
LossFn = Callable[[Tensor, Tensor], Tensor]
LOSSES: dict[LossName, LossFn] = {
    "cross_entropy": F.cross_entropy,
    "bce": lambda output, target: F.binary_cross_entropy_with_logits(output, target.reshape(output.shape)),
    "mse": lambda output, target: F.mse_loss(output, target.reshape(output.shape)),
    "reconstruction": lambda output, target: F.mse_loss(output, target.reshape(output.shape)),
}

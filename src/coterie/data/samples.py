"""What data looks like to the rest of the package: samples, one client's parts, and a population of clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

ClientId = str


@dataclass(frozen=True)
class Samples:
    """Inputs and targets of equal length. Images stay uint8 [n, channels, height, width] until a batch needs them."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return int(self.x.shape[0])

    def take(self, index: Tensor) -> Samples:
        """The samples at the given positions, in that order."""
        return Samples(self.x[index], self.y[index])


@dataclass(frozen=True)
class Normalise:
    """uint8 or float input -> float input of the model: (x * scale - mean) / std, per channel."""

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    scale: float = 1.0

    def __call__(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Normalise a batch [n, channels, ...] (or [n, features] where there is one channel)."""
        shape = (1, -1) + (1,) * (x.dim() - 2) if x.dim() > 2 else (1, -1)
        mean = torch.tensor(self.mean, dtype=dtype).view(shape)
        std = torch.tensor(self.std, dtype=dtype).view(shape)
        return (x.to(dtype) * self.scale - mean) / std


@dataclass(frozen=True)
class ClientData:
    """One client's own data, all parts under its own shift."""

    train: Samples
    test: Samples
    valid: Samples | None = None


class Population(Protocol):
    """All clients of a federation. A client's data are made when asked for: only sampled clients cost memory."""

    @property
    def ids(self) -> Sequence[ClientId]:
        """Every client that will ever take part, in a fixed order."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input, (channels, height, width) or (features,)."""

    @property
    def classes(self) -> int:
        """Number of classes."""

    @property
    def normalise(self) -> Normalise:
        """How raw inputs become inputs of the model."""

    def client(self, client: ClientId, round: int = 0) -> ClientData:
        """The data of one client as they are in that round (they may drift)."""

    def group(self, client: ClientId, round: int = 0) -> int | None:
        """The true group, for the evaluator only; methods never see a population. None where there is no truth."""

"""What data looks like to the rest of the package: samples, one client's parts, and a population of clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import repeat
from typing import Protocol

import torch
from torch import Tensor

from coterie.core.targets import TargetScale, TaskKind

ClientId = str


@dataclass(frozen=True)
class Samples:
    """Inputs and targets of equal length. Images stay uint8 [n, channels, height, width] until a batch needs them.

    `extra` may hold something more about every sample (its domain); networks that do not ask for it never see it.
    """

    x: Tensor
    y: Tensor
    extra: Tensor | None = None

    def __len__(self) -> int:
        return int(self.x.shape[0])

    def take(self, index: Tensor) -> Samples:
        """The samples at the given positions, in that order."""
        extra = None if self.extra is None else self.extra.index_select(0, index)
        return Samples(self.x.index_select(0, index), self.y.index_select(0, index), extra)

    def on(self, device: torch.device) -> Samples:
        """The same samples on a device; where they are there already, these."""
        if self.x.device == device:
            return self
        extra = None if self.extra is None else self.extra.to(device)
        return Samples(self.x.to(device), self.y.to(device), extra)

    def batches(self, size: int) -> Iterator[Samples]:
        """Views of so many samples each, in order; the last may be smaller."""
        extra = repeat(None) if self.extra is None else self.extra.split(size)
        return map(Samples, self.x.split(size), self.y.split(size), extra)


@dataclass(frozen=True)
class Normalise:
    """uint8 or float input -> float input of the model: (x * scale - mean) / std, per channel or feature.

    Whole numbers of any other type are token ids: they reach the model as they are.
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    scale: float = 1.0
    last: bool = False
    """Whether the means belong to the last axis (the features of series), not to the one after the samples."""

    def __call__(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Normalise a batch [n, channels, ...] (or [n, features] where there is one channel)."""
        if not (x.dtype.is_floating_point or x.dtype is torch.uint8):
            return x
        factor, shift = _line(self, dtype, x.dim(), x.device)
        if isinstance(factor, float):
            return torch.add(shift, x if x.dtype is torch.uint8 else x.to(dtype), alpha=factor)
        return torch.addcmul(shift, x.to(dtype), factor)


@lru_cache(maxsize=64)
def _line(
    normalise: Normalise, dtype: torch.dtype, dimensions: int, device: torch.device
) -> tuple[float | Tensor, Tensor]:
    """Factor and shift of the straight line that normalising is; one pass over a batch instead of four."""
    rest = (1,) * max(dimensions - 2, 0)
    shape = (1, *rest, -1) if normalise.last else (1, -1, *rest)
    mean, std = (torch.tensor(values, dtype=torch.float64).view(shape) for values in (normalise.mean, normalise.std))
    factor, shift = normalise.scale / std, (-mean / std).to(dtype).to(device)
    if bool((factor == factor.flatten()[0]).all()):
        return float(factor.flatten()[0]), shift
    return factor.to(dtype).to(device), shift


_PARTS = ("train", "valid", "test")


class ClientData:
    """One client's own data, all parts under its own shift; a part given as a function is made when first looked at."""

    def __init__(
        self,
        train: Samples | Callable[[], Samples],
        test: Samples | Callable[[], Samples],
        valid: Samples | Callable[[], Samples] | None = None,
    ) -> None:
        self._train, self._test, self._valid = train, test, valid

    def __repr__(self) -> str:
        made = [f"{name} {len(part)}" for name in _PARTS if (part := self.__dict__.get(name)) is not None]
        return f"<data of a client: {', '.join(made) or 'not looked at yet'}>"

    @cached_property
    def train(self) -> Samples:
        """What the client trains on."""
        return self._train if isinstance(self._train, Samples) else self._train()

    @cached_property
    def test(self) -> Samples:
        """What its model is judged on."""
        return self._test if isinstance(self._test, Samples) else self._test()

    @cached_property
    def valid(self) -> Samples | None:
        """What it may use to choose between models, where a validation part was asked for."""
        return self._valid if self._valid is None or isinstance(self._valid, Samples) else self._valid()


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
        """Number of classes; of labels or of numbers where the targets are these: the outputs that a network needs."""

    @property
    def normalise(self) -> Normalise:
        """How raw inputs become inputs of the model."""

    def client(self, client: ClientId, round: int = 0) -> ClientData:
        """The data of one client as they are in that round (they may drift)."""

    def group(self, client: ClientId, round: int = 0) -> int | None:
        """The true group, for the evaluator only; methods never see a population. None where there is no truth."""


def kind_of(population: Population) -> TaskKind:
    """What a population's targets are: its `kind`; one that does not say has classes."""
    kind: TaskKind = getattr(population, "kind", "binary" if population.classes == 2 else "classification")
    return kind


def tests_alike_of(population: Population) -> bool:
    """Whether a client's tests ask for labels as often as it has them in training; one that does not say: for all."""
    return bool(getattr(population, "tests_alike", False))


def target_scale_of(population: Population) -> TargetScale | None:
    """The common scale of a population's targets, where they are numbers."""
    scale: TargetScale | None = getattr(population, "target_scale", None)
    return scale

"""Where clients draw their samples from: arrays that all share, or image files read when asked for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from coterie.core.samples import Samples

from .sources.images import decode

Index = npt.NDArray[np.int64]

_SLICE = 4096
"""So many images are changed at a time: their float copies are four times as large."""


class Pool(Protocol):
    """Labelled samples by row number. Labels are at hand; inputs are copied for the rows asked for only."""

    @property
    def labels(self) -> Index:
        """The label of every row."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""

    def take(self, rows: Index) -> Samples:
        """The samples of these rows, in that order."""


@dataclass(frozen=True)
class ArrayPool:
    """A pool whose inputs are one tensor."""

    samples: Samples

    @cached_property
    def labels(self) -> Index:
        """The label of every row."""
        return self.samples.y.numpy()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.samples.x.shape[1:])

    def take(self, rows: Index) -> Samples:
        """The samples of these rows, in that order."""
        return self.samples.take(torch.from_numpy(rows))


@dataclass(frozen=True)
class FilePool:
    """A pool of image files, for sets too large to hold: images are decoded when they are asked for."""

    folder: Path
    names: tuple[str, ...]
    labels: Index
    size: int
    grey: bool
    how: str
    """How to get the files where one is missing or damaged."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return (1 if self.grey else 3, self.size, self.size)

    def take(self, rows: Index) -> Samples:
        """The samples of these rows, in that order."""
        x = torch.empty((len(rows), *self.shape), dtype=torch.uint8)
        for place, row in enumerate(rows):
            image = decode(self.folder / self.names[row], self.how, size=self.size, grey=self.grey)
            x[place] = torch.from_numpy(image)
        return Samples(x, torch.from_numpy(self.labels[rows]))


def rows_of(samples: Samples, rows: Index) -> Samples:
    """The samples of these rows."""
    return samples.take(torch.from_numpy(np.asarray(rows, np.int64)))


def resized(samples: Samples, size: int) -> Samples:
    """uint8 images at size x size (bilinear, smoothed where they shrink)."""
    if tuple(samples.x.shape[2:]) == (size, size):
        return samples
    x = torch.empty((len(samples), samples.x.shape[1], size, size), dtype=torch.uint8)
    for start in range(0, len(samples), _SLICE):
        part = samples.x[start : start + _SLICE].float()
        scaled = F.interpolate(part, (size, size), mode="bilinear", align_corners=False, antialias=True)
        x[start : start + _SLICE] = scaled.round_().clamp_(0, 255).to(torch.uint8)
    return Samples(x, samples.y)


def greyed(samples: Samples) -> Samples:
    """uint8 images with one channel, weighted as the eye weighs red, green and blue (ITU-R 601)."""
    if samples.x.shape[1] == 1:
        return samples
    weights = torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)
    parts = (samples.x[start : start + _SLICE] for start in range(0, len(samples), _SLICE))
    x = torch.cat([(part.float() * weights).sum(1, keepdim=True).round() for part in parts])
    return Samples(x.to(torch.uint8), samples.y)

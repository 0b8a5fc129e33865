"""Ours: what peers tell of the ways their models have gone before anyone asks for a model.

A sketch is a random projection of a difference of two models: every number goes, with a random sign, into one of
`length` sums (a count sketch). Which sum and which sign follow from the seed of the run alone, so that the sketches of
all peers can be compared: cosines of sketches are those of the differences, give or take 1 / sqrt(length). The sums are
sent as whole numbers from -127 to 127, whose products are exact in any order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.core.rng import rng
from coterie.core.states import Stack, count
from coterie.core.task import Task

Floats = npt.NDArray[np.float64]
_LARGEST = 127
_TINY = np.finfo(np.float64).tiny


@lru_cache(maxsize=4)
def _projection(seed: int, numbers: int, length: int) -> tuple[npt.NDArray[np.int64], Floats]:
    """The sum that each number goes into, and its sign: the same for all peers of a run."""
    generator = rng(seed, "sketch", numbers, length)
    return generator.integers(length, size=numbers), generator.choice(np.array([-1.0, 1.0]), size=numbers)


def _ways(task: Task, ends: Stack, begins: Stack) -> Iterator[Floats]:
    """ends - begins, one model after the other; `begins` may have one row for all."""
    for index in range(count(ends)):
        parts = [
            (ends[name][index].double() - begins[name][index if len(begins[name]) > 1 else 0].double()).flatten()
            for name in task.parameters
        ]
        yield torch.cat(parts).numpy()


def lengths(task: Task, ends: Stack, begins: Stack) -> Tensor:
    """How far every model has gone, [C]."""
    return torch.tensor([float(np.sqrt(np.square(way).sum())) for way in _ways(task, ends, begins)]).double()


def sketched(task: Task, seed: int, length: int, ends: Stack, begins: Sequence[Stack]) -> Tensor:
    """Sketches of the ways from each of the K beginnings, whole numbers [C, K, length]; of no way at all zeros."""
    found = np.zeros((count(ends), len(begins), length), dtype=np.int8)
    for place, begin in enumerate(begins):
        for index, way in enumerate(_ways(task, ends, begin)):
            where, sign = _projection(seed, len(way), length)
            sums = np.bincount(where, weights=sign * way, minlength=length)
            found[index, place] = np.rint(_LARGEST * (sums / max(float(np.abs(sums).max()), _TINY)))
    return torch.from_numpy(found)


def cosines(sketches: npt.NDArray[np.int8]) -> Floats:
    """Between all of [n, length], [n, n]; 0 with one of zeros. The products are exact, so no order of sums shows."""
    numbers = sketches.astype(np.float64)
    products = numbers @ numbers.T
    size = np.sqrt(np.diagonal(products))
    both = size[:, None] * size[None]
    found: Floats = np.where(both > 0, products / np.maximum(both, _TINY), 0.0)
    return found


def centred(cosine: Floats) -> Floats:
    """Cosines [n, n] of the same directions seen from their centre, the mean of the unit vectors."""
    row = cosine.mean(1)
    inner = cosine - row[:, None] - row[None] + row.mean()
    size = np.sqrt(np.maximum(np.diagonal(inner), 0.0))
    both = size[:, None] * size[None]
    found: Floats = np.where(both > 1e-9, inner / np.maximum(both, 1e-9), 0.0)
    return found

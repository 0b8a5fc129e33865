"""How raw inputs are brought to one scale: by the mean and deviation of all clients' training inputs together.

Each client tells how many samples it has and, per feature or channel, their mean and deviation; nothing else is needed.
In the simulator and in a federation of real machines the same functions turn that into one `Normalise`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.samples import Normalise

NormaliseName = Literal["auto", "none", "standard"]
"""auto: bytes, and floats that are far from unit scale, as "standard" does; none: inputs as they are; standard: minus
the mean, divided by the deviation, of every feature or channel."""
MOST_FEATURES = 1024
"""Rows and series with more features have one mean and one deviation for all of them: a client must tell them all."""
_AT_ONCE = 1 << 20
LEVELS = 255
_LARGEST_UNIT = 5.0
_SMALLEST_UNIT = 0.1
_LEAST_LEVEL = 1e-3  # a quarter of a grey level; below it a channel of bytes counts as constant
_LEAST_SHARE = 1e-6  # a feature of floats whose deviation is such a share of its mean counts as constant

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class InputMoments:
    """How many samples a client has, and the mean and deviation of its inputs per feature or channel."""

    samples: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]


def channels(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """How many means inputs of this shape have: of images one a channel, of rows and series of floats one a feature."""
    if len(shape) == 3:
        return shape[0]
    features = shape[-1] if shape else 1
    return features if dtype.is_floating_point and features <= MOST_FEATURES else 1


def moments(x: Tensor) -> InputMoments:
    """Of one client's raw inputs; bytes count as 0 to 1, and whole numbers (tokens) have none."""
    number = channels(tuple(x.shape[1:]), x.dtype)
    if not len(x) or not (x.dtype.is_floating_point or x.dtype == torch.uint8):
        return InputMoments(len(x), (0.0,) * number, (0.0,) * number)
    first = x.dim() == 4
    flat = x.transpose(0, 1).reshape(number, -1) if first else x.reshape(-1, number).T
    if x.dtype == torch.uint8:
        return InputMoments(len(x), *_of_bytes(flat))
    mean = flat.double().mean(1)
    # a few rows at a time: their copies in float64 are a part of what the client has, and need no call for each row
    few = max(1, _AT_ONCE // flat.shape[1])
    deviation = torch.cat(
        [
            (rows.contiguous().double() - middles[:, None]).square().mean(1).sqrt()
            for rows, middles in zip(flat.split(few), mean.split(few), strict=True)
        ]
    )
    return InputMoments(len(x), tuple(mean.tolist()), tuple(deviation.tolist()))


def pooled(
    clients: Sequence[InputMoments],
    choice: NormaliseName,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    most: float | None = None,
) -> Normalise:
    """How all clients' inputs become those of the model.

    A client counts by its number of samples; with `most`, at most so many times as much as the median client, for on
    other machines the number cannot be checked.
    """
    if not (dtype.is_floating_point or dtype == torch.uint8):
        if choice == "standard":
            raise CoterieError("Token ids cannot be normalised; leave normalise out.")
        return Normalise()
    if choice == "none":
        return Normalise()
    mean, deviation = scale_of(clients, most)
    if dtype == torch.uint8:
        std = np.where(deviation > _LEAST_LEVEL, deviation, 1.0)  # a constant channel stays as it is
        return Normalise(tuple(mean.tolist()), tuple(std.tolist()), 1 / LEVELS)
    varies = deviation > _LEAST_SHARE * np.abs(mean)
    if choice == "auto" and _is_unit(mean[varies], deviation[varies]):
        return Normalise()
    std = np.where(varies, deviation, 1.0)  # a constant feature becomes 0
    return Normalise(tuple(mean.tolist()), tuple(std.tolist()), last=len(shape) == 2 and len(mean) > 1)


def said(normalise: Normalise, shape: tuple[int, ...]) -> str:
    """What a normalisation does, in a few words."""
    if normalise == Normalise():
        return "as they are"
    each = (
        "all inputs together" if len(normalise.mean) == 1 else "every channel" if len(shape) == 3 else "every feature"
    )
    pixels = "bytes to 0..1, then " if normalise.scale != 1 else ""
    return f"{pixels}{each} to mean 0 and deviation 1"


def _of_bytes(flat: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    counts = np.stack([np.bincount(row, minlength=LEVELS + 1) for row in flat.numpy()])
    values, total = np.arange(LEVELS + 1) / LEVELS, flat.shape[1]
    mean = counts @ values / total
    deviation = np.sqrt((counts * (values - mean[:, None]) ** 2).sum(1) / total)
    return tuple(mean.tolist()), tuple(deviation.tolist())


def scale_of(clients: Sequence[InputMoments], most: float | None) -> tuple[Numbers, Numbers]:
    """Mean and deviation of all: the variances inside clients, and that of their means around the common one."""
    limit = np.inf if most is None else most * median(client.samples for client in clients)
    weight = np.array([min(client.samples, limit) for client in clients], np.float64)
    weight /= weight.sum()
    means = np.array([client.mean for client in clients], np.float64)
    deviations = np.array([client.deviation for client in clients], np.float64)
    mean = weight @ means
    return mean, np.sqrt(weight @ (deviations**2 + (means - mean) ** 2))


def _is_unit(mean: Numbers, deviation: Numbers) -> bool:
    """Whether features already have about the size that networks are made for."""
    if not len(mean):
        return True
    sizes = np.hypot(mean, deviation)
    return bool(sizes.max() <= _LARGEST_UNIT and np.median(deviation) >= _SMALLEST_UNIT)

"""What is worth knowing about the clients' data before anything is run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch

from coterie.core.samples import Population, tests_alike_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

_UNEVEN = 10
"""The largest client has so many times the samples of the smallest."""
_FEW = 100
"""Held-out samples of all clients together with which little can be said."""
_SKEWED = 0.5
"""Half of the distance between two clients with no class in common."""


def remarks_on(population: Population) -> Iterator[str]:
    """Sizes, scales, label skew, and how much the held-out data can tell."""
    data = [population.client(client) for client in population.ids]
    sizes = np.array([len(each.train) for each in data])
    held = sum(len(each.test) for each in data)
    if held < _FEW:
        yield f"There are {held} held-out samples in all, too few to be sure of anything: collect more, or try and see."
    if sizes.max() >= _UNEVEN * max(int(sizes.min()), 1):
        yield f"Clients differ in size: {int(sizes.min())} to {int(sizes.max())} training samples."
    skew = _label_skew(population)
    if skew >= _SKEWED:
        yield (
            f"Labels are skewed: a client's label shares are {100 * skew:.0f} % away from the common ones. "
            "That alone does not make a group."
        )
    if asked_for_more(population):
        yield (
            "Clients will be asked for labels that they lack (scenario.tests); the held-out data have none of these. "
            "Models that adapt to a client's own labels look better here than they are, and are not recommended."
        )
    spread = _input_scales(population)
    if spread > _UNEVEN:
        yield (
            f"The largest inputs of some clients are {spread:.0f} times those of others: check their units, or let "
            "normalise = standard bring features to one scale."
        )


def asked_for_more(population: Population) -> bool:
    """Whether clients will be asked for all labels, though theirs are skewed."""
    return not tests_alike_of(population) and _label_skew(population) >= _SKEWED


def _label_skew(population: Population) -> float:
    """How far a client's label shares are from the common ones, on average: 0 where there are no classes."""
    first = population.client(population.ids[0]).train.y
    if population.classes <= 1 or first.is_floating_point() or first.dim() != 1:
        return 0.0
    shares = np.stack([_shares(population.client(client).train.y, population.classes) for client in population.ids])
    return float(np.abs(shares - shares.mean(0)).sum(1).mean() / 2)


def _shares(labels: torch.Tensor, classes: int) -> NDArray[np.float64]:
    counts = torch.bincount(labels, minlength=classes).double()
    shares: NDArray[np.float64] = (counts / counts.sum().clamp_min(1)).numpy()
    return shares


def _input_scales(population: Population) -> float:
    """How many times larger the inputs of one client are than those of another."""
    scales = []
    for client in population.ids:
        x = population.client(client).train.x
        if x.is_floating_point() and len(x):
            scales.append(max(float(x.abs().max()), 1e-12))
    return max(scales) / min(scales) if scales else 1.0

"""A population in a few numbers, for `coterie data`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from coterie.core.metrics import floor
from coterie.core.samples import ClientId, Population
from coterie.core.task import Task

from .population import Parts, unseen_ids
from .scaling import said as scale_said

_INSPECTED = 1000


@dataclass(frozen=True)
class Spread:
    """Smallest, middle and largest of some numbers."""

    smallest: int
    median: float
    largest: int


@dataclass(frozen=True)
class Summary:
    """What a population is like. Sizes and labels are those of the inspected clients."""

    clients: int
    unseen: int
    inspected: int
    shape: tuple[int, ...]
    classes: int
    groups: dict[int, int] | None
    """Clients of each group, None where they are not known."""
    train: Spread
    valid: Spread | None
    test: Spread
    labels: tuple[int, ...]
    """Training samples of each class."""
    classes_per_client: Spread | None
    """How many different labels a client has in training; None where targets are not classes."""
    largest_share: float | None
    """The share of a client's most frequent label, on average: 1 / classes is even, 1 is one class a client."""


@runtime_checkable
class _Labelled(Protocol):
    """A population that can tell labels without making images."""

    def labels(self, client: ClientId, round: int = 0) -> Parts: ...


def describe(population: Population, *, inspect: int = _INSPECTED) -> Summary:
    """Count clients, groups, sizes and labels; of many clients only `inspect` are looked at, evenly spread."""
    ids = population.ids
    places = np.unique(np.linspace(0, len(ids) - 1, min(inspect, len(ids))).astype(int))
    parts = [_labels(population, ids[place]) for place in places]
    counts = _counts(population, parts)
    shares = None if counts is None else counts.max(1).values / counts.sum(1).clamp_min(1)
    groups = [population.group(client) for client in ids]
    known = Counter(group for group in groups if group is not None)
    valid = [len(part.valid) for part in parts if part.valid is not None]
    return Summary(
        clients=len(ids),
        unseen=len(unseen_ids(population)),
        inspected=len(parts),
        shape=tuple(population.shape),
        classes=population.classes,
        groups=dict(sorted(known.items())) if known else None,
        train=_spread([len(part.train) for part in parts]),
        valid=_spread(valid) if valid else None,
        test=_spread([len(part.test) for part in parts]),
        labels=() if counts is None else tuple(counts.sum(0).tolist()),
        classes_per_client=None if counts is None else _spread((counts > 0).sum(1).tolist()),
        largest_share=None if shares is None else float(shares.mean()),
    )


def mean_floor(population: Population, task: Task, ids: Sequence[ClientId]) -> float | None:
    """The mean over clients of what a constant answer scores on their tests; None where no client has both parts.

    Each client answers what is most frequent, or the mean, in its own training part.
    """
    parts = (_labels(population, client) for client in ids)
    floors = [floor(task.primary, task.kind, part.train, part.test, task.classes) for part in parts]
    known = [value for value in floors if math.isfinite(value)]
    return sum(known) / len(known) if known else None


def remarks(population: Population) -> list[str]:
    """What a user should know about own data before they are used: their scale, and clients of one class alone."""
    said = [f"inputs: {scale_said(population.normalise, tuple(population.shape))}"]
    parts = {client: _labels(population, client) for client in population.ids}
    counts = _counts(population, list(parts.values()))
    if counts is not None and population.classes > 1:
        alone = [client for client, row in zip(parts, counts, strict=True) if int((row > 0).sum()) == 1]
        if alone:
            few = ", ".join(alone[:3]) + (", ..." if len(alone) > 3 else "")
            said.append(
                f"{len(alone)} of {len(parts)} clients have one class alone in training ({few}): one constant answer "
                "serves them"
            )
    return said


def _counts(population: Population, parts: Sequence[Parts]) -> Tensor | None:
    """Training samples of each client and class, [C, classes]; None where targets are not classes."""
    if getattr(population, "kind", "classification") not in ("classification", "binary"):
        return None
    return torch.stack([torch.bincount(part.train, minlength=population.classes) for part in parts])


def _labels(population: Population, client: ClientId) -> Parts:
    if isinstance(population, _Labelled):
        return population.labels(client)
    data = population.client(client)
    return Parts(data.train.y, data.test.y, None if data.valid is None else data.valid.y)


def _spread(values: list[int]) -> Spread:
    return Spread(min(values), float(np.median(values)), max(values))

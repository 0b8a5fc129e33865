"""A population whose clients are judged on their validation part: a trial never looks at the test part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from coterie.core.rng import rng
from coterie.core.samples import ClientData, ClientId, Normalise, Population, Samples

_SHARE = 0.25
"""Of a client's training samples are kept for judging, where it has no validation part."""


class HeldOut:
    """Some clients of a population; a part of what they train on takes the place of their test part."""

    def __init__(self, population: Population, ids: Sequence[ClientId], seed: int) -> None:
        self._inner, self._ids, self._seed = population, tuple(ids), seed
        self._made: dict[ClientId, ClientData] = {}

    def __getattr__(self, name: str) -> Any:
        """What else a population says of itself (kind of targets, schema, default training) stays as it is."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._inner, name)

    @property
    def ids(self) -> tuple[ClientId, ...]:
        """The clients of the trial."""
        return self._ids

    @property
    def unseen_ids(self) -> tuple[ClientId, ...]:
        """A trial keeps no client back."""
        return ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self._inner.shape)

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self._inner.classes

    @property
    def normalise(self) -> Normalise:
        """As in the population."""
        return self._inner.normalise

    def client(self, client: ClientId, round: int = 0) -> ClientData:
        """A client's data as they are at the start: a trial is too short for drift."""
        if client not in self._made:
            data = self._inner.client(client)
            train, judged = _parted(data.train, client, self._seed) if data.valid is None else (data.train, data.valid)
            self._made[client] = ClientData(train, judged)
        return self._made[client]

    def group(self, client: ClientId, round: int = 0) -> int | None:
        """The true group, where it is known, for the evaluator only."""
        return self._inner.group(client)

    def labels(self, client: ClientId, round: int = 0) -> Any:
        """The labels of the two parts."""
        from coterie.data.population import Parts

        data = self.client(client)
        return Parts(data.train.y, data.test.y)


def _parted(samples: Samples, client: ClientId, seed: int) -> tuple[Samples, Samples]:
    if len(samples) < 2:
        return samples, samples.take(torch.arange(0))
    order = rng(seed, "advice", client).permutation(len(samples))
    cut = min(max(1, round(_SHARE * len(samples))), len(samples) - 1)
    kept, judged = np.sort(order[cut:]), np.sort(order[:cut])
    return samples.take(torch.from_numpy(kept)), samples.take(torch.from_numpy(judged))

"""Clients at work. Every client function is written over a cohort, a leading axis C of clients.

On a device C is 1; in the simulator it is as many clients as a worker takes at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from coterie.core.rng import Key, rng
from coterie.core.samples import ClientData, ClientId, Samples
from coterie.core.states import Stack, State, row, stack
from coterie.core.task import Task

Part = Literal["train", "valid", "test"]
Kept = Tensor | State
Memory = dict[str, Kept]


@dataclass(frozen=True)
class Cohort:
    """Some clients, with all they may use: their data, the round, their own memory and keyed randomness."""

    ids: tuple[ClientId, ...]
    task: Task
    data: tuple[ClientData, ...]
    round: int = 0
    seed: int = 0
    memory: tuple[Memory, ...] = ()
    kept: dict[str, Tensor | Stack] = field(default_factory=dict)
    losses: dict[ClientId, float] = field(default_factory=dict)
    """The mean training loss of each client in its last training here, for those who watch the run (`local_sgd`)."""
    secret: str | None = None
    """What only this device knows; None in the simulator, whose clients' secrets follow from the seed."""
    least_flip: float = 0.0
    least_noise: float = 0.0
    """The least flip probability that this device agrees to."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def size(self) -> Tensor:
        """Number of training samples of each client, [C]."""
        return torch.tensor([len(client.train) for client in self.data], dtype=torch.float64)

    def part(self, part: Part) -> list[Samples]:
        """One part of every client's data; where there is no validation part, the training part."""
        if part == "valid":
            return [client.valid if client.valid is not None else client.train for client in self.data]
        return [client.train if part == "train" else client.test for client in self.data]

    def with_extra(self, extra: Sequence[Tensor], part: Literal["train", "test"] = "train") -> Cohort:
        """The same clients with something more about every sample of a part, one tensor a client."""

        def extended(client: ClientData, own: Tensor) -> ClientData:
            parts: dict[str, Any] = {name: partial(getattr, client, name) for name in ("train", "test", "valid")}
            return ClientData(**{**parts, part: replace(getattr(client, part), extra=own)})

        return replace(self, data=tuple(extended(*pair) for pair in zip(self.data, extra, strict=True)))

    def with_extra_lazily(self, extra: Callable[[int, Samples], Tensor], part: Part) -> Cohort:
        """The same, where what there is about client i is found when its samples are first looked at."""

        def extended(index: int, client: ClientData) -> ClientData:
            parts: dict[str, Any] = {name: partial(getattr, client, name) for name in ("train", "test", "valid")}

            def found() -> Samples | None:
                samples: Samples | None = getattr(client, part)
                return None if samples is None else replace(samples, extra=extra(index, samples))

            return ClientData(**{**parts, part: found})

        return replace(self, data=tuple(extended(*pair) for pair in enumerate(self.data)))

    def rng(self, index: int, purpose: str, *key: Key) -> np.random.Generator:
        """The generator of one client for one purpose in this round."""
        return rng(self.seed, purpose, self.round, self.ids[index], *key)

    def private_rng(self, index: int, purpose: str) -> np.random.Generator:
        """The generator of one client for one purpose, in every round and, on a real device, in every run the same.

        On a device no one else can draw it: it is keyed by the device's secret and not by the run's seed. In the
        simulator it is keyed by the seed, so that a run can be repeated; those who know the seed can draw it too.
        """
        if self.secret is None:
            return rng(self.seed, purpose, self.ids[index], "")
        return rng(0, purpose, self.ids[index], self.secret)

    def recall(self, name: str, default: Stack) -> Stack:
        """What each client kept under that name in an earlier round, or its row of `default`."""
        rows: list[State] = []
        for index in range(len(self)):
            kept = self.memory[index].get(name) if self.memory else None
            rows.append(kept if isinstance(kept, dict) else row(default, index))
        return stack(rows)

    def recall_tensor(self, name: str, default: Tensor) -> Tensor:
        """The same for a single tensor per client, [C, ...]."""
        kept = [self.memory[index].get(name) if self.memory else None for index in range(len(self))]
        return torch.stack([k if isinstance(k, Tensor) else default[index] for index, k in enumerate(kept)])

    def keep(self, name: str, value: Tensor | Stack) -> None:
        """Have every client keep its row until it is asked again."""
        self.kept[name] = value

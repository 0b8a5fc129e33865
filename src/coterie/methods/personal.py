"""What methods share whose clients each use a model of their own, made of the common one and of what they keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.cohort import Cohort, Memory
from coterie.core.samples import ClientId
from coterie.core.states import Stack, State, row, stack
from coterie.methods.base import Models
from coterie.methods.fedavg import FedAvg, Global
from coterie.methods.served import Use, use


@dataclass(frozen=True)
class PersonalMethod(FedAvg):
    """A common model, the mean of those that clients send; beside it each client makes one that it uses."""

    @property
    def keeps_models(self) -> bool:
        """Always: each client has its own."""
        return True

    def personal(self, common: State, kept: Memory) -> State:
        """The model of a client that keeps this: its own one, and the common one where it has none yet."""
        own = kept.get("model")
        return own if isinstance(own, dict) else common

    def in_use(self, c: Cohort, common: Stack) -> Stack:
        """On the client: the model it would use now."""
        return stack([self.personal(row(common, i), c.memory[i] if c.memory else {}) for i in range(len(c))])

    def uses(self, c: Cohort, sent: Models) -> Use:
        """On the client: its own model."""
        return use(c, self.in_use(c, sent.models))

    def own_models(self, state: Global, memory: Mapping[ClientId, Memory]) -> Mapping[ClientId, State]:
        """Of every client that keeps something, the model it would use now."""
        return {client: self.personal(state.model, kept) for client, kept in memory.items() if kept}


def equal(size: Tensor) -> Tensor:
    """The same weight for every client."""
    return torch.ones_like(size)

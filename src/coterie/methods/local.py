"""Local training: no communication at all, the floor that federated learning has to beat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie.cohort import Cohort, evaluate, local_sgd
from coterie.data.samples import ClientId
from coterie.federation import Federation, Nothing, Replies, on_client
from coterie.methods.base import Assessment, Log, ServerMethod
from coterie.states import Stack, State, spread, stack


@dataclass(frozen=True)
class Apart:
    """The server holds nothing but the initial model, which every client can make for itself."""

    model: State


@dataclass(frozen=True)
class Done:
    """A client's sign that it has trained."""

    size: Tensor


@dataclass(frozen=True)
class Local(ServerMethod[Apart]):
    """Every client trains on its own data, from the common initial model, and keeps what it learns."""

    name: ClassVar[str] = "local"
    paper: ClassVar[str] = "baseline"
    summary: ClassVar[str] = "every client alone, without communication"
    state_type: ClassVar[type[Apart]] = Apart

    def init(self, fed: Federation) -> Apart:
        """The common initial model."""
        return Apart(fed.task.init(fed.seed))

    def step(self, state: Apart, fed: Federation) -> tuple[Apart, Log]:
        """The sampled clients go on training."""
        fed.ask(self.train, fed.sample(self.fraction), same=Nothing(), counted=False)
        return state, {}

    @on_client
    def train(self, c: Cohort, sent: Nothing) -> Done:
        """On the client: go on from the own model."""
        c.keep("model", local_sgd(c, self._own(c), self.opt))
        return Done(c.size)

    def assess(self, state: Apart, fed: Federation, ids: Sequence[ClientId]) -> Replies[Assessment]:
        """Clients judge the models they keep."""
        return fed.ask(self.judge_own, ids, same=Nothing(), purpose="evaluation", counted=False)

    @on_client
    def judge_own(self, c: Cohort, sent: Nothing) -> Assessment:
        """On the client: the own model on the own test part."""
        scores = evaluate(c, self._own(c))
        return Assessment(scores.correct, scores.loss, scores.count, torch.full((len(c),), -1))

    def _own(self, c: Cohort) -> Stack:
        return c.recall("model", spread(c.task.init(c.seed), len(c)))

    def model_for(self, state: Apart, ids: Sequence[ClientId]) -> tuple[Stack, list[int]]:
        """What a client that has not trained yet would use; the others keep their own."""
        return stack([state.model]), [0] * len(ids)

    def models(self, state: Apart) -> Mapping[str, State]:
        """Nothing at the server: the clients keep their models."""
        return {}

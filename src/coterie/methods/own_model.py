"""Methods whose clients keep a model of their own: the server could not say what a client would use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, Protocol, TypeVar

import torch

from coterie.core.cohort import Cohort
from coterie.core.evaluation import evaluate
from coterie.core.federation import (
    Federation,
    Nothing,
    Replies,
    on_client,
)
from coterie.core.samples import ClientId
from coterie.core.states import (
    Stack,
    State,
    spread,
    stack,
)
from coterie.methods.base import Assessment, ServerMethod


class _Beginning(Protocol):
    """A state that knows the common initial model."""

    @property
    def model(self) -> State: ...


B = TypeVar("B", bound=_Beginning)


@dataclass(frozen=True)
class OwnModelMethod(ServerMethod[B], Generic[B]):
    """Each client begins with the common initial model and keeps what it learns, under the name "model"."""

    serves_newcomers: ClassVar[bool] = False

    def assess(self, state: B, fed: Federation, ids: Sequence[ClientId]) -> Replies[Assessment]:
        """Clients judge the models they keep; no model travels."""
        return fed.ask(self.judge_own, ids, same=Nothing(), purpose="evaluation", counted=False)

    @on_client("scores")
    def judge_own(self, c: Cohort, sent: Nothing) -> Assessment:
        """On the client: its own model on its own test part."""
        scores = evaluate(c, self.own(c))
        return Assessment(scores.correct, scores.loss, scores.count, torch.full((len(c),), -1))

    def own(self, c: Cohort) -> Stack:
        """On the client: its model as it is now."""
        return c.recall("model", spread(c.task.init(c.seed), len(c)))

    def model_for(self, state: B, ids: Sequence[ClientId]) -> tuple[Stack, list[int]]:
        """What a client that has not trained yet would use; the others keep their own."""
        return stack([state.model]), [0] * len(ids)

    def models(self, state: B) -> Mapping[str, State]:
        """Nothing at the server: the clients keep their models."""
        return {}

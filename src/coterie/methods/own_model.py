"""Methods whose clients keep a model of their own: the server could not say what a client would use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from coterie.core.cohort import Cohort
from coterie.core.federation import (
    Federation,
    Nothing,
    Replies,
)
from coterie.core.samples import ClientId
from coterie.core.states import (
    Stack,
    State,
    spread,
    stack,
)
from coterie.methods.base import A, ServerMethod
from coterie.methods.served import Use, use


class _Beginning(Protocol):
    """A state that knows the common initial model."""

    @property
    def model(self) -> State: ...


B = TypeVar("B", bound=_Beginning)


@dataclass(frozen=True)
class OwnModelMethod(ServerMethod[B], Generic[B]):
    """Each client begins with the common initial model and keeps what it learns, under the name "model"."""

    serves_newcomers: ClassVar[bool] = False

    @property
    def keeps_models(self) -> bool:
        """Always: each client has its own."""
        return True

    def ask_about_models(
        self, state: B, fed: Federation, ids: Sequence[ClientId], function: Callable[[Cohort, Any], A]
    ) -> Replies[A]:
        """Clients judge the models they keep; no model travels."""
        return fed.ask(function, ids, same=Nothing(), purpose="evaluation", counted=False)

    def uses(self, c: Cohort, sent: Nothing) -> Use:
        """On the client: its own model."""
        return use(c, self.own(c))

    def own(self, c: Cohort) -> Stack:
        """On the client: its model as it is now."""
        return c.recall("model", spread(c.task.init(c.seed), len(c)))

    def model_for(self, state: B, ids: Sequence[ClientId]) -> tuple[Stack, list[int]]:
        """What a client that has not trained yet would use; the others keep their own."""
        return stack([state.model]), [0] * len(ids)

    def models(self, state: B) -> Mapping[str, State]:
        """Nothing at the server: the clients keep their models."""
        return {}

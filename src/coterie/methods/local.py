"""Local training: no communication at all, the floor that federated learning has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from coterie.core.cohort import Cohort
from coterie.core.federation import Federation, Nothing, on_client
from coterie.core.states import State
from coterie.core.training import local_sgd
from coterie.methods.base import Log
from coterie.methods.own_model import OwnModelMethod


@dataclass(frozen=True)
class Apart:
    """The server holds nothing but the initial model, which every client can make for itself."""

    model: State


@dataclass(frozen=True)
class Done:
    """A client's sign that it has trained."""

    size: Tensor


@dataclass(frozen=True)
class Local(OwnModelMethod[Apart]):
    """Every client trains on its own data, from the common initial model, and keeps what it learns."""

    name: ClassVar[str] = "local"
    title: ClassVar[str] = "Local training"
    paper: ClassVar[str] = "baseline"
    summary: ClassVar[str] = "every client alone, without communication"
    use_when: ClassVar[str] = "clients have hundreds of samples each, or must not communicate"
    avoid_when: ClassVar[str] = "samples are few or labels skewed: 16 to 70 points behind the true groups"
    state_type: ClassVar[type[Apart]] = Apart

    def init(self, fed: Federation) -> Apart:
        """The common initial model."""
        return Apart(fed.task.init(fed.seed))

    def step(self, state: Apart, fed: Federation) -> tuple[Apart, Log]:
        """The sampled clients go on training."""
        fed.ask(self.train, fed.sample(self.fraction), same=Nothing(), counted=False)
        return state, {}

    @on_client()
    def train(self, c: Cohort, sent: Nothing) -> Done:
        """On the client: go on from its own model."""
        c.keep("model", local_sgd(c, self.own(c), self.opt))
        return Done(c.size)

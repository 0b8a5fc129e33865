"""Ditto: every client also trains a model of its own that stays near the common one (Li et al., 2021)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from coterie.core.cohort import Cohort
from coterie.core.federation import on_client
from coterie.core.states import spread
from coterie.core.training import local_sgd
from coterie.methods.base import Models, Trained
from coterie.methods.personal import PersonalMethod


@dataclass(frozen=True)
class Ditto(PersonalMethod):
    """min_v h_k(v; w) = F_k(v) + lambda/2 |v - w|^2, with w learnt by FedAvg (Algorithm 1).

    The paper leaves v_k^0 and the order of batches open. Ours: v_k begins as the first w that the client is sent, and
    sees batches drawn for it.
    """

    lam: float = field(default=0.5, metadata={"help": "how strongly v_k is held near w (lambda); tune in 0.05 .. 2"})
    own_epochs: int = field(
        default=0, metadata={"help": "epochs on the client's own model (s); 0: as many as on the common one"}
    )

    name: ClassVar[str] = "ditto"
    title: ClassVar[str] = "Ditto"
    paper: ClassVar[str] = "Li et al. 2021, Ditto: fair and robust federated learning through personalization"
    summary: ClassVar[str] = "FedAvg, and a model of its own for every client that is held near the common one"
    use_when: ClassVar[str] = "every client is a little different and is asked what it was trained on"
    avoid_when: ClassVar[str] = "there are clear groups, or clients are asked for labels that they lack"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.lam >= 0, "lam", "be at least 0")
        self._require(self.own_epochs >= 0, "own_epochs", "be at least 0")

    @on_client("models")
    def train(self, c: Cohort, sent: Models) -> Trained:
        """On the client: v_k <- v_k - lr (grad F_k(v_k) + lambda (v_k - w^t)), then FedAvg's own training of w^t."""
        w = spread(sent.models, len(c))
        own = replace(self.opt, epochs=self.own_epochs or self.epochs)
        c.keep("model", local_sgd(c, c.recall("model", w), own, prox=w, mu=self.lam, purpose="personal"))
        return super().train(c, sent)

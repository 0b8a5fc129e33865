"""FedProx: FedAvg whose clients are held near the model they started from (Li et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from coterie.core.cohort import Cohort
from coterie.core.federation import on_client
from coterie.core.states import spread
from coterie.core.training import local_sgd
from coterie.methods.base import Models, Trained
from coterie.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedProx(FedAvg):
    """Local steps follow g + mu (w - w_t); mu = 0 is FedAvg."""

    mu: float = field(default=0.01, metadata={"help": "weight of the proximal term (mu); tune in 0.001 .. 1"})

    name: ClassVar[str] = "fedprox"
    title: ClassVar[str] = "FedProx"
    paper: ClassVar[str] = "Li et al. 2020, Federated optimization in heterogeneous networks"
    summary: ClassVar[str] = "FedAvg with a proximal term that holds clients near the common model"
    use_when: ClassVar[str] = "there are no groups, and local training goes far from the common model"
    avoid_when: ClassVar[str] = "groups differ: it loses what FedAvg loses"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.mu >= 0, "mu", "be at least 0")

    @on_client("models")
    def train(self, c: Cohort, sent: Models) -> Trained:
        """On the client: local training with the proximal term."""
        start = spread(sent.models, len(c))
        return Trained(local_sgd(c, start, self.opt, prox=start, mu=self.mu), c.size)

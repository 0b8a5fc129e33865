"""Your own method in one file: FedAvg with server momentum, run like any other."""

from dataclasses import dataclass, field
from typing import ClassVar

import coterie
from coterie import FedAvg, Federation, Global, Log, axpy, minus


@dataclass(frozen=True)
class FedAvgM(FedAvg):
    """theta <- theta + server_lr * (mean of the clients' models - theta)."""

    server_lr: float = field(default=0.7, metadata={"help": "step of the server"})
    name: ClassVar[str] = "fedavgm"

    def step(self, state: Global, fed: Federation) -> tuple[Global, Log]:
        """FedAvg's round, then a shorter step towards its result."""
        average, log = super().step(state, fed)
        return Global(axpy(self.server_lr, minus(average.model, state.model), state.model)), log


population = coterie.build("rotated-digits", seed=0)
model = coterie.build_model("digits-mlp", population.shape, population.classes)
print(coterie.run(FedAvgM(batch=16), population, model, rounds=10).accuracy)

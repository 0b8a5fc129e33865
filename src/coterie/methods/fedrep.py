"""FedRep: clients fit their own heads to a common representation, then improve it (Collins et al., 2021)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from torch import Tensor

from coterie.core.cohort import Cohort
from coterie.core.federation import on_client
from coterie.core.states import spread
from coterie.core.training import local_sgd
from coterie.methods.base import Models
from coterie.methods.fedper import FedPer
from coterie.methods.personal import equal
from coterie.methods.shared_part import TrainedPart


@dataclass(frozen=True)
class FedRep(FedPer):
    """tau_h steps on the head h_i with phi fixed, tau_phi on phi with h_i fixed; phi <- the mean (Algorithm 1).

    Here the steps are epochs, as in public code: `head_epochs` for h_i, then `epochs` for phi, and the mean is a plain
    one. Ours: h_i begins as in the common initial model.
    """

    head_epochs: int = field(default=5, metadata={"help": "epochs on the head (tau_h); `epochs` are those on the rest"})

    name: ClassVar[str] = "fedrep"
    title: ClassVar[str] = "FedRep"
    paper: ClassVar[str] = "Collins et al. 2021, Exploiting shared representations for personalized federated learning"
    summary: ClassVar[str] = "clients fit their own last layers to common ones, then train the common ones"
    use_when: ClassVar[str] = "as fedper, where the last layers are to be fitted before the common ones"
    avoid_when: ClassVar[str] = "clients are asked for labels that they lack, or differ in their inputs"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.head_epochs >= 1, "head_epochs", "be at least 1")

    def weights(self, size: Tensor) -> Tensor:
        """phi^t is the plain mean over the sampled clients."""
        return equal(size)

    @on_client("models")
    def train_part(self, c: Cohort, sent: Models) -> TrainedPart:
        """On the client: first the head, then the representation under that head."""
        start = self.in_use(c, spread(sent.models, len(c)))
        head = replace(self.opt, epochs=self.head_epochs)
        fitted = self.own_part(c.task, local_sgd(c, start, head, only=self.kept(c.task), purpose="head"))
        c.keep("part", fitted)
        phi = self.shared(c.task, c.task.template)
        return TrainedPart(self.shared(c.task, local_sgd(c, {**start, **fitted}, self.opt, only=phi)), c.size)

"""FedPer: common base layers, and personal layers at the top that never leave the client (Arivazhagan et al., 2019)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import ClassVar

from coterie.core.federation import Federation
from coterie.core.task import Task
from coterie.methods.fedavg import Global
from coterie.methods.shared_part import KeepsPart, head_entries


@dataclass(frozen=True)
class FedPer(KeepsPart):
    """(W_B,j, W_P,j) <- SGD on client j; W_B <- sum_j n_j W_B,j / sum_j n_j; W_P,j stays.

    Ours: W_P,j begins as in the common initial model (in the paper at random); a newcomer trains W_P on W_B as it is.
    """

    head: str = field(default="last", metadata={"help": "personal layers (W_P): last, or names of layers: 2,4"})

    name: ClassVar[str] = "fedper"
    title: ClassVar[str] = "FedPer"
    paper: ClassVar[str] = "Arivazhagan et al. 2019, Federated learning with personalization layers"
    summary: ClassVar[str] = "FedAvg for all layers but the last, which every client keeps for itself"
    use_when: ClassVar[str] = "clients agree about features and differ in their labels; fewer bytes"
    avoid_when: ClassVar[str] = "clients are asked for labels that they lack, or differ in their inputs"

    def init(self, fed: Federation) -> Global:
        """The common initial model; a network without a base is refused."""
        self.kept(fed.task)
        return super().init(fed)

    def kept(self, task: Task) -> Collection[str]:
        """W_P: the personal layers."""
        return head_entries(task, self.head, self.name)

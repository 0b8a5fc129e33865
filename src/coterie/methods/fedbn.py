"""FedBN: everything is averaged but batch normalisation, which fits each client's inputs (Li et al., 2021)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from torch import Tensor, nn

from coterie.core.federation import Federation
from coterie.core.task import Task
from coterie.methods.fedavg import Global
from coterie.methods.personal import equal
from coterie.methods.shared_part import KeepsPart


@dataclass(frozen=True)
class FedBN(KeepsPart):
    """Layers that are not BatchNorm are averaged, each client weighs 1/K; BatchNorm stays local (Algorithm 1).

    What stays is gamma, beta and the running statistics. Ours: a newcomer trains its BatchNorm layers alone.
    """

    name: ClassVar[str] = "fedbn"
    title: ClassVar[str] = "FedBN"
    paper: ClassVar[str] = "Li et al. 2021, FedBN: federated learning on non-iid features via local batch normalization"
    summary: ClassVar[str] = "FedAvg for all layers but BatchNorm, which every client keeps for itself"
    use_when: ClassVar[str] = "the network has BatchNorm and clients differ in the scale of their inputs"
    avoid_when: ClassVar[str] = "the network has no BatchNorm: then it is FedAvg"

    def init(self, fed: Federation) -> Global:
        """The common initial model."""
        if not self.kept(fed.task):
            fed.note("fedbn: the network has no BatchNorm layer, so this is FedAvg in which all clients weigh alike.")
        return super().init(fed)

    def kept(self, task: Task) -> Collection[str]:
        """All entries of BatchNorm layers."""
        return _batchnorm_entries(task)

    def weights(self, size: Tensor) -> Tensor:
        """1/K each."""
        return equal(size)


@lru_cache(maxsize=64)
def _batchnorm_entries(task: Task) -> tuple[str, ...]:
    layers = task.module.named_modules()
    names = {name for name, layer in layers if isinstance(layer, nn.modules.batchnorm._BatchNorm)}
    return tuple(entry for entry in task.template if entry.rpartition(".")[0] in names)

"""Oracle: FedAvg inside the true groups, the ceiling for every clustered method. Only the simulator can offer it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from coterie.core.federation import Federation
from coterie.core.samples import ClientId
from coterie.core.states import concat, count, row, spread
from coterie.methods.base import Log
from coterie.methods.clustered import ClusterMethod, Clusters


@dataclass(frozen=True)
class Oracle(ClusterMethod):
    """One model per true group; clients follow their group when it changes."""

    name: ClassVar[str] = "oracle"
    title: ClassVar[str] = "Oracle"
    paper: ClassVar[str] = "baseline"
    summary: ClassVar[str] = "FedAvg inside the true groups (the ceiling; needs a scenario with known groups)"
    use_when: ClassVar[str] = "the true groups are known: the ceiling in a comparison"
    avoid_when: ClassVar[str] = "groups are not known, as in practice"

    @property
    @override
    def needs_groups(self) -> bool:
        return True

    @override
    def find_clusters(self, fed: Federation, ids: Sequence[ClientId]) -> dict[str, int]:
        return dict(zip(ids, fed.truth(ids).tolist(), strict=True))

    def step(self, state: Clusters, fed: Federation) -> tuple[Clusters, Log]:
        """Look the groups up again (they may drift), then train."""
        cluster = self.find_clusters(fed, fed.ids)
        missing = max(cluster.values()) + 1 - count(state.models)
        models = state.models
        if missing > 0:
            models = concat([models, spread(row(models, 0), missing)])
        return super().step(Clusters(models, cluster), fed)

    def admit(self, state: Clusters, fed: Federation, new: Sequence[ClientId]) -> Clusters:
        """Newcomers go where they belong."""
        return Clusters(state.models, {**state.cluster, **self.find_clusters(fed, new)})

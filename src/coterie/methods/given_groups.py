"""FedAvg inside groups that somebody has found: what they are worth, judged apart from how they were found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from coterie.core.errors import CoterieError
from coterie.core.federation import Federation
from coterie.core.samples import ClientId
from coterie.methods.clustered import ClusterMethod


@dataclass(frozen=True)
class GivenGroups(ClusterMethod):
    """Every client trains the model of the group that `groups` names."""

    groups: Mapping[str, int] = field(default_factory=dict, metadata={"help": "the group of every client, from 0"})

    name: ClassVar[str] = "given-groups"
    title: ClassVar[str] = "FedAvg in given groups"
    paper: ClassVar[str] = "ours"
    summary: ClassVar[str] = "FedAvg inside groups that are given"

    def find_clusters(self, fed: Federation, ids: Sequence[ClientId]) -> dict[str, int]:
        """The groups as they are given."""
        missing = [client for client in ids if client not in self.groups]
        if missing:
            raise CoterieError(f"given-groups: {', '.join(missing[:3])} have no group; give every client one.")
        return {client: self.groups[client] for client in ids}

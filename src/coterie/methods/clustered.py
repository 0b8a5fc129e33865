"""What clustered methods share: several models on the server, each the mean of its own clients."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie.cohort import Cohort, local_sgd
from coterie.data.samples import ClientId
from coterie.federation import Federation, Replies, on_client
from coterie.methods.base import Log, Models, ServerMethod, Trained
from coterie.states import Stack, State, count, group_means, row, spread


@dataclass(frozen=True)
class Clusters:
    """K models and the cluster of every client that has one. Each client is in exactly one cluster."""

    models: Stack
    cluster: dict[str, int]

    def of(self, ids: Sequence[ClientId]) -> list[int]:
        """The clusters of the given clients, -1 for one that has none yet."""
        return [self.cluster.get(client, -1) for client in ids]


@dataclass(frozen=True)
class ClusterMethod(ServerMethod[Clusters]):
    """FedAvg inside given clusters; subclasses say which clients belong together."""

    state_type: ClassVar[type[Clusters]] = Clusters

    @abstractmethod
    def find_clusters(self, fed: Federation, ids: Sequence[ClientId]) -> dict[str, int]:
        """The cluster of each of these clients, numbered from 0."""

    def init(self, fed: Federation) -> Clusters:
        """Cluster the clients, then give every cluster the same initial model."""
        cluster = self.find_clusters(fed, fed.ids)
        copies = spread(fed.task.init(fed.seed), max(cluster.values()) + 1)
        return Clusters(copies, cluster)

    def step(self, state: Clusters, fed: Federation) -> tuple[Clusters, Log]:
        """Sample clients among all, train each on its cluster's model, average inside the clusters."""
        replies = self.train_clusters(state, fed)
        return self.averaged(state, replies), {}

    def train_clusters(self, state: Clusters, fed: Federation) -> Replies[Trained]:
        """Every sampled client trains the model of its cluster."""
        ids = [client for client in fed.sample(self.fraction) if client in state.cluster]
        return fed.ask(self.train, ids, each=Models(state.models), rows=state.of(ids))

    def averaged(self, state: Clusters, replies: Replies[Trained]) -> Clusters:
        """The mean of each cluster's clients; a cluster that nobody trained keeps its model."""
        if replies.value is None:
            return state
        groups = torch.tensor(state.of(replies.ids))
        return Clusters(group_means(replies.value.model, replies.value.size, groups, state.models), dict(state.cluster))

    @on_client
    def train(self, c: Cohort, sent: Models) -> Trained:
        """On the client: local training from the model of the own cluster."""
        return Trained(local_sgd(c, sent.models, self.opt), c.size)

    def model_for(self, state: Clusters, ids: Sequence[ClientId]) -> tuple[Stack, list[int]]:
        """Each client uses the model of its cluster."""
        return state.models, [max(cluster, 0) for cluster in state.of(ids)]

    def clusters(self, state: Clusters, ids: Sequence[ClientId]) -> list[int] | None:
        """The clusters as the server knows them."""
        return state.of(ids)

    def models(self, state: Clusters) -> Mapping[str, State]:
        """One model per cluster."""
        return {f"cluster-{k}": row(state.models, k) for k in range(count(state.models))}


def distinct_starts(fed: Federation, k: int, attempt: int = 0) -> Stack:
    """K different initial models; the first of the first attempt is the one every method starts from."""
    states = [fed.task.init(fed.seed, which + attempt * k) for which in range(k)]
    return {name: torch.stack([state[name] for state in states]) for name in states[0]}


def cluster_sizes(groups: Tensor, k: int) -> list[int]:
    """How many clients each cluster has."""
    return [int(size) for size in torch.bincount(groups, minlength=k)]

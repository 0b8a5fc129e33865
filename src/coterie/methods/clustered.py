"""What clustered methods share: several models on the server, each the mean of its own clients."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor
from typing_extensions import override

from coterie.core.aggregate import combined
from coterie.core.cohort import Cohort
from coterie.core.evaluation import losses
from coterie.core.federation import Federation, Replies, on_client
from coterie.core.samples import ClientId
from coterie.core.states import Picked, Stack, State, count, row, spread, take
from coterie.core.training import local_sgd
from coterie.methods.base import Log, Models, ServerMethod, Trained


class HasClusters(Protocol):
    """A server's state with K models and the cluster of every client that has one; a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def models(self) -> Stack:
        """One model per cluster."""

    @property
    def cluster(self) -> dict[str, int]:
        """Each client is in exactly one cluster."""


S = TypeVar("S", bound=HasClusters)


@dataclass(frozen=True)
class Choice:
    """The cluster a client picks."""

    cluster: Tensor


@dataclass(frozen=True)
class ServesClusters(ServerMethod[S]):
    """Clients use the model of their cluster; which that is and how it is trained the subclasses say."""

    def cluster_models(self, state: S) -> Stack:
        """The model of every cluster that its clients use: the one that is trained, unless a method says otherwise."""
        return state.models

    def model_for(self, state: S, ids: Sequence[ClientId]) -> tuple[Stack, list[int]]:
        """Each client uses the model of its cluster, one that is in none yet the first."""
        return self.cluster_models(state), [state.cluster.get(client, 0) for client in ids]

    def model_of(self, state: S, client: ClientId, group: int | None) -> State:
        """That of the group, which the client may have chosen after the server last heard of it."""
        return super().model_of(state, client, group) if group is None else row(self.cluster_models(state), group)

    def clusters(self, state: S, ids: Sequence[ClientId]) -> list[int] | None:
        """The clusters as the server knows them."""
        return [state.cluster.get(client, -1) for client in ids]

    @override
    def models(self, state: S) -> Mapping[str, State]:
        return {f"cluster-{k}": row(self.cluster_models(state), k) for k in range(count(state.models))}

    def models_in_use(self, state: S, clusters: Collection[int]) -> Mapping[str, State]:
        """A model that no client has chosen is as it began, or as it was left: no client's."""
        used = [k for k in range(count(state.models)) if k in clusters] or range(count(state.models))
        return {f"cluster-{k}": row(self.cluster_models(state), k) for k in used}


@dataclass(frozen=True)
class KnowsMembers(ServesClusters[S]):
    """The server puts clients into clusters; one that it has not met is served by the cluster that fits it."""

    def unmet(self, state: S, ids: Sequence[ClientId]) -> list[ClientId]:
        """Those of these clients that have not been put into a cluster by anything they have shown."""
        return [client for client in ids if client not in state.cluster]

    def placed(self, state: S, fed: Federation, ids: Sequence[ClientId]) -> S:
        """Who is in no cluster finds the one that fits; where only one has members, all are in it, and none is asked.

        A cluster without members has a model as it began, or as it was left, and takes nobody in here.
        """
        unmet, used = self.unmet(state, ids), sorted(set(state.cluster.values()))
        if not unmet or not used:
            return state
        found = self.fitting(state, fed, unmet, used) if len(used) > 1 else dict.fromkeys(unmet, used[0])
        return replace(state, cluster={**state.cluster, **found})

    @abstractmethod
    def fitting(self, state: S, fed: Federation, ids: Sequence[ClientId], among: Sequence[int]) -> dict[ClientId, int]:
        """Which of these clusters fits each client best; they say so themselves, in an evaluation."""


@dataclass(frozen=True)
class ModelPerCluster(KnowsMembers[S]):
    """Clients are sent and train the model of their cluster; which that is the subclasses find out."""

    @on_client("models")
    def train(self, c: Cohort, sent: Models) -> Trained:
        """On the client: local training from the model of its cluster."""
        return Trained(local_sgd(c, sent.models, self.opt), c.size)

    @on_client("scores")
    def choose(self, c: Cohort, sent: Models) -> Choice:
        """On the client: the cluster whose model has the least loss on its own training part."""
        return Choice(least_loss(c, sent.models))

    def fitting(self, state: S, fed: Federation, ids: Sequence[ClientId], among: Sequence[int]) -> dict[ClientId, int]:
        """By its training loss."""
        sent = Models(take(self.cluster_models(state), torch.tensor(among)))
        return chosen_of(fed.ask(self.choose, ids, same=sent, purpose="evaluation"), among)

    def admit(self, state: S, fed: Federation, new: Sequence[ClientId]) -> S:
        """Newcomers try all models, once, and go where their training loss is least."""
        unmet = [client for client in new if client not in state.cluster]
        chosen = chosen_of(fed.ask(self.choose, unmet, same=Models(state.models)), range(count(state.models)))
        return replace(state, cluster={**state.cluster, **chosen}) if chosen else state


def chosen_of(replies: Replies[Choice], groups: Sequence[int]) -> dict[ClientId, int]:
    """The cluster of each client that has answered, where it was sent the models of these."""
    picked = [] if replies.value is None else replies.value.cluster.tolist()
    return {client: groups[place] for client, place in zip(replies.ids, picked, strict=True)}


def least_loss(c: Cohort, models: Stack, batch: int = 0) -> Tensor:
    """Which of the models fits each client's training part best, [C]; by `batch` of its samples, 0: all."""
    if count(models) == 1:
        return torch.zeros(len(c), dtype=torch.int64)
    return losses(c, models, batch=batch).argmin(0)


@dataclass(frozen=True)
class Clusters:
    """K models and the cluster of every client that has one. Each client is in exactly one cluster."""

    models: Stack
    cluster: dict[str, int]

    def of(self, ids: Sequence[ClientId]) -> list[int]:
        """The clusters of the given clients, -1 for one that has none yet."""
        return [self.cluster.get(client, -1) for client in ids]


@dataclass(frozen=True)
class AverageInClusters(ModelPerCluster[S]):
    """FedAvg inside the clusters of the state."""

    def train_clusters(self, state: S, fed: Federation) -> Replies[Trained]:
        """Every sampled client trains the model of its cluster; those that are in none are left out."""
        ids = [client for client in fed.sample(self.fraction) if client in state.cluster]
        _, rows = self.model_for(state, ids)
        replies = fed.ask(self.train, ids, each=Models(state.models), rows=rows)
        _, rows = self.model_for(state, replies.ids)
        return self.usable(fed, replies, Picked(state.models, torch.tensor(rows, dtype=torch.int64)))

    def averaged(self, state: S, replies: Replies[Trained]) -> S:
        """The mean of each cluster's clients; a cluster that no client trained keeps its model."""
        if replies.value is None:
            return state
        groups = torch.tensor(self.model_for(state, replies.ids)[1])
        models = combined(self.aggregate, replies.value.model, replies.value.size, groups, state.models)
        return replace(state, models=models)


@dataclass(frozen=True)
class ClusterMethod(AverageInClusters[Clusters]):
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
        return self.averaged(state, self.train_clusters(state, fed)), {}


def distinct_starts(fed: Federation, k: int, attempt: int = 0) -> Stack:
    """K different initial models; the first of the first attempt is the one every method starts from."""
    states = [fed.task.init(fed.seed, which + attempt * k) for which in range(k)]
    return {name: torch.stack([state[name] for state in states]) for name in states[0]}


def cluster_sizes(groups: Tensor, k: int) -> list[int]:
    """How many clients each cluster has."""
    return [int(size) for size in torch.bincount(groups, minlength=k)]

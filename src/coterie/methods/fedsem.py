"""FedSEM: k-means on the clients' parameters (Xie et al., Multi-center federated learning)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from coterie.core.aggregate import combined
from coterie.core.federation import Federation
from coterie.core.groupings import k_means
from coterie.core.layers import weight_matrices
from coterie.core.rng import key64
from coterie.core.samples import ClientId
from coterie.core.states import Picked, Stack, count, flat, spread
from coterie.core.task import Task
from coterie.methods.base import Log, Models
from coterie.methods.clustered import ModelPerCluster, cluster_sizes
from coterie.methods.counted import Counted, number_of


@dataclass(frozen=True)
class Centres:
    """K models, the last known parameters of every client that took part, their cluster, and the k-means centres."""

    models: Stack
    cluster: dict[str, int]
    vectors: dict[str, Tensor]
    centroids: Tensor | None = None


@dataclass(frozen=True)
class FedSEM(ModelPerCluster[Centres], Counted[Centres]):
    """E-step: every client to the nearest centre; M-step: centres are means. Absent clients keep their vector."""

    k: int = field(default=4, metadata=number_of("centres", "K"))
    layer: Literal["last", "all"] = field(
        default="last", metadata={"help": "cluster on the last layer's weights (the authors' code) or on all"}
    )

    name: ClassVar[str] = "fedsem"
    title: ClassVar[str] = "FedSEM"
    paper: ClassVar[str] = "Xie et al. 2021, Multi-center federated learning"
    summary: ClassVar[str] = "k-means on the clients' parameters, one model per centre"
    use_when: ClassVar[str] = "K is known and everybody takes part in every round"
    avoid_when: ClassVar[str] = "few take part, groups drift or labels are skewed: 7 to 41 points behind"
    state_type: ClassVar[type[Centres]] = Centres

    def init(self, fed: Federation) -> Centres:
        """All centres start from the common model."""
        self._require_clients(fed, self.k, "centres")
        return Centres(spread(fed.task.init(fed.seed), self.k), {}, {})

    def begun(self, fed: Federation, models: Stack, cluster: Mapping[ClientId, int]) -> Centres:
        """The centres are the groups' models, and so are the vectors of their members until they train."""
        centres = self._points(fed.task, models)
        return Centres(models, dict(cluster), {i: centres[group].clone() for i, group in cluster.items()}, centres)

    def step(self, state: Centres, fed: Federation) -> tuple[Centres, Log]:
        """Train from the model of the client's centre, cluster the parameters, average per cluster."""
        ids = fed.sample(self.fraction)
        _, rows = self.model_for(state, ids)
        replies = fed.ask(self.train, ids, each=Models(state.models), rows=rows)
        _, rows = self.model_for(state, replies.ids)
        replies = self.usable(fed, replies, Picked(state.models, torch.tensor(rows, dtype=torch.int64)))
        if replies.value is None:
            return state, {}
        points = self._points(fed.task, replies.value.model)
        vectors = {**state.vectors, **{client: points[i] for i, client in enumerate(replies.ids)}}
        cluster, centroids = self._cluster(vectors, state.centroids, fed)
        groups = torch.tensor([cluster[client] for client in replies.ids])
        _, rows = self.model_for(state, replies.ids)
        sent = Picked(state.models, torch.tensor(rows))
        models = combined(self.aggregate, replies.value.model, replies.value.size, groups, state.models, sent)
        moved = sum(state.cluster.get(client, new) != new for client, new in cluster.items())
        return Centres(models, cluster, vectors, centroids), {"moved": moved, "sizes": cluster_sizes(groups, self.k)}

    def _points(self, task: Task, models: Stack) -> Tensor:
        if self.layer == "all":
            return flat(models).double()
        return last_layers(task, models)

    def _cluster(
        self, vectors: dict[str, Tensor], centroids: Tensor | None, fed: Federation
    ) -> tuple[dict[str, int], Tensor | None]:
        """Lloyd from the last centroids, so that clusters keep their numbers; ten fresh starts the first time."""
        if len(vectors) < self.k:
            return dict.fromkeys(vectors, 0), None
        names = sorted(vectors)
        points = torch.stack([vectors[name] for name in names])
        labels, found = k_means(points, self.k, key64(fed.seed, "k-means"), centroids)
        return dict(zip(names, labels.tolist(), strict=True)), found


def last_layers(task: Task, models: Stack) -> Tensor:
    """The weights of every model's last layer, [C, D]."""
    last = weight_matrices(task)[-1]
    return models[last].reshape(count(models), -1).double()

"""IFCA: every client picks, among K models, the one that fits its data (Ghosh et al., 2020).

No client has a cluster before it chooses one, and newcomers choose as all do, whenever they are asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from coterie.core.aggregate import combined
from coterie.core.cohort import Cohort
from coterie.core.federation import Federation, Replies, on_client
from coterie.core.samples import ClientId
from coterie.core.states import Picked, Stack, take
from coterie.core.training import local_sgd
from coterie.methods.base import A, Log, Models
from coterie.methods.clustered import (
    Choice,
    Clusters,
    ServesClusters,
    cluster_sizes,
    distinct_starts,
    least_loss,
)
from coterie.methods.counted import Counted, number_of
from coterie.methods.served import Use


@dataclass(frozen=True)
class ChosenAndTrained:
    """The cluster a client picked, its model after local training, its number of samples."""

    model: Stack
    cluster: Tensor
    size: Tensor


@dataclass(frozen=True)
class IFCA(ServesClusters[Clusters], Counted[Clusters]):
    """Broadcast K models; s_i = argmin_j F_i(theta_j); train theta_{s_i}; average per cluster (Algorithm 1)."""

    k: int = field(default=4, metadata=number_of("clusters", "K"))
    score_batch: int = field(default=0, metadata={"help": "choose on that many training samples; 0: on all"})
    restarts: int = field(default=0, metadata={"help": "draw the initial models again, up to so often, on collapse"})
    min_share: float = field(
        default=0.1, metadata={"help": "a start has collapsed if a model attracts less than this share of clients"}
    )

    name: ClassVar[str] = "ifca"
    title: ClassVar[str] = "IFCA"
    paper: ClassVar[str] = "Ghosh et al. 2020, An efficient framework for clustered federated learning"
    summary: ClassVar[str] = "every client picks the best of K models and trains it"
    use_when: ClassVar[str] = "K is known, labels are alike, and groups differ clearly; it follows drift"
    avoid_when: ClassVar[str] = "labels are skewed (9 to 40 points) or samples few; each client loads K models"
    state_type: ClassVar[type[Clusters]] = Clusters

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.score_batch >= 0, "score_batch", "be at least 0")
        self._require(self.restarts >= 0, "restarts", "be at least 0")
        possible = 0 <= self.min_share * self.k <= 1 or not self.restarts
        self._require(possible, "min_share", f"be at most 1/k = {1 / max(self.k, 1):.3g} when there are restarts")

    def init(self, fed: Federation) -> Clusters:
        """K different models; with `restarts`, drawn again until each attracts a share of the clients."""
        self._require_clients(fed, self.k)
        models = distinct_starts(fed, self.k)
        for attempt in range(1, self.restarts + 1):
            replies = fed.ask(self.choose, fed.ids, same=Models(models))
            if replies.value is None:
                break
            sizes = cluster_sizes(replies.value.cluster, self.k)
            if min(sizes) >= self.min_share * len(replies.ids):
                break
            models = distinct_starts(fed, self.k, attempt)
        return Clusters(models, {})

    def begun(self, fed: Federation, models: Stack, cluster: Mapping[ClientId, int]) -> Clusters:
        """From then on every client picks."""
        return Clusters(models, dict(cluster))

    def step(self, state: Clusters, fed: Federation) -> tuple[Clusters, Log]:
        """One round; an empty cluster keeps its model."""
        replies = fed.ask(self.select_and_train, fed.sample(self.fraction), same=Models(state.models))
        if replies.value is not None:
            replies = self.usable(fed, replies, Picked(state.models, replies.value.cluster))
        if replies.value is None:
            return state, {}
        chosen = replies.value.cluster
        models = combined(self.aggregate, replies.value.model, replies.value.size, chosen, state.models)
        known = {**state.cluster, **dict(zip(replies.ids, chosen.tolist(), strict=True))}
        moved = sum(state.cluster.get(client, new) != new for client, new in known.items())
        return Clusters(models, known), {"moved": moved, "sizes": cluster_sizes(chosen, self.k)}

    @on_client("models", "scores")
    def select_and_train(self, c: Cohort, sent: Models) -> ChosenAndTrained:
        """On the client: pick the model with the least training loss, then train it."""
        s = self._pick(c, sent.models)
        return ChosenAndTrained(local_sgd(c, take(sent.models, s), self.opt), s, c.size)

    @on_client("scores")
    def choose(self, c: Cohort, sent: Models) -> Choice:
        """On the client: only pick."""
        return Choice(self._pick(c, sent.models))

    def _pick(self, c: Cohort, models: Stack) -> Tensor:
        return least_loss(c, models, self.score_batch)

    def ask_about_models(
        self, state: Clusters, fed: Federation, ids: Sequence[ClientId], function: Callable[[Cohort, Any], A]
    ) -> Replies[A]:
        """Clients are sent all models, for they pick one by their training data."""
        return fed.ask(function, ids, same=Models(state.models), purpose="evaluation")

    def uses(self, c: Cohort, sent: Models) -> Use:
        """On the client: the model that it picks now."""
        s = self._pick(c, sent.models)
        return Use(c, take(sent.models, s), s)

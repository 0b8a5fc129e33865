"""CFL: clusters that split in two when their clients stop agreeing (Sattler et al., 2020)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from coterie.core.aggregate import combined
from coterie.core.federation import Federation
from coterie.core.panels import Heatmap, Panel
from coterie.core.samples import ClientId
from coterie.core.states import Picked, Stack, concat, cosine, count, flat, minus, stack, take
from coterie.core.wire import LATER
from coterie.methods.base import Log, Models
from coterie.methods.clustered import ModelPerCluster


@dataclass(frozen=True)
class Branches:
    """The clusters so far; each client is in exactly one. `updates` are the last known where some are absent.

    `scale` is the mean length of the clients' updates in the first round, by which relative thresholds are measured.
    `met` are the clients that have trained, or have chosen their cluster: all others are in one by default.
    """

    models: Stack
    cluster: dict[str, int]
    updates: dict[str, Tensor]
    scale: float = 0.0
    similarity: Tensor | None = None
    met: list[str] = field(default_factory=list, metadata={LATER: True})


@dataclass(frozen=True)
class CFL(ModelPerCluster[Branches]):
    """A cluster splits if |mean update| < eps1 and max |update| > eps2: at rest, though its clients disagree."""

    eps1: float = field(default=0.4, metadata={"help": "split below this length of the mean update"})
    eps2: float = field(
        default=1.2, metadata={"help": "split above this length of the longest update (paper's demo: 1.6)"}
    )
    thresholds: Literal["relative", "absolute"] = field(
        default="relative",
        metadata={"help": "eps in units of a client's mean update length in round one, or as they are"},
    )
    cross: float = field(
        default=0.1,
        metadata={"help": "largest cosine across the halves of a split (the paper's gamma test; 1: no test)"},
    )
    first_split: int = field(default=5, metadata={"help": "rounds before the first split (paper's demo: 20)"})
    least: int = field(default=3, metadata={"help": "clients a cluster needs to be split"})

    name: ClassVar[str] = "cfl"
    title: ClassVar[str] = "CFL"
    paper: ClassVar[str] = "Sattler et al. 2020, Clustered federated learning: model-agnostic distributed multi-task"
    summary: ClassVar[str] = "one model that splits in two wherever its clients' updates disagree"
    use_when: ClassVar[str] = "K is not known, groups are few and large, and everybody takes part"
    avoid_when: ClassVar[str] = "samples are few, labels skewed, or groups many: 10 to 22 points behind"
    state_type: ClassVar[type[Branches]] = Branches

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.eps1 > 0, "eps1", "be above 0")
        self._require(self.eps2 >= 0, "eps2", "be at least 0")
        self._require(-1 <= self.cross <= 1, "cross", "lie in [-1, 1]")
        self._require(self.first_split >= 0, "first_split", "be at least 0")
        self._require(self.least >= 2, "least", "be at least 2")

    def init(self, fed: Federation) -> Branches:
        """Everyone in one cluster."""
        return Branches(stack([fed.task.init(fed.seed)]), dict.fromkeys(fed.ids, 0), {})

    def step(self, state: Branches, fed: Federation) -> tuple[Branches, Log]:
        """Train inside the clusters, split those that disagree, then average inside the (new) clusters."""
        ids = fed.sample(self.fraction)
        cluster = {
            **state.cluster,
            **dict.fromkeys([i for i in ids if i not in state.cluster], _largest(state.cluster)),
        }
        rows = [cluster[client] for client in ids]
        replies = fed.ask(self.train, ids, each=Models(state.models), rows=rows)
        rows = [cluster[client] for client in replies.ids]
        replies = self.usable(fed, replies, Picked(state.models, torch.tensor(rows, dtype=torch.int64)))
        if replies.value is None:
            return state, {}
        trained = replies.value.model
        before = torch.tensor([cluster[client] for client in replies.ids])
        parameters = {name: tensor for name, tensor in trained.items() if name in fed.task.parameters}
        changes = flat(minus(parameters, take(state.models, before)))
        updates = {**state.updates, **{client: changes[i] for i, client in enumerate(replies.ids)}}
        scale = state.scale or float(changes.norm(dim=1).mean())
        models, splits = state.models, 0
        for old in range(count(state.models) if fed.round >= self.first_split else 0):
            halves = self._halves(old, cluster, updates, scale)
            if halves:
                cluster = {**cluster, **dict.fromkeys(halves, count(models))}
                models = concat([models, {name: tensor[old : old + 1] for name, tensor in models.items()}])
                splits += 1
        groups = torch.tensor([cluster[client] for client in replies.ids])
        models = combined(self.aggregate, trained, torch.ones(len(replies.ids), dtype=torch.float64), groups, models)
        absent = {client: updates[client] for client in updates} if len(replies.ids) < len(fed.ids) else {}
        log: Log = {
            "splits": splits,
            "mean_update": float(changes.mean(0).norm()),
            "longest": float(changes.norm(dim=1).max()),
        }
        met = sorted(_met(state).union(replies.ids))
        return Branches(models, cluster, absent, scale, cosine(changes), met), log

    def _halves(
        self, old: int, cluster: Mapping[str, int], updates: Mapping[str, Tensor], scale: float
    ) -> list[ClientId]:
        """The members of a cluster that leave it for a new one; none where it stays whole.

        Members without any known update stay with the larger half.
        """
        members = sorted(client for client, number in cluster.items() if number == old and client in updates)
        if len(members) < self.least:
            return []
        changes = torch.stack([updates[client] for client in members])
        unit = scale if self.thresholds == "relative" else 1.0
        if float(changes.mean(0).norm()) >= self.eps1 * unit or float(changes.norm(dim=1).max()) <= self.eps2 * unit:
            return []
        similarity = cosine(changes)
        labels = bipartition(similarity)
        half = torch.tensor(labels)
        if float(similarity[half][:, ~half].max()) > self.cross:
            return []
        ones = [client for client, label in zip(members, labels, strict=True) if label]
        return ones if 2 * len(ones) <= len(members) else [client for client in members if client not in set(ones)]

    def admit(self, state: Branches, fed: Federation, new: Sequence[ClientId]) -> Branches:
        """As with other clusters; what newcomers have chosen by is known of them."""
        after = super().admit(state, fed, new)
        return replace(after, met=sorted(_met(state) | (after.cluster.keys() - state.cluster.keys())))

    def unmet(self, state: Branches, ids: Sequence[ClientId]) -> list[ClientId]:
        """All are in a cluster from the start; those who have never trained are there by nothing that they showed."""
        met = _met(state)
        strangers = [client for client in ids if met and client not in met]
        return strangers if count(state.models) > 1 else super().unmet(state, ids)

    def panels(self, state: Branches, ids: Sequence[ClientId], truth: Sequence[int] | None) -> list[Panel]:
        """The cosines of the last round's updates."""
        if state.similarity is None or len(state.similarity) > 200:
            return []
        return [Heatmap("Cosines of the clients' last updates", state.similarity.tolist())]


def bipartition(similarity: Tensor) -> list[bool]:
    """Two halves by complete linkage on -similarity, which makes the largest similarity across them small.

    They are what the last merge joined, so neither is empty, even where merges have equal heights.
    """
    from scipy.cluster.hierarchy import linkage, to_tree
    from scipy.spatial.distance import squareform

    gaps = (1 - similarity.double()).clamp_min(0)
    gaps = (gaps + gaps.T) / 2
    tree = linkage(squareform(gaps.fill_diagonal_(0).numpy(), checks=False), "complete")
    _, nodes = to_tree(tree, rd=True)
    second = set(nodes[int(tree[-1, 1])].pre_order())
    return [client in second for client in range(len(similarity))]


def _met(state: Branches) -> set[ClientId]:
    """Who has been met; an older version's checkpoint does not say, and all that it knows have."""
    return set(state.met or (state.cluster if state.scale else ()))


def _largest(cluster: Mapping[str, int]) -> int:
    """The number of the cluster with most clients; the lowest of several."""
    sizes = torch.bincount(torch.tensor(list(cluster.values()) or [0]))
    return int(sizes.argmax())

"""FedSoft: clients between groups are served by a mixture of the groups' models (Ruan and Joe-Wong, 2022)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from coterie.core.aggregate import combined
from coterie.core.cohort import Cohort
from coterie.core.errors import CoterieError
from coterie.core.evaluation import sample_losses
from coterie.core.federation import Federation, on_client
from coterie.core.groupings import k_means
from coterie.core.panels import Panel, Table
from coterie.core.rng import key64
from coterie.core.samples import ClientId
from coterie.core.states import Stack, State, concat, count, mix, row, spread, take
from coterie.core.training import local_sgd
from coterie.methods.base import Log, Models, Trained
from coterie.methods.clustered import KnowsMembers
from coterie.methods.counted import Counted, number_of
from coterie.methods.fedsem import last_layers


@dataclass(frozen=True)
class SoftClusters:
    """The centres c_s, and every client's importance weights u_ks, [S]; `cluster` is where its weight is largest."""

    models: Stack
    cluster: dict[str, int]
    weights: dict[str, Tensor]
    begun: bool = False
    """Whether the centres differ yet."""


@dataclass(frozen=True)
class Shares:
    """The share of a client's samples that each centre fits best, [C, S], and its number of samples."""

    share: Tensor
    size: Tensor


@dataclass(frozen=True)
class FedSoft(KnowsMembers[SoftClusters], Counted[SoftClusters]):
    """w_k = argmin f_k(w) + lambda/2 sum_s u_ks |w - c_s|^2;  c_s = sum_k v_sk w_k, v_sk ~ u_ks n_k (Algorithm 1).

    The proximal terms together are one towards the client's mixture sum_s u_ks c_s / sum_s u_ks, so a client is sent
    that model alone, and begins with it. Ours: a centre is the weighted mean of all replies, where the paper draws the
    clients of each centre by v_sk. A client uses its mixture. The first round begins with one common model, and its
    replies, in K groups by k-means, give the first centres: a mixture of centres that began apart is of no use
    (8 x 8 digits in four rotations: 82 % with centres drawn apart).
    """

    k: int = field(default=4, metadata=number_of("centres", "S"))
    lam: float = field(default=0.1, metadata={"help": "how strongly clients are held near their mixture (lambda)"})
    every: int = field(default=2, metadata={"help": "rounds between two estimates of the importance weights (tau)"})
    least: float = field(default=1e-4, metadata={"help": "least importance weight (sigma)"})

    name: ClassVar[str] = "fedsoft"
    title: ClassVar[str] = "FedSoft"
    paper: ClassVar[str] = (
        "Ruan and Joe-Wong 2022, FedSoft: soft clustered federated learning with proximal local updating"
    )
    summary: ClassVar[str] = "K models; a client between groups is served by a mixture of them"
    use_when: ClassVar[str] = "clients are mixtures of groups in theory; no run of ours gained by it"
    avoid_when: ClassVar[str] = "groups are clear: it mixes what belongs apart, and loses 5 to 40 points"
    state_type: ClassVar[type[SoftClusters]] = SoftClusters

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.lam >= 0, "lam", "be at least 0")
        self._require(self.every >= 1, "every", "be at least 1")
        self._require(0 < self.least <= 1, "least", "lie in (0, 1]")

    def init(self, fed: Federation) -> SoftClusters:
        """One common model as all K centres; no client has weights yet."""
        if self.k > len(fed.ids):
            raise CoterieError(
                f"fedsoft: k = {self.k} centres need at least as many clients, but there are {len(fed.ids)}."
            )
        return SoftClusters(spread(fed.task.init(fed.seed), self.k), {}, {})

    def begun(self, fed: Federation, models: Stack, cluster: Mapping[ClientId, int]) -> SoftClusters:
        """The centres are the groups' models; clients weigh them when they next take part."""
        weights = self._all_for(count(models))
        return SoftClusters(models, dict(cluster), {i: weights[group].clone() for i, group in cluster.items()}, True)

    def step(self, state: SoftClusters, fed: Federation) -> tuple[SoftClusters, Log]:
        """Estimate weights every tau rounds (and those of clients that have none), train, average into all centres."""
        drawn = fed.sample(self.fraction)
        if state.begun:
            due = [client for client in drawn if fed.round % self.every == 0 or client not in state.weights]
            state = self._weighed(state, fed, due)
        ids = [client for client in drawn if client in state.weights or not state.begun]
        start, rows = self.model_for(state, ids)
        replies = fed.ask(self.train, ids, each=Models(start), rows=rows)
        place = dict(zip(ids, rows, strict=True))
        sent = take(start, torch.tensor([place[client] for client in replies.ids], dtype=torch.int64))
        replies = self.usable(fed, replies, sent)
        if replies.value is None:
            return state, {}
        if not state.begun:
            return self._begun(state, fed, replies.value), {}
        weights = torch.stack([state.weights[client] for client in replies.ids])
        models = self._averaged(state.models, replies.value, weights)
        softness = float((1 - weights.max(1).values / weights.sum(1)).mean())
        return replace(state, models=models), {"softness": softness}

    def _begun(self, state: SoftClusters, fed: Federation, trained: Trained) -> SoftClusters:
        """The first centres: the means of the first replies, grouped by k-means on their last layer."""
        if len(trained.size) < self.k:  # too few to tell groups apart: the common model goes on
            together = torch.zeros(len(trained.size), dtype=torch.int64)
            models = combined(self.aggregate, trained.model, trained.size, together, state.models)
            return replace(state, models=take(models, torch.zeros(self.k, dtype=torch.int64)))
        groups, _ = k_means(last_layers(fed.task, trained.model), self.k, key64(fed.seed, "k-means"))
        models = combined(self.aggregate, trained.model, trained.size, groups, state.models)
        return replace(state, models=models, begun=True)

    def _weighed(self, state: SoftClusters, fed: Federation, ids: Sequence[ClientId]) -> SoftClusters:
        """The state with new importance weights u_ks = max(n_ks / n_k, sigma) of some clients."""
        replies = fed.ask(self.weigh, ids, same=Models(state.models)) if ids else None
        if replies is None or replies.value is None:
            return state
        told = replies.value.share.float().clamp(0, 1)
        # shares of one client's samples: who claims all of them for every centre does not count fully in each
        told = told * ((1 + self.k * self.least) / told.sum(1, keepdim=True)).clamp_max(1)
        weights = {**state.weights, **{client: told[i].clone() for i, client in enumerate(replies.ids)}}
        cluster = {**state.cluster, **{client: int(told[i].argmax()) for i, client in enumerate(replies.ids)}}
        return replace(state, weights=weights, cluster=cluster)

    def _averaged(self, centres: Stack, trained: Trained, weights: Tensor) -> Stack:
        """c_s <- sum_k v_sk w_k, each centre by the rule of `aggregate`."""
        everyone = torch.zeros(len(weights), dtype=torch.int64)
        made = []
        for centre in range(self.k):
            old = {name: tensor[centre : centre + 1] for name, tensor in centres.items()}
            v = trained.size * weights[:, centre].to(trained.size.dtype)
            made.append(combined(self.aggregate, trained.model, v, everyone, old, sizes=trained.size))
        return concat(made)

    @on_client("scores")
    def weigh(self, c: Cohort, sent: Models) -> Shares:
        """On the client: which centre has the least loss on each sample, in shares of all samples (n_ks / n_k)."""
        share, k = [], count(sent.models)
        for client in c.data:
            if not len(client.train):
                share.append(torch.full((k,), 1 / k, dtype=torch.float64))
                continue
            best = sample_losses(c.task, sent.models, client.train).argmin(0)
            share.append(torch.bincount(best, minlength=k).double() / len(client.train))
        return Shares(torch.stack(share).clamp_min(self.least), c.size)

    @on_client("models")
    def train(self, c: Cohort, sent: Models) -> Trained:
        """On the client: the proximal update from its mixture, mu = lambda sum_s u_ks (the u_ks sum to about 1)."""
        return Trained(local_sgd(c, sent.models, self.opt, prox=sent.models, mu=self.lam), c.size)

    def model_for(self, state: SoftClusters, ids: Sequence[ClientId]) -> tuple[Stack, list[int]]:
        """Every client's mixture sum_s u_ks c_s / sum_s u_ks."""
        if not ids:
            return spread({name: tensor[0] for name, tensor in state.models.items()}, 1), []
        weights = torch.stack([self._weights_of(state, client, state.cluster.get(client)) for client in ids]).double()
        return mix(weights / weights.sum(1, keepdim=True), state.models), list(range(len(ids)))

    def model_of(self, state: SoftClusters, client: ClientId, group: int | None) -> State:
        """Its mixture, and not the model of the group in which its weight is largest."""
        weights = self._weights_of(state, client, group)[None].double()
        return row(mix(weights / weights.sum(1, keepdim=True), state.models), 0)

    def _weights_of(self, state: SoftClusters, client: ClientId, group: int | None) -> Tensor:
        """Its own; of a client that has never weighed the centres, all for the one that fits it, or equal parts."""
        if client in state.weights:
            return state.weights[client]
        centres = count(state.models)
        return torch.full((centres,), 1 / centres) if group is None else self._all_for(centres)[group]

    def _all_for(self, centres: int) -> Tensor:
        """The weights of clients that belong to one centre each, [S, S]."""
        return torch.eye(centres).clamp_min(self.least)

    def fitting(
        self, state: SoftClusters, fed: Federation, ids: Sequence[ClientId], among: Sequence[int]
    ) -> dict[ClientId, int]:
        """The centre that fits most of its samples best."""
        sent = Models(take(state.models, torch.tensor(among)))
        replies = fed.ask(self.weigh, ids, same=sent, purpose="evaluation")
        most = [] if replies.value is None else replies.value.share.argmax(1).tolist()
        return {client: among[place] for client, place in zip(replies.ids, most, strict=True)}

    def admit(self, state: SoftClusters, fed: Federation, new: Sequence[ClientId]) -> SoftClusters:
        """Newcomers weigh the centres once."""
        return self._weighed(state, fed, [client for client in new if client not in state.weights])

    def panels(self, state: SoftClusters, ids: Sequence[ClientId], truth: Sequence[int] | None) -> list[Panel]:
        """How much of each centre every client has."""
        known = [client for client in ids if client in state.weights][:200]
        if not known:
            return []
        rows = [[client, *(f"{u:.2f}" for u in state.weights[client].tolist())] for client in known]
        return [Table("Importance weights of the centres", ["client", *(f"c{s}" for s in range(self.k))], rows)]

"""MD-ICFL: the server clusters clients by how differently models read samples it makes itself (Zhang et al., 2024).

The paper's symbols: theta_j* the model of cluster j (`state.models`), s_i the cluster of client i (`state.cluster`),
theta_i its model after local training, p_i(y) its label shares (`state.labels`), D_j^k the pseudo samples of class k
and cluster j (`samplers`), d_ij^k the distance of theta_i and theta_j* on them (`distance`). What is ours is in
`seeding` and `newcomers`, and among the settings in `settings.Settings`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import ClassVar

import torch
from torch import Tensor

from coterie.core.aggregate import combined
from coterie.core.cohort import Cohort
from coterie.core.errors import CoterieError
from coterie.core.federation import Federation, Nothing, Replies, on_client
from coterie.core.panels import Panel
from coterie.core.rng import rng, torch_rng
from coterie.core.samples import ClientId
from coterie.core.states import Picked, spread
from coterie.methods.base import Log, Models, Trained
from coterie.methods.clustered import cluster_sizes, distinct_starts
from coterie.methods.md_icfl.distance import known_shares, label_shares, nearest, own_outputs, read_samples
from coterie.methods.md_icfl.messages import Brightness, ClassDistances, Distanced, Identity, Introduction, Seeds
from coterie.methods.md_icfl.newcomers import with_newcomers
from coterie.methods.md_icfl.panels import sample_panels
from coterie.methods.md_icfl.samplers import PseudoData, brightness, pseudo_data, sample_loss
from coterie.methods.md_icfl.seeding import seeding_round
from coterie.methods.md_icfl.settings import Settings


@dataclass(frozen=True)
class MDICFL(Settings):
    """Algorithms 1 and 2. The defaults find the clusters most reliably; `preset=paper` is the paper's own setting."""

    name: ClassVar[str] = "md-icfl"
    title: ClassVar[str] = "MD-ICFL"
    paper: ClassVar[str] = "Zhang et al. 2024, Communication-efficient clustered federated learning via model distance"
    summary: ClassVar[str] = "the server clusters clients by model distance; each downloads one model only"
    state_type: ClassVar[type[Distanced]] = Distanced

    def init(self, fed: Federation) -> Distanced:
        """Line 1: the cluster models; clients get their clusters when they first take part."""
        self._require_clients(fed, self.k)
        if fed.task.loss != "cross_entropy":
            raise CoterieError(
                "md-icfl compares class probabilities and needs the loss cross_entropy; choose that loss."
            )
        shared = self.start == "shared"
        models = spread(fed.task.init(fed.seed), self.k) if shared else distinct_starts(fed, self.k)
        return Distanced(models, {}, {}, {}, Seeds({}, {}) if self.seeding != "none" and self.k > 1 else None)

    def step(self, state: Distanced, fed: Federation) -> tuple[Distanced, Log]:
        """One round: of our seeding while there are no clusters yet, then lines 3 to 12 of Algorithm 1 or 2."""
        ids = fed.sample(self.fraction)  # line 4
        state = self.introduced(state, fed, ids)
        if state.seeds:
            return seeding_round(self, state, fed, ids)
        before = {client: self.present_cluster(state, fed, client) for client in ids}
        undecided = self._undecided(state, fed, ids)
        replies, made = self._train_and_sample(state, fed, before, bool(undecided))
        began = torch.tensor([before[client] for client in replies.ids], dtype=torch.int64)
        replies = self.usable(fed, replies, Picked(state.models, began))
        if replies.value is None:
            return state, {}
        log: Log = {}
        chosen = {client: before[client] for client in replies.ids}
        if made is not None:  # lines 8 to 10
            log["sample_loss"] = loss = sample_loss(fed.task, state.models, made.samples)
            kept = state.cluster if self.seeding != "none" and loss > self.trust else {}
            open_ = set(undecided).difference(kept)
            judged = [place for place, client in enumerate(replies.ids) if client in open_]
            readings = read_samples(fed.task, replies.value.model, state.models, made.samples)
            chosen |= self.nearest_clusters(state, fed, [replies.ids[i] for i in judged], readings.distances[judged])
            outputs = own_outputs(readings.outputs, [chosen[client] for client in replies.ids], self.k)
            state = replace(state, samples=made.samples, generators=made.generators, outputs=outputs)
        groups = torch.tensor([chosen[client] for client in replies.ids])
        sent = Picked(state.models, torch.tensor([before[client] for client in replies.ids]))
        weights = self.weights(replies.value)
        models = combined(self.aggregate, replies.value.model, weights, groups, state.models, sent)  # line 12
        moved = sum(state.cluster.get(client, new) != new for client, new in chosen.items())
        log |= {"moved": moved, "sizes": cluster_sizes(groups, self.k)}
        return replace(state, models=models, cluster={**state.cluster, **chosen}), log

    def introduced(self, state: Distanced, fed: Federation, ids: Sequence[ClientId]) -> Distanced:
        """Have first-time participants say what the server may know of them: p_i(y) (line 6), the prior's mean."""
        known = state.labels if self.privacy == "weak" else state.means
        new = [client for client in ids if client not in known]
        if self.k == 1 or not new or (self.privacy == "strong" and self.prior_mean is not None):
            return state
        if self.privacy == "strong":
            shown = fed.ask(self.show_brightness, new, same=Nothing())
            return state if not shown.value else replace(state, means=_with(state.means, shown.ids, shown.value.mean))
        told = fed.ask(self.introduce, new, same=Nothing())
        if told.value is None:
            return state
        means, labels = _with(state.means, told.ids, told.value.mean), _with(state.labels, told.ids, told.value.labels)
        return replace(state, means=means, labels=labels)

    def present_cluster(self, state: Distanced, fed: Federation, client: ClientId) -> int:
        """s_i at the start of the round; a random cluster the first time (line 1)."""
        if client in state.cluster:
            return state.cluster[client]
        return int(rng(fed.seed, "first cluster", client).integers(self.k))

    def _undecided(self, state: Distanced, fed: Federation, ids: Sequence[ClientId]) -> list[ClientId]:
        """The clients whose s_i is chosen again in this round: all of them in the paper.

        Ours: a shared initial model has no clusters to be near to, and seeded clusters are held for some rounds.
        """
        blank = not state.cluster and self.start == "shared"
        if self.k == 1 or blank:
            return []
        return [client for client in ids if client not in state.cluster or fed.round >= state.held]

    def _train_and_sample(
        self, state: Distanced, fed: Federation, rows: Mapping[ClientId, int], wanted: bool
    ) -> tuple[Replies[Trained], PseudoData | None]:
        """Lines 3 and 5-7. The samples need the cluster models only and are made while the clients train."""
        ids, places, message = list(rows), list(rows.values()), Models(state.models)
        if not wanted:
            return fed.ask(self.train, ids, each=message, rows=places), None
        made = cache(partial(self.pseudo_data, state, fed))
        return fed.ask(self.train, ids, each=message, rows=places, meanwhile=made), made()

    def pseudo_data(self, state: Distanced, fed: Federation) -> PseudoData:
        """Line 3: the pseudo data sets D_j^k of all clusters."""
        return pseudo_data(self, state, fed.task, torch_rng(fed.seed, "pseudo samples", fed.round))

    def nearest_clusters(
        self, state: Distanced, fed: Federation, ids: Sequence[ClientId], distances: Tensor
    ) -> dict[ClientId, int]:
        """s_i = argmin_j d_ij: by the server (Algorithm 1), or by the clients, who alone know p_i(y) (Algorithm 2)."""
        if not ids:
            return {}
        # a random first cluster deserves no loyalty
        loyal = state.cluster if self.seeding != "none" else {}
        present = torch.tensor([loyal.get(client, -1) for client in ids])
        if self.privacy == "weak":
            shares = known_shares(state.labels, ids, fed.task.classes)
            return dict(zip(ids, nearest(distances, shares, present, self.margin).tolist(), strict=True))
        replies = fed.ask(self.identify, ids, each=ClassDistances(distances, present))
        found = replies.value.cluster.tolist() if replies.value is not None else []
        return dict(zip(replies.ids, found, strict=True))

    @on_client("labels", "brightness")
    def introduce(self, c: Cohort, sent: Nothing) -> Introduction:
        """On the client, once, under weak privacy: brightness and label shares."""
        return Introduction(brightness(c.task, c.part("train")), _own_shares(c))

    @on_client("brightness")
    def show_brightness(self, c: Cohort, sent: Nothing) -> Brightness:
        """On the client, once, under strong privacy: the prior's mean and nothing of the labels."""
        return Brightness(brightness(c.task, c.part("train")))

    @on_client("labels")
    def identify(self, c: Cohort, sent: ClassDistances) -> Identity:
        """On the client: line 11 of Algorithm 2, the nearest cluster by its p_i(y)."""
        return Identity(nearest(sent.distances, _own_shares(c), sent.present, self.margin))

    def admit(self, state: Distanced, fed: Federation, new: Sequence[ClientId]) -> Distanced:
        """Ours: the paper has no newcomers."""
        return with_newcomers(self, state, fed, new)

    def panels(self, state: Distanced, ids: Sequence[ClientId], truth: Sequence[int] | None) -> list[Panel]:
        """The pseudo samples, and what the models of each cluster's own clients make of them."""
        return [] if state.samples is None or state.outputs is None else sample_panels(state.samples, state.outputs)


def _with(known: dict[str, Tensor], ids: Sequence[ClientId], values: Tensor) -> dict[str, Tensor]:
    return {**known, **{client: values[i].clone() for i, client in enumerate(ids)}}


def _own_shares(c: Cohort) -> Tensor:
    return label_shares([client.train.y for client in c.data], c.task.classes)

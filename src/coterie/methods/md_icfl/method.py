"""MD-ICFL: the server clusters clients by how differently models read samples it makes itself (Zhang et al., 2024).

The paper's symbols: theta_j* the model of cluster j (`state.models`), s_i the cluster of client i (`state.cluster`),
theta_i its model after local training, p_i(y) its label shares (`state.labels`), D_j^k the pseudo samples of class k
and cluster j (`samplers`), d_ij^k the distance of theta_i and theta_j* on them (`distance`). What is ours is in
`seeding`, `looks`, `second_look`, `newcomers` and `privacy`, and among the settings in `settings.MDICFLSettings`.
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
from coterie.core.states import Picked, Stack, spread, take
from coterie.methods.base import Log, Models, Trained
from coterie.methods.clustered import Choice, cluster_sizes, distinct_starts
from coterie.methods.md_icfl.distance import Readings, known_shares, nearest, own_outputs, read_samples
from coterie.methods.md_icfl.introductions import introduced
from coterie.methods.md_icfl.messages import Brightness, ClassDistances, Distanced, Introduction, Seeds
from coterie.methods.md_icfl.newcomers import with_newcomers
from coterie.methods.md_icfl.panels import sample_panels
from coterie.methods.md_icfl.privacy import noisy_shares, own_shares
from coterie.methods.md_icfl.samplers import PseudoData, brightness, pseudo_data, sample_loss
from coterie.methods.md_icfl.second_look import open_clients, second_look, with_neutral
from coterie.methods.md_icfl.seeding import seeding_round
from coterie.methods.md_icfl.settings import MDICFLSettings


@dataclass(frozen=True)
class MDICFL(MDICFLSettings):
    """Algorithms 1 and 2. The defaults find the clusters most reliably; `preset=paper` is the paper's own setting."""

    name: ClassVar[str] = "md-icfl"
    title: ClassVar[str] = "MD-ICFL"
    paper: ClassVar[str] = "Zhang et al. 2024, Communication-efficient clustered federated learning via model distance"
    summary: ClassVar[str] = "the server clusters clients by model distance; each downloads one model only"
    use_when: ClassVar[str] = "K is known or auto; few clients a round, drift, mild skew; FedAvg's bytes"
    avoid_when: ClassVar[str] = "labels are strongly skewed (alpha = 0.5: 37 points behind)"
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
        return Distanced(models, {}, {}, {}, Seeds({}, {}) if self.seeded else None)

    def step(self, state: Distanced, fed: Federation) -> tuple[Distanced, Log]:
        """One round: of our seeding while there are no clusters yet, then lines 3 to 12 of Algorithm 1 or 2."""
        ids = fed.sample(self.fraction)  # line 4
        again = open_clients(self, state, fed, ids)
        state = introduced(self, state, fed, ids, again)
        if state.seeds:
            return seeding_round(self, state, fed, ids)
        if self.seeded and state.cluster:  # a client without a cluster waits for a look
            ids = tuple(client for client in ids if client in state.cluster or client in again)
        before = {client: self.present_cluster(state, fed, client) for client in ids}
        starts = with_neutral(state, fed) if again else state.models
        rows = {client: self.k if client in again else place for client, place in before.items()}
        replies, made = self._train_and_sample(state, fed, starts, rows)
        replies = self.usable(fed, replies, Picked(starts, _places(replies.ids, rows)))
        if replies.value is None:
            return state, {}
        log: Log = {}
        found: dict[ClientId, int] = {}
        if made is not None:  # lines 8 to 10
            log["sample_loss"] = loss = sample_loss(fed.task, state.models, made.samples)
            readings = read_samples(fed.task, replies.value.model, state.models, made.samples)
            found, state = self._chosen(state, fed, replies.ids, readings, again, loss <= self.trust)
            outputs = own_outputs(readings.outputs, [found.get(c, before[c]) for c in replies.ids], self.k)
            state = replace(state, samples=made.samples, generators=made.generators, outputs=outputs)
        chosen = {client: found.get(client, before[client]) for client in replies.ids}
        models = self._averaged(state, replies, before, chosen, again)  # line 12
        moved = sum(state.cluster.get(client, new) != new for client, new in chosen.items())
        groups = _places(replies.ids, chosen)
        log |= {"moved": moved, "doubted": len(state.doubts.doubted), "sizes": cluster_sizes(groups, self.k)}
        settled = {c: place for c, place in chosen.items() if c in state.cluster or c in found or c not in again}
        return replace(state, models=models, cluster={**state.cluster, **settled}), log

    def _chosen(
        self,
        state: Distanced,
        fed: Federation,
        ids: Sequence[ClientId],
        readings: Readings,
        again: Sequence[ClientId],
        trusted: bool,
    ) -> tuple[dict[ClientId, int], Distanced]:
        """Lines 9 and 10: s_i of everybody in the paper; of those who are looked at again where clusters are seeded."""
        if not self.seeded:
            return self.nearest_clusters(state, fed, ids, readings.distances), state
        open_ = [client for client in ids if client in again and (trusted or client not in state.cluster)]
        found = self.nearest_clusters(state, fed, open_, readings.distances[_index(ids, open_)])
        return second_look(self, state, fed, found, ids, readings, trusted)

    def _averaged(
        self,
        state: Distanced,
        replies: Replies[Trained],
        before: Mapping[ClientId, int],
        chosen: Mapping[ClientId, int],
        again: Sequence[ClientId],
    ) -> Stack:
        """Line 12. Ours: models of clients that are looked at again, or are about to be, count for no cluster."""
        counted = _index(replies.ids, [c for c in replies.ids if c not in again and c not in state.doubts.doubted])
        if replies.value is None or not len(counted):
            return state.models
        everyone = len(counted) == len(replies.ids)
        trained = replies.value.model if everyone else take(replies.value.model, counted)
        weights = self.weights(replies.value)[counted]
        sent = Picked(state.models, _places(replies.ids, before)[counted])
        groups = _places(replies.ids, chosen)[counted]
        return combined(self.aggregate, trained, weights, groups, state.models, sent)

    def present_cluster(self, state: Distanced, fed: Federation, client: ClientId) -> int:
        """s_i at the start of the round; a random cluster the first time (line 1)."""
        if client in state.cluster:
            return state.cluster[client]
        return int(rng(fed.seed, "first cluster", client).integers(self.k))

    def _train_and_sample(
        self, state: Distanced, fed: Federation, starts: Stack, rows: Mapping[ClientId, int]
    ) -> tuple[Replies[Trained], PseudoData | None]:
        """Lines 3 and 5-7. The samples need the cluster models only and are made while the clients train.

        Ours: a shared initial model has no clusters to be near to, and seeded clusters are held for some rounds.
        """
        ids, places, message = list(rows), list(rows.values()), Models(starts)
        blank = not state.cluster and self.start == "shared"
        if self.k == 1 or blank or fed.round < state.held:
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
        if self.privacy == "weak":
            shares = known_shares(state.labels, ids, fed.task.classes)
            return dict(zip(ids, nearest(distances, shares).tolist(), strict=True))
        replies = fed.ask(self.identify, ids, each=ClassDistances(distances))
        found = replies.value.cluster.tolist() if replies.value is not None else []
        return dict(zip(replies.ids, found, strict=True))

    @on_client("labels", "brightness")
    def introduce(self, c: Cohort, sent: Nothing) -> Introduction:
        """On the client, once, under weak privacy: brightness and label shares."""
        return Introduction(brightness(c.task, c.part("train")), own_shares(c))

    @on_client("brightness")
    def show_brightness(self, c: Cohort, sent: Nothing) -> Brightness:
        """On the client, once, under strong privacy: the prior's mean and nothing of the labels."""
        return Brightness(brightness(c.task, c.part("train")))

    @on_client("labels")
    def identify(self, c: Cohort, sent: ClassDistances) -> Choice:
        """On the client: line 11 of Algorithm 2, the nearest cluster by its p_i(y), to which we add noise."""
        return Choice(nearest(sent.distances, noisy_shares(c, self.label_noise)))

    def admit(self, state: Distanced, fed: Federation, new: Sequence[ClientId]) -> Distanced:
        """Ours: the paper has no newcomers."""
        return with_newcomers(self, state, fed, new)

    def panels(self, state: Distanced, ids: Sequence[ClientId], truth: Sequence[int] | None) -> list[Panel]:
        """The pseudo samples, and what the models of each cluster's own clients make of them."""
        return [] if state.samples is None or state.outputs is None else sample_panels(state.samples, state.outputs)


def _index(ids: Sequence[ClientId], some: Sequence[ClientId]) -> Tensor:
    return torch.tensor([ids.index(client) for client in some], dtype=torch.int64)


def _places(ids: Sequence[ClientId], places: Mapping[ClientId, int]) -> Tensor:
    return torch.tensor([places[client] for client in ids], dtype=torch.int64)

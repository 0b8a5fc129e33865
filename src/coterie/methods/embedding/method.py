"""Embedding clustering: clients are clustered once, before training, by compressed data (Prigent et al., 2024).

The paper's algorithms: LocalCompression (Algorithm 1) is `embed`, with `bits`; DistanceOpt (Algorithm 2) is the rule
"bayes" of `clustering.rules`; Server (Algorithm 3) is `init` and `step`. Its symbols: V_i the embedding of client i
(`state.bits`), P the flip probability (`flip`), m the clients of a round (`fraction`). What is ours is in `drift`,
`copies`, `clustering.split_half`, `.mixture` and `.sampler`, and among the settings in `settings.EmbeddingSettings`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch

from coterie.core.aggregate import combined
from coterie.core.cohort import Cohort
from coterie.core.federation import Federation, on_client
from coterie.core.panels import Panel
from coterie.core.samples import ClientId
from coterie.core.states import Picked, Stack, concat, row, spread
from coterie.core.task import Task
from coterie.core.training import local_sgd
from coterie.methods.base import Log, Models, Trained
from coterie.methods.class_means import class_means
from coterie.methods.embedding.asking import EmbeddingQuestion, Told, bits_told, embeddings_told
from coterie.methods.embedding.autoencoder import Encoder, fresh_encoder
from coterie.methods.embedding.bits import binarise, flip, held_classes, in_blocks, pack_bits
from coterie.methods.embedding.clustering.centroids import Centroids
from coterie.methods.embedding.clustering.rules import check_rule, choose
from coterie.methods.embedding.copies import filled
from coterie.methods.embedding.drift import with_embeddings
from coterie.methods.embedding.messages import Compressed, Compression, Embedded, EmbeddedClusters
from coterie.methods.embedding.panels import embedding_panels
from coterie.methods.embedding.pretraining import pretrained
from coterie.methods.embedding.settings import EmbeddingSettings


@dataclass(frozen=True)
class Embedding(EmbeddingSettings):
    """Clients send quantised embeddings; the server cuts a Ward tree; FedAvg inside the clusters (Algorithms 1-3)."""

    name: ClassVar[str] = "embedding"
    title: ClassVar[str] = "Embedding clustering"
    paper: ClassVar[str] = "Prigent et al. 2024, FL clustering with local data compression"
    summary: ClassVar[str] = "one-shot clusters from compressed, quantised data, found by a Ward tree"
    use_when: ClassVar[str] = "clusters are wanted before training, from a few randomised bits a client"
    avoid_when: ClassVar[str] = "groups drift, swap labels or are many, or labels are strongly skewed"
    state_type: ClassVar[type[EmbeddedClusters]] = EmbeddedClusters

    # --- before the first round ---------------------------------------------------------------------------------------

    def init(self, fed: Federation) -> EmbeddedClusters:
        """Pre-train the autoencoder, ask for embeddings, cluster; every cluster starts from the same model."""
        check_rule(self.rule)  # by the server alone: clients need no package for it
        autoencoder = pretrained(self, fed)
        start = spread(fed.task.init(fed.seed), 1)
        return self._clustered(EmbeddedClusters(autoencoder, start, {}, {}), fed)

    def fresh(self, task: Task, seed: int) -> Encoder:
        """The autoencoder before any training, for a task's inputs."""
        scale = self.encoder_scale or task.normalise.scale
        return fresh_encoder(tuple(task.shape), scale, architecture=self.autoencoder, seed=seed, like=task)

    @on_client("models")
    def compress(self, c: Cohort, sent: Compression) -> Compressed:
        """On the client: local training of the autoencoder."""
        own = replace(c, task=sent.autoencoder.task(c.task))
        start = spread(sent.autoencoder.state, 1)
        trained = [
            local_sgd(
                replace(own, ids=c.ids[i : i + 1], data=(data,), memory=()),
                start,
                self.encoder_opt(len(data.train)),
                purpose=f"compress {sent.turn}",
            )
            for i, data in enumerate(c.data)
        ]
        return Compressed(Models(concat(trained)), c.size)

    @on_client("embeddings")
    def embed(self, c: Cohort, sent: Encoder) -> Embedded:
        """On the client (Algorithm 1): mean code of each class (or block), as bits, some of them flipped."""
        return self._sent(c, sent, with_classes=False)

    @on_client("embeddings", "labels")
    def embed_known(self, c: Cohort, sent: Encoder) -> Embedded:
        """On the client (ours): the same with copies in the place of missing classes, and a bit a class: is it held."""
        return self._sent(c, sent, with_classes=True)

    def _sent(self, c: Cohort, sent: Encoder, *, with_classes: bool) -> Embedded:
        rows, blocks = [], self.blocks_of(c.task)
        for index, (client, data) in enumerate(zip(c.ids, c.data, strict=True)):
            # not keyed by the round, nor on a device by the run: asked again, the same data get the same answer
            noise, coins = (c.private_rng(index, purpose) for purpose in ("missing classes", "flips"))
            codes, labels = in_blocks(sent.codes(data.train, c.task), data.train.y, c.task.kind, blocks)
            bits, chance = binarise(class_means(codes, labels, blocks, noise)), max(self.flip_of(client), c.least_flip)
            if with_classes:
                held = held_classes(data.train.y, blocks)
                more = flip(held, chance, c.private_rng(index, "flips of classes held"))
                told = [flip(filled(bits, held, self.copies), chance, coins), more]
            else:
                told = [flip(bits, chance, coins)]
            rows.append(pack_bits(np.concatenate(told)))
        return Embedded(torch.stack(rows))

    def _embeddings(self, state: EmbeddedClusters, fed: Federation, ids: Sequence[ClientId]) -> Told:
        """The embeddings of those who answered."""
        half, blocks = state.autoencoder.half, self.blocks_of(fed.task)
        if not self.tells_classes(fed.task):
            return Told(*bits_told(fed, ids, self.embed, half, half.code * blocks))
        question = EmbeddingQuestion(self.embed_known, self.embed, self.flip_of, blocks, self.copies)
        return embeddings_told(fed, ids, question, half, None if state.usual is None else state.usual.numpy())

    def _clustered(self, state: EmbeddedClusters, fed: Federation) -> EmbeddedClusters:
        """Algorithm 3, lines 4 to 13."""
        told = self._embeddings(state, fed, fed.ids)
        if not told.ids:
            return state
        blocks = self.blocks_of(fed.task)
        known = {"held": told.held, "ones": told.ones}
        choice = choose(told.bits, blocks, self.rule, min_size=self.min_size, seed=fed.seed, **known)
        return replace(
            state,
            models=spread(row(state.models, 0), choice.clusters),
            cluster=dict(zip(told.ids, choice.labels.tolist(), strict=True)),
            bits=dict(zip(told.ids, map(pack_bits, told.bits), strict=True)),
            centroids=Centroids.of(told.bits, choice.labels),
            heights=torch.from_numpy(choice.tree.heights),
            usual=None if told.usual is None else torch.from_numpy(told.usual),
        )

    # --- rounds -------------------------------------------------------------------------------------------------------

    def step(self, state: EmbeddedClusters, fed: Federation) -> tuple[EmbeddedClusters, Log]:
        """Sample clients among all, train each on its cluster's model, average inside the clusters."""
        log: Log = {}
        if not state.cluster:
            state = self._clustered(state, fed)
        else:
            state = self.admit(state, fed, [client for client in fed.ids if client not in state.cluster])
        if self.reembed and fed.round and fed.round % self.reembed == 0 and state.cluster:
            state, log = self._follow_drift(state, fed)
        replies = self.train_clusters(state, fed)
        after = self.averaged(state, replies)
        if self.shared and replies.value is not None:
            names = fed.task.parameters[: self.shared]
            return replace(after, models=self._with_shared(state, after.models, replies.ids, replies.value, names)), log
        return after, log

    def _with_shared(
        self, state: EmbeddedClusters, models: Stack, ids: Sequence[ClientId], trained: Trained, names: Sequence[str]
    ) -> Stack:
        """The authors' code: the first tensors are averaged over all clusters."""
        groups = torch.tensor(state.of(ids))
        first = {name: tensor[:1] for name, tensor in state.models.items()}
        sent = Picked(state.models, groups)
        base = combined(self.aggregate, trained.model, trained.size, torch.zeros_like(groups), first, sent)
        return {**models, **{name: base[name].expand_as(models[name]).clone() for name in names}}

    def admit(self, state: EmbeddedClusters, fed: Federation, new: Sequence[ClientId]) -> EmbeddedClusters:
        """Newcomers (and clients whose first embedding was lost) go to the nearest centre, which follows them.

        Several that are unlike all others found a cluster (ours; with newcomers = "nearest" they do not).
        """
        new = [client for client in new if client not in state.cluster]
        if not new or state.centroids is None:
            return state
        told, found = self._embeddings(state, fed, new), self.newcomers == "found"
        if not told.ids:
            return state
        return with_embeddings(state, told.ids, told.bits, self.blocks_of(fed.task), found=found)[0]

    def _follow_drift(self, state: EmbeddedClusters, fed: Federation) -> tuple[EmbeddedClusters, Log]:
        """Clients embed again; those that have left their cluster go to the nearest, or found one (see `follow`)."""
        told = self._embeddings(state, fed, [client for client in fed.ids if client in state.cluster])
        return with_embeddings(state, told.ids, told.bits, self.blocks_of(fed.task)) if told.ids else (state, {})

    # --- what others ask ----------------------------------------------------------------------------------------------

    def panels(self, state: EmbeddedClusters, ids: Sequence[ClientId], truth: Sequence[int] | None) -> list[Panel]:
        """The tree, who is like whom, what the server could draw, and what the flips give."""
        return embedding_panels(self, state, ids, truth)

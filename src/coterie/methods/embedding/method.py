"""Embedding clustering: clients are clustered once, before training, by compressed data (Prigent et al., 2024)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from coterie.core.cohort import Cohort, Optimiser, local_sgd
from coterie.core.errors import CoterieError
from coterie.core.federation import Federation, draw_clients, on_client
from coterie.core.panels import Panel
from coterie.core.rng import rng
from coterie.core.samples import ClientId
from coterie.core.states import (
    concat,
    group_means,
    mean,
    row,
    spread,
)
from coterie.core.task import Task
from coterie.methods.base import Log, Models
from coterie.methods.clustered import ModelPerCluster
from coterie.methods.embedding.bits import (
    Bits,
    binarise,
    class_means,
    flip,
    pack_bits,
    packing_flaws,
    unpack_bits,
)
from coterie.methods.embedding.centroids import Centroids
from coterie.methods.embedding.drift import follow, nearest
from coterie.methods.embedding.messages import (
    Compressed,
    Compression,
    Embedded,
    Groups,
)
from coterie.methods.embedding.panels import embedding_panels
from coterie.methods.embedding.pretraining import (
    Encoder,
    fresh_encoder,
    load_encoder,
    read_public,
    train_on_public,
)
from coterie.methods.embedding.privacy import check_flip
from coterie.methods.embedding.rules import check_rule, choose

SECRET_VARIABLE = "COTERIE_SECRET"
"""What a device mixes into the key of its flips, so that nobody who knows the seed can undo them."""


@dataclass(frozen=True)
class Embedding(ModelPerCluster[Groups]):
    """Clients send quantised embeddings; the server cuts a Ward tree; FedAvg inside the clusters (Algorithms 1-3)."""

    autoencoder: str = field(
        default="", metadata={"help": "autoencoder of `coterie list models`; empty: by input shape"}
    )
    pretraining: Literal["federated", "public", "hybrid"] = field(
        default="federated",
        metadata={"help": "train the autoencoder over the clients' data, on a public set, or on both in turn"},
    )
    encoder: str = field(default="", metadata={"help": "file of a trained autoencoder to start from"})
    public: str = field(default="", metadata={"help": "public set: a dataset's name, or a folder of images by class"})
    public_root: str = field(default="", metadata={"help": "data root of the public set (default: as for scenarios)"})
    public_epochs: int = field(default=20, metadata={"help": "epochs on the public set"})
    encoder_rounds: int = field(default=10, metadata={"help": "rounds of federated pre-training"})
    encoder_fraction: float = field(default=0.5, metadata={"help": "clients per pre-training round, as for fraction"})
    encoder_epochs: int = field(default=3, metadata={"help": "local epochs of a pre-training round"})
    encoder_steps: int = field(default=60, metadata={"help": "more epochs on small clients, up to so many steps"})
    encoder_batch: int = field(default=32, metadata={"help": "batch size of pre-training"})
    encoder_lr: float = field(default=3e-3, metadata={"help": "learning rate of pre-training (Adam)"})
    encoder_scale: float = field(default=0.0, metadata={"help": "brings raw inputs to [0, 1]; 0: as the scenario's"})
    flip: float = field(default=0.1, metadata={"help": "probability P that a bit is flipped, 0 to 0.5"})
    flips: tuple[tuple[str, float], ...] = field(
        default=(), metadata={"help": "clients with a P of their own, client:P, such as 07:0.2,12:0"}
    )
    rule: Literal["halves", "paper", "height_ratio", "calinski_harabasz", "silhouette", "bayes"] = field(
        default="halves", metadata={"help": "how the number of clusters is chosen; see docs/results/embedding.md"}
    )
    min_size: int = field(default=0, metadata={"help": "least cluster size of paper, bayes, silhouette; 0: a tenth"})
    shared: int = field(default=0, metadata={"help": "first parameter tensors that all clusters share (authors: 4)"})
    newcomers: Literal["found", "nearest"] = field(
        default="found",
        metadata={"help": "several newcomers that are like nobody found a cluster, or all go to the nearest (paper)"},
    )
    reembed: int = field(default=0, metadata={"help": "clients embed anew every so many rounds (drift); 0: never"})

    name: ClassVar[str] = "embedding"
    paper: ClassVar[str] = "Prigent et al. 2024, FL clustering with local data compression"
    summary: ClassVar[str] = "one-shot clusters from compressed, quantised data, found by a Ward tree"
    state_type: ClassVar[type[Groups]] = Groups
    # Table I and section V; the optimiser, the batch and the pre-training, on which the paper is silent, by the code
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {
            "rule": "paper", "flip": 0.1, "shared": 0, "newcomers": "nearest", "fraction": 0.5,
            "pretraining": "federated", "encoder_rounds": 10, "encoder_fraction": 0.5, "encoder_epochs": 3,
            "encoder_steps": 1, "encoder_batch": 32, "encoder_lr": 1e-3,
            "epochs": 5, "batch": 32, "lr": 1e-3, "momentum": 0.0, "weight_decay": 0.0, "lr_decay": 1.0,
            "optimiser": "adam",
        },
    }  # fmt: skip
    scenario_presets: ClassVar[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {
        "paper": {
            "rotated-mnist": {"min_size": 10},
            "cycled-cifar10": {"min_size": 10, "epochs": 1, "encoder_epochs": 1},
            "femnist": {
                "min_size": 100, "epochs": 3, "fraction": 75, "encoder_rounds": 20, "encoder_fraction": 75,
            },
            "pacs": {"min_size": 5, "epochs": 1, "encoder_rounds": 30},
        },
    }  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("public_epochs", "encoder_rounds", "encoder_epochs", "min_size", "shared", "reembed"):
            self._require(getattr(self, key) >= 0, key, "be at least 0")
        for key in ("encoder_steps", "encoder_batch"):
            self._require(getattr(self, key) >= 1, key, "be at least 1")
        for key in ("encoder_fraction", "encoder_lr"):
            self._require(getattr(self, key) > 0, key, "be above 0")
        self._require(self.encoder_scale >= 0, "encoder_scale", "be at least 0")
        check_flip(self.flip, "embedding: flip")
        for client, probability in self.flips:
            check_flip(probability, f"embedding: the flip probability of client {client}")
        if self.pretraining != "federated" and not (self.public or self.encoder):
            raise CoterieError(
                f"embedding: pretraining={self.pretraining} needs a public set; give public=fashion-mnist."
            )

    # --- before the first round ---------------------------------------------------------------------------------------

    def init(self, fed: Federation) -> Groups:
        """Pre-train the autoencoder, ask for embeddings, cluster; every cluster starts from the same model."""
        if fed.task.loss == "mse":
            raise CoterieError("embedding sends a code for each class, and regression has none; take another method.")
        check_rule(self.rule)  # by the server alone: clients need no package for it
        autoencoder = self._pretrained(fed)
        start = spread(fed.task.init(fed.seed), 1)
        return self._clustered(Groups(autoencoder, start, {}, {}), fed)

    def _pretrained(self, fed: Federation) -> Encoder:
        shape, task = tuple(fed.task.shape), fed.task
        if self.encoder:
            autoencoder = load_encoder(self.encoder, shape)
            return self._federated(autoencoder, fed) if self.pretraining == "hybrid" else autoencoder
        autoencoder = self.fresh(task, fed.seed)
        if self.pretraining != "federated":
            autoencoder = train_on_public(
                autoencoder,
                read_public(self.public, shape, self.public_root or None),
                epochs=self.public_epochs,
                lr=self.encoder_lr,
                batch=self.encoder_batch,
                seed=fed.seed,
            )
        return self._federated(autoencoder, fed) if self.pretraining != "public" else autoencoder

    def fresh(self, task: Task, seed: int) -> Encoder:
        """The autoencoder before any training, for a task's inputs."""
        scale = self.encoder_scale or task.normalise.scale
        return fresh_encoder(tuple(task.shape), scale, architecture=self.autoencoder, seed=seed, like=task)

    def _federated(self, autoencoder: Encoder, fed: Federation) -> Encoder:
        """FedAvg of the autoencoder over the clients' own data."""
        for turn in range(self.encoder_rounds):
            drawn = draw_clients(fed.ids, self.encoder_fraction, fed.rng("compressing clients", turn))
            replies = fed.ask(self.compress, drawn, same=Compression(autoencoder, turn))
            if replies.value is not None:
                trained = mean(replies.value.autoencoder.models, replies.value.size)
                autoencoder = replace(autoencoder, state=trained)
        return autoencoder

    @on_client
    def compress(self, c: Cohort, sent: Compression) -> Compressed:
        """On the client: local training of the autoencoder."""
        own = replace(c, task=sent.autoencoder.task(c.task))
        start = spread(sent.autoencoder.state, 1)
        trained = [
            local_sgd(
                replace(own, ids=c.ids[i : i + 1], data=(data,), memory=()),
                start,
                self._compression(len(data.train)),
                purpose=f"compress {sent.turn}",
            )
            for i, data in enumerate(c.data)
        ]
        return Compressed(Models(concat(trained)), c.size)

    def _compression(self, samples: int) -> Optimiser:
        """Local training of the autoencoder on so many samples."""
        steps = -(-max(samples, 1) // self.encoder_batch)
        epochs = max(self.encoder_epochs, -(-self.encoder_steps // steps))
        return Optimiser(epochs, self.encoder_batch, self.encoder_lr, kind="adam")

    @on_client
    def embed(self, c: Cohort, sent: Encoder) -> Embedded:
        """On the client (Algorithm 1): mean code of each class, quantised to bits, some of them flipped."""
        secret, classes = os.environ.get(SECRET_VARIABLE, ""), c.task.classes
        chosen = dict(self.flips)
        rows = []
        for client, data in zip(c.ids, c.data, strict=True):
            # not keyed by the round: asked again, a client whose data are the same answers the same
            noise, coins = (rng(c.seed, purpose, client, secret) for purpose in ("missing classes", "flips"))
            means = class_means(sent.codes(data.train, c.task), data.train.y, classes, noise)
            rows.append(pack_bits(flip(binarise(means), chosen.get(client, self.flip), coins)))
        return Embedded(torch.stack(rows))

    def length(self, autoencoder: Encoder, classes: int) -> int:
        """Bits of an embedding."""
        return autoencoder.code * classes

    def _ask_for_bits(self, state: Groups, fed: Federation, ids: Sequence[ClientId]) -> tuple[list[ClientId], Bits]:
        """The embeddings of those who answered (in the order of their names), the bad ones left out."""
        length = self.length(state.autoencoder, fed.task.classes)
        replies = fed.ask(self.embed, sorted(ids), same=state.autoencoder.half)
        if replies.value is None:
            return [], np.zeros((0, length), np.uint8)
        flaws = packing_flaws(replies.value.bits, length)
        for i, reason in flaws.items():
            fed.refuse(replies.ids[i], reason)
        good = [i for i in range(len(replies.ids)) if i not in flaws]
        if not good:
            return [], np.zeros((0, length), np.uint8)
        return [replies.ids[i] for i in good], unpack_bits(replies.value.bits[good], length)

    def _clustered(self, state: Groups, fed: Federation) -> Groups:
        """Algorithm 3, lines 4 to 13."""
        ids, bits = self._ask_for_bits(state, fed, fed.ids)
        if not ids:
            return state
        choice = choose(bits, fed.task.classes, self.rule, min_size=self.min_size, seed=fed.seed)
        return replace(
            state,
            models=spread(row(state.models, 0), choice.clusters),
            cluster=dict(zip(ids, choice.labels.tolist(), strict=True)),
            bits=dict(zip(ids, map(pack_bits, bits), strict=True)),
            centroids=Centroids.of(bits, choice.labels),
            heights=torch.from_numpy(choice.tree.heights),
        )

    # --- rounds -------------------------------------------------------------------------------------------------------

    def step(self, state: Groups, fed: Federation) -> tuple[Groups, Log]:
        """Sample clients among all, train each on its cluster's model, average inside the clusters."""
        log: Log = {}
        if not state.cluster:
            state = self._clustered(state, fed)
        else:
            state = self.admit(state, fed, [client for client in fed.ids if client not in state.cluster])
        if self.reembed and fed.round and fed.round % self.reembed == 0 and state.cluster:
            state, log = self._follow_drift(state, fed)
        ids = [client for client in fed.sample(self.fraction) if client in state.cluster]
        replies = fed.ask(self.train, ids, each=Models(state.models), rows=state.of(ids))
        if replies.value is None:
            return state, log
        trained, size = replies.value.model, replies.value.size
        models = group_means(trained, size, torch.tensor(state.of(replies.ids)), state.models)
        base = mean(trained, size) if self.shared else {}
        for name in fed.task.parameters[: self.shared]:
            models[name] = base[name].expand_as(models[name]).clone()
        return replace(state, models=models), log

    def admit(self, state: Groups, fed: Federation, new: Sequence[ClientId]) -> Groups:
        """Newcomers (and clients whose first embedding was lost) go to the nearest centre, which follows them.

        Several that are like nobody found a cluster (ours; with newcomers = "nearest" they do not).
        """
        new = [client for client in new if client not in state.cluster]
        if not new or state.centroids is None:
            return state
        ids, bits = self._ask_for_bits(state, fed, new)
        return self._followed(state, fed, ids, bits)[0] if ids else state

    def _follow_drift(self, state: Groups, fed: Federation) -> tuple[Groups, Log]:
        """Clients embed anew; those that have left their cluster go to the nearest, or found one (see `follow`)."""
        ids, bits = self._ask_for_bits(state, fed, [client for client in fed.ids if client in state.cluster])
        return self._followed(state, fed, ids, bits) if ids else (state, {})

    def _followed(self, state: Groups, fed: Federation, ids: Sequence[ClientId], bits: Bits) -> tuple[Groups, Log]:
        """The state after these clients, newcomers or not, have sent these bits; the others are as they were."""
        assert state.centroids is not None
        known = sorted(state.cluster)
        sent = dict(zip(ids, bits, strict=True))
        had = unpack_bits(torch.stack([state.bits[client] for client in known]), bits.shape[1])
        newcomers = [client for client in ids if client not in state.cluster]
        after = np.stack([sent.get(client, own) for client, own in zip(known, had, strict=True)])
        fresh = np.stack([sent[client] for client in newcomers]) if newcomers else after[:0]
        before, after = np.concatenate([had, fresh]), np.concatenate([after, fresh])
        labels = np.array(state.of([*known, *newcomers]), np.int64)
        if newcomers and self.newcomers == "nearest":
            now = nearest(state.centroids, labels, after)
        else:
            now = follow(state.centroids, labels, before, after, fed.task.classes)
        models = state.models
        for parent in now.parents:
            models = concat([models, spread(row(models, parent), 1)])
        state = replace(
            state,
            models=models,
            centroids=now.centroids,
            cluster=dict(zip([*known, *newcomers], now.labels.tolist(), strict=True)),
            bits={**state.bits, **{client: pack_bits(own) for client, own in sent.items()}},
        )
        moved = int((now.labels != labels)[: len(known)].sum())
        return state, {"moved": moved, "founded": len(now.parents)}

    # --- what others ask ----------------------------------------------------------------------------------------------

    def panels(self, state: Groups, ids: Sequence[ClientId], truth: Sequence[int] | None) -> list[Panel]:
        """The tree, who is like whom, what the server could draw, and what the flips give."""
        known = [i for i, client in enumerate(ids) if client in state.bits]
        if not known:
            return []
        some = [ids[i] for i in known]
        classes = _classes(state)
        bits = unpack_bits(
            torch.stack([state.bits[client] for client in some]), self.length(state.autoencoder, classes)
        )
        groups = None if truth is None else [truth[i] for i in known]
        flips = [dict(self.flips).get(client, self.flip) for client in some]
        reports = 2 if self.reembed else 1
        return embedding_panels(state.autoencoder, bits, state.of(some), groups, state.heights, flips, reports)


def _classes(state: Groups) -> int:
    """How many classes embeddings have blocks for."""
    assert state.centroids is not None
    return int(state.centroids.means.shape[1]) // state.autoencoder.code

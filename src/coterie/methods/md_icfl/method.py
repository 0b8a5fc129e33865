"""MD-ICFL: the server clusters clients by how differently models read samples it makes itself (Zhang et al., 2024)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from coterie.core.aggregate import combined
from coterie.core.cohort import Cohort
from coterie.core.errors import CoterieError
from coterie.core.federation import (
    Federation,
    Nothing,
    Replies,
    on_client,
)
from coterie.core.panels import Heatmap, Panel, image_grid
from coterie.core.rng import rng, torch_rng
from coterie.core.samples import ClientId
from coterie.core.states import (
    Stack,
    mean,
    row,
    spread,
    stack,
    take,
)
from coterie.core.task import Task
from coterie.methods.base import Log, Models, Trained
from coterie.methods.clustered import ModelPerCluster, cluster_sizes, distinct_starts
from coterie.methods.md_icfl.distance import (
    label_shares,
    nearest,
    own_outputs,
    read_samples,
)
from coterie.methods.md_icfl.messages import (
    Brightness,
    ClassDistances,
    Distanced,
    Identity,
    Introduction,
    Seeds,
)
from coterie.methods.md_icfl.samplers import (
    Objective,
    back_search,
    brightness,
    draw,
    fresh_generators,
    prior_means,
    sample_loss,
    train_generators,
)
from coterie.methods.md_icfl.seeding import (
    cosine_groups,
    directions,
    seeding_layer,
    steady,
)

_MEMORY = 0.5  # what a client's earlier directions still count in the seeding
_CIFAR10 = ("swapped-rotated-cifar10", "rotated-cifar10", "swapped-cifar10", "cycled-cifar10")


@dataclass(frozen=True)
class MDICFL(ModelPerCluster[Distanced]):
    """Algorithms 1 and 2. The defaults find the clusters most reliably; `preset=paper` is the paper's own setting."""

    k: int = field(default=4, metadata={"help": "number of clusters (K)"})
    sampling: Literal["back-search", "generator"] = field(
        default="back-search", metadata={"help": "samples by back-search (MD-ICFL-1) or by a generator (MD-ICFL-2)"}
    )
    privacy: Literal["weak", "strong"] = field(
        default="weak", metadata={"help": "weak: clients tell their label shares once; strong: never"}
    )
    start: Literal["shared", "independent"] = field(
        default="shared", metadata={"help": "one initial model for all clusters, or one each"}
    )
    seeding: Literal["none", "cosine", "cosine-labels"] = field(
        default="cosine",
        metadata={
            "help": "first clusters: random (the paper), by the cosine of updates, or that less what labels explain"
        },
    )
    agree: int = field(default=3, metadata={"help": "successive rounds that must give the same groups to be believed"})
    patience: int = field(default=10, metadata={"help": "rounds after which the seeding takes what it has"})
    hold: int = field(default=3, metadata={"help": "rounds for which seeded clusters are kept before distances count"})
    margin: float = field(default=0.4, metadata={"help": "seeded clients move only to a cluster nearer by this share"})
    trust: float = field(
        default=0.5,
        metadata={"help": "nobody seeded moves while samples have a higher cross-entropy by their own model"},
    )
    per_class: int = field(default=10, metadata={"help": "samples per class and cluster (M; paper: 30)"})
    steps: int = field(default=100, metadata={"help": "Adam steps of the back-search from noise"})
    warm_steps: int = field(
        default=20, metadata={"help": "steps from the last round's samples; 0: from noise every round"}
    )
    search_lr: float = field(default=0.1, metadata={"help": "learning rate of the back-search"})
    generator_steps: int = field(default=1000, metadata={"help": "Adam steps of a fresh generator"})
    generator_warm_steps: int = field(
        default=100, metadata={"help": "steps of the last round's generator; 0: a fresh one every round"}
    )
    generator_lr: float = field(default=0.01, metadata={"help": "learning rate of the generator"})
    generator_batch: int = field(default=100, metadata={"help": "batch size of the generator"})
    generator_hidden: int = field(default=256, metadata={"help": "width of the generator's hidden layer"})
    noise: int = field(default=16, metadata={"help": "noise inputs of the generator"})
    prior: float = field(default=0.1, metadata={"help": "strength of the prior (lambda)"})
    prior_mean: float | None = field(
        default=None, metadata={"help": "prior mean in the network's input space; none: asked of the clients once"}
    )
    prior_squared: bool = field(default=False, metadata={"help": "square the norm of the prior"})
    clip: float = field(default=0.0, metadata={"help": "keep samples within +-clip; 0: free"})
    weighting: Literal["samples", "equal"] = field(
        default="samples", metadata={"help": "clients count by their samples, or all alike (the paper)"}
    )

    name: ClassVar[str] = "md-icfl"
    paper: ClassVar[str] = "Zhang et al. 2024, Communication-efficient clustered federated learning via model distance"
    summary: ClassVar[str] = "the server clusters clients by model distance; each downloads one model only"
    state_type: ClassVar[type[Distanced]] = Distanced
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {
            "start": "independent", "seeding": "none", "privacy": "weak", "weighting": "equal", "per_class": 30,
            "steps": 100, "warm_steps": 0, "search_lr": 0.1, "prior": 0.1, "prior_mean": 0.5, "generator_steps": 1000,
            "generator_warm_steps": 0, "generator_lr": 0.01, "generator_batch": 100, "noise": 16,
            "epochs": 2, "batch": 50, "lr": 0.1, "momentum": 0.0, "weight_decay": 0.0, "lr_decay": 1.0,
            "optimiser": "sgd", "aggregate": "mean",
        },
    }  # fmt: skip
    scenario_presets: ClassVar[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {
        "paper": {"multi-source-digits": {"epochs": 3}, **{name: {"epochs": 1} for name in _CIFAR10}},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("k", "agree", "patience", "per_class", "steps", "generator_steps", "generator_hidden", "noise"):
            self._require(getattr(self, key) >= 1, key, "be at least 1")
        for key in ("hold", "warm_steps", "generator_warm_steps", "prior", "clip", "trust"):
            self._require(getattr(self, key) >= 0, key, "be at least 0")
        self._require(0 <= self.margin < 1, "margin", "lie in [0, 1)")
        for key in ("search_lr", "generator_lr"):
            self._require(getattr(self, key) > 0, key, "be above 0")
        self._require(self.generator_batch >= 2, "generator_batch", "be at least 2 (it is normalised)")
        self._require(
            self.seeding != "cosine-labels" or self.privacy == "weak", "seeding", "not need labels under strong privacy"
        )
        self._require(self.seeding == "none" or self.start == "shared", "start", "be shared where clusters are seeded")

    def init(self, fed: Federation) -> Distanced:
        """Line 1: the cluster models; clients get their clusters when they first take part."""
        if self.k > len(fed.ids):
            raise CoterieError(
                f"md-icfl: k = {self.k} clusters need at least as many clients, but there are {len(fed.ids)}."
            )
        if fed.task.loss != "cross_entropy":
            raise CoterieError(
                "md-icfl compares class probabilities and needs the loss cross_entropy; choose that loss."
            )
        shared = self.start == "shared"
        models = spread(fed.task.init(fed.seed), self.k) if shared else distinct_starts(fed, self.k)
        return Distanced(models, {}, {}, {}, Seeds({}, {}) if self.seeding != "none" and self.k > 1 else None)

    def step(self, state: Distanced, fed: Federation) -> tuple[Distanced, Log]:
        """One round: of seeding while there are no clusters yet, then of Algorithm 1 or 2."""
        ids = fed.sample(self.fraction)
        state = self._introduced(state, fed, ids)
        return self._seed(state, fed, ids) if state.seeds else self._cluster(state, fed, ids)

    def _introduced(self, state: Distanced, fed: Federation, ids: Sequence[ClientId]) -> Distanced:
        """Have first-time participants say what the server may know of them."""
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

    def _seed(self, state: Distanced, fed: Federation, ids: Sequence[ClientId]) -> tuple[Distanced, Log]:
        """Plain FedAvg until the clients' directions give the same K groups in successive rounds."""
        assert state.seeds is not None
        replies = fed.ask(self.train, ids, each=Models(state.models), rows=[0] * len(ids))
        replies = self.usable(fed, replies, spread(row(state.models, 0), len(replies.ids)))
        if replies.value is None:
            return state, {}
        trained, weights = replies.value.model, self._weights(replies.value)
        shares = self._shares(state, fed.task, replies.ids) if self.seeding == "cosine-labels" else None
        common = row(state.models, 0)
        turned = directions(trained, common, seeding_layer(fed.task), shares)
        vectors = dict(state.seeds.vectors)
        for client, vector in zip(replies.ids, turned, strict=True):
            vectors[client] = _MEMORY * vectors[client] + vector if client in vectors else vector.clone()
        enough = len(vectors) >= max(self.k, len(fed.ids) / 2)
        groups = cosine_groups(vectors, self.k) if enough else {}
        # the one model as FedAvg computes it, bit for bit
        everyone = torch.zeros(len(replies.ids), dtype=torch.int64)
        models = spread(row(combined(self.aggregate, trained, weights, everyone, stack([common])), 0), self.k)
        alike = state.seeds.alike + 1 if steady(groups, state.seeds.groups) else 1
        if not groups or (alike < self.agree and fed.round + 1 < self.patience):
            alone = dict.fromkeys(vectors, 0)
            return replace(state, models=models, cluster=alone, seeds=Seeds(vectors, groups, alike)), {"seeded": 0}
        mine = torch.tensor([groups[client] for client in replies.ids])
        sent = spread(common, len(replies.ids))
        models = combined(self.aggregate, trained, weights, mine, models, sent)
        log: Log = {"seeded": 1, "sizes": cluster_sizes(mine, self.k)}
        return replace(state, models=models, cluster=groups, seeds=None, held=fed.round + 1 + self.hold), log

    def _cluster(self, state: Distanced, fed: Federation, ids: Sequence[ClientId]) -> tuple[Distanced, Log]:
        """Lines 3 to 12."""
        before = {client: self._first(state, fed, client) for client in ids}
        # a shared initial model has no clusters to be near to, and seeded clusters are kept for a while
        blank = not state.cluster and self.start == "shared"
        undecided = [client for client in ids if client not in state.cluster or fed.round >= state.held]
        if self.k == 1 or blank:
            undecided = []
        replies, made = self._train_and_sample(state, fed, before, bool(undecided))
        began = torch.tensor([before[client] for client in replies.ids], dtype=torch.int64)
        replies = self.usable(fed, replies, take(state.models, began))
        if replies.value is None:
            return state, {}
        log: Log = {}
        chosen = {client: before[client] for client in replies.ids}
        trained = replies.value.model
        if made is not None:
            log["sample_loss"] = loss = sample_loss(fed.task, state.models, made.samples)
            kept = state.cluster if self.seeding != "none" and loss > self.trust else {}
            open_ = set(undecided).difference(kept)
            judged = [place for place, client in enumerate(replies.ids) if client in open_]
            readings = read_samples(fed.task, trained, state.models, made.samples)
            chosen |= self._nearest(state, fed, [replies.ids[i] for i in judged], readings.distances[judged])
            outputs = own_outputs(readings.outputs, [chosen[client] for client in replies.ids], self.k)
            state = replace(state, samples=made.samples, generators=made.generators, outputs=outputs)
        groups = torch.tensor([chosen[client] for client in replies.ids])
        sent = take(state.models, torch.tensor([before[client] for client in replies.ids]))
        models = combined(self.aggregate, trained, self._weights(replies.value), groups, state.models, sent)
        moved = sum(state.cluster.get(client, new) != new for client, new in chosen.items())
        log |= {"moved": moved, "sizes": cluster_sizes(groups, self.k)}
        return replace(state, models=models, cluster={**state.cluster, **chosen}), log

    def admit(self, state: Distanced, fed: Federation, new: Sequence[ClientId]) -> Distanced:
        """Newcomers train one model, and go to the cluster whose samples the result reads as its model does.

        Ours: the paper has no newcomers. From a cluster's own model a client stays near that cluster, so where all
        clusters have one origin, newcomers begin with the mean of the clusters' models.
        """
        new = [client for client in new if client not in state.cluster]
        if self.k == 1 or state.seeds or not state.cluster or not new:
            return state  # there is one model, or there are no clusters yet
        state = self._introduced(state, fed, new)
        models, rows = state.models, [self._first(state, fed, client) for client in new]
        if self.start == "shared":
            sizes = cluster_sizes(torch.tensor(list(state.cluster.values())), self.k)
            models, rows = stack([mean(models, torch.tensor(sizes))]), [0] * len(new)
        replies = fed.ask(self.train, new, each=Models(models), rows=rows)
        if replies.value is None:
            return state
        samples = self._sample(state, fed).samples if state.samples is None else state.samples
        readings = read_samples(fed.task, replies.value.model, state.models, samples)
        found = self._nearest(state, fed, replies.ids, readings.distances)
        return replace(state, cluster={**state.cluster, **found})

    def _first(self, state: Distanced, fed: Federation, client: ClientId) -> int:
        """The cluster a client starts the round in; a random one the first time."""
        if client in state.cluster:
            return state.cluster[client]
        return int(rng(fed.seed, "first cluster", client).integers(self.k))

    def _train_and_sample(
        self, state: Distanced, fed: Federation, rows: Mapping[ClientId, int], wanted: bool
    ) -> tuple[Replies[Trained], _Made | None]:
        """Lines 3 and 5-7. The samples need the cluster models only and are made while the clients train."""
        ids, places, message = list(rows), list(rows.values()), Models(state.models)
        if not wanted:
            return fed.ask(self.train, ids, each=message, rows=places), None
        made = cache(partial(self._sample, state, fed))
        return fed.ask(self.train, ids, each=message, rows=places, meanwhile=made), made()

    def _sample(self, state: Distanced, fed: Federation) -> _Made:
        """Line 3: the pseudo data sets D_j^k of all clusters."""
        task, g = fed.task, torch_rng(fed.seed, "pseudo samples", fed.round)
        goal = Objective(self._prior_means(state), self.prior, self.prior_squared, self.clip)
        if self.sampling == "back-search":
            warm = self.warm_steps > 0 and state.samples is not None
            shape = (self.k, task.classes, self.per_class, *task.shape)
            start = state.samples if warm and state.samples is not None else torch.randn(shape, generator=g)
            steps = self.warm_steps if warm else self.steps
            return _Made(back_search(task, state.models, start, goal, steps, self.search_lr), None)
        warm = self.generator_warm_steps > 0 and state.generators is not None
        if warm and state.generators is not None:
            first, steps = state.generators, self.generator_warm_steps
        else:
            first = fresh_generators(task.shape, task.classes, goal.mean, self.noise, self.generator_hidden, g)
            steps = self.generator_steps
        generators = train_generators(
            task, state.models, first, goal, steps=steps, lr=self.generator_lr, batch=self.generator_batch, g=g
        )
        return _Made(draw(task, generators, self.per_class, goal, g), generators)

    def _prior_means(self, state: Distanced) -> Tensor:
        """mu of every cluster: as set, or the mean over its clients of what they said; [K, channels or 1]."""
        if self.prior_mean is not None or not state.means:
            return torch.full((self.k, 1), self.prior_mean or 0.0)
        return prior_means(state.means, state.cluster, self.k)

    def _nearest(
        self, state: Distanced, fed: Federation, ids: Sequence[ClientId], distances: Tensor
    ) -> dict[ClientId, int]:
        """Lines 9-10: by the server (weak privacy), or by the clients, who alone know p_i(y) (strong privacy)."""
        if not ids:
            return {}
        # a random first cluster deserves no loyalty
        loyal = state.cluster if self.seeding != "none" else {}
        present = torch.tensor([loyal.get(client, -1) for client in ids])
        if self.privacy == "weak":
            found = nearest(distances, self._shares(state, fed.task, ids), present, self.margin).tolist()
            return dict(zip(ids, found, strict=True))
        replies = fed.ask(self.identify, ids, each=ClassDistances(distances, present))
        found = replies.value.cluster.tolist() if replies.value is not None else []
        return dict(zip(replies.ids, found, strict=True))

    def _shares(self, state: Distanced, task: Task, ids: Sequence[ClientId]) -> Tensor:
        """What is known of p_i(y); uniform where an introduction was lost."""
        uniform = torch.full((task.classes,), 1 / task.classes, dtype=torch.float64)
        return torch.stack([state.labels.get(client, uniform) for client in ids])

    def _weights(self, replies: Trained) -> Tensor:
        return replies.size if self.weighting == "samples" else torch.ones_like(replies.size)

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
        """On the client: line 11 of Algorithm 2, the nearest cluster by the own p_i(y)."""
        return Identity(nearest(sent.distances, _own_shares(c), sent.present, self.margin))

    def panels(self, state: Distanced, ids: Sequence[ClientId], truth: Sequence[int] | None) -> list[Panel]:
        """Figures 5 to 7: the pseudo samples, and what the models of each cluster's own clients make of them."""
        if state.samples is None or state.outputs is None:
            return []
        classes = [str(label) for label in range(state.samples.shape[1])]
        made: list[Panel] = []
        if state.samples.dim() == 6 and state.samples.shape[3] in (1, 3):
            names = [f"cluster {j}" for j in range(self.k)]
            made.append(image_grid("Pseudo samples, one per class and cluster", state.samples[:, :, 0], names, classes))
        for j in range(self.k):
            title = f"Cluster {j}: class probabilities of its clients' new models on its pseudo samples"
            note = "Row: the class a sample was made for; column: what the models say. A strong diagonal is good."
            made.append(Heatmap(title, state.outputs[j].tolist(), classes, classes, note))
        return made


@dataclass(frozen=True)
class _Made:
    samples: Tensor
    generators: Stack | None


def _with(known: dict[str, Tensor], ids: Sequence[ClientId], values: Tensor) -> dict[str, Tensor]:
    return {**known, **{client: values[i].clone() for i, client in enumerate(ids)}}


def _own_shares(c: Cohort) -> Tensor:
    return label_shares([client.train.y for client in c.data], c.task.classes)

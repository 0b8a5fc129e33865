"""FedCG: domains found in the data, each with residual layers of its own, joined by a graph (Caldarola et al., 2021).

The defaults (preset "robust") are ours, inspired by FedCG: residuals for each domain, but no graph, no W, no teacher.
The preset "paper" is the method as it was written; docs/results/fedcg.md says what was chosen where its words are
open.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from coterie.core.aggregate import combined, combined_one
from coterie.core.cohort import Cohort
from coterie.core.evaluation import evaluate
from coterie.core.federation import (
    Federation,
    Nothing,
    Replies,
    on_client,
)
from coterie.core.panels import Panel
from coterie.core.samples import ClientId
from coterie.core.states import (
    Stack,
    State,
    spread,
    stack,
)
from coterie.core.task import Task
from coterie.core.training import local_sgd
from coterie.methods.base import Assessment, Log, Models, ServerMethod, Trained
from coterie.methods.fedcg.domains import (
    domain_panels,
    evenness,
    features_of,
    triangle,
)
from coterie.methods.fedcg.equipartition import soft_assignments
from coterie.methods.fedcg.finders import FINDERS, Finder, TeacherFinder
from coterie.methods.fedcg.graph import FixedAdjacency, Graph, Sigma, WKind, distance_adjacency, fixed_adjacency
from coterie.methods.fedcg.layers import ResidualStart
from coterie.methods.fedcg.messages import Domains, Report, Sent, Sums, Weigh, Weighed
from coterie.methods.fedcg.network import DomainNet, fedcg
from coterie.methods.fedcg.wrapping import Wrapping, plain

_COMMON = ("model", "teacher", "student")
_LEAST = {"domains": 1, "bottleneck": 1, "rank": 1, "features": 1, "teacher_every": 1, "alone_epochs": 1, "few": 0}


@dataclass(frozen=True)
class FedCG(ServerMethod[Domains]):
    """z = f_a(x) + lambda f_d(x), the residuals f_d of the domains joined by V <- sigma(A V W) (equations 4 and 5)."""

    domains: int = field(default=4, metadata={"help": "number of domains (D)"})
    layers: str = field(
        default="last", metadata={"help": "layers with residuals: last, convolutions, all, or names joined by commas"}
    )
    find: Literal["features", "classifier", "models", "oracle", "metadata"] = field(
        default="features",
        metadata={
            "help": "domains from clients' mean features, teacher and student, k-means on clients' models, the true "
            "groups, or metadata beside the samples"
        },
    )
    graph: Literal["eye", "random", "uniform", "hamming", "distance"] = field(
        default="eye", metadata={"help": "adjacency A: eye (domains apart), fixed ones, or distance (equation 6)"}
    )
    graph_start: Literal["eye", "random", "uniform"] = field(
        default="eye", metadata={"help": "A of the first round, where it comes from distances"}
    )
    beta: float = field(default=0.5, metadata={"help": "what a domain keeps of itself in A"})
    sharpness: float = field(default=1.0, metadata={"help": "power of the similarities in A; 1 is equation 6"})
    few: float = field(
        default=0.0, metadata={"help": "a domain with n samples in a round keeps n / (n + few), at least beta; 0: beta"}
    )
    w: WKind = field(
        default="none",
        metadata={"help": "W of equation 5: full, low_rank, bottleneck, none, or per_filter (ours: mixes no filters)"},
    )
    rank: int = field(default=16, metadata={"help": "rank of a low_rank W; keeps the first V where it is at least D"})
    w_limit: float = field(default=1.0, metadata={"help": "largest W of a layer, in GiB; more is refused"})
    bottleneck: int = field(default=16, metadata={"help": "by what the bottleneck divides the parameters"})
    sigma: Sigma = field(default="none", metadata={"help": "relu on the parameters, none, or on_activation"})
    scale: float = field(default=1.0, metadata={"help": "first weight of the residuals (lambda)"})
    start: ResidualStart = field(default="zero", metadata={"help": "first residuals: zero, or random as layers are"})
    agnostic: bool = field(default=True, metadata={"help": "false: domain-specific layers alone (GCN in the paper)"})
    averaging: Literal["clients", "domains", "reach"] = field(
        default="domains",
        metadata={
            "help": "average a domain's residuals over the clients that have samples of it (domains), over all "
            "(clients: copies that nobody trained, too), or by A's reach"
        },
    )
    routing: Literal["auto", "pooled", "mixed", "image"] = field(
        default="auto",
        metadata={"help": "domains of a client's images: one, a mixture, each by itself, or (auto) as the data look"},
    )
    alone_epochs: int = field(
        default=20, metadata={"help": "epochs that clients train alone before k-means on their models"}
    )
    soft: bool = field(default=True, metadata={"help": "mix residuals by the student's probabilities at test time"})
    features: int = field(default=256, metadata={"help": "random features that the student sees"})
    ridge: float = field(default=0.01, metadata={"help": "strength of the student's ridge, per sample"})
    teacher_every: int = field(default=10, metadata={"help": "rounds after which the student is the teacher (T)"})
    classifier_lr: float = field(default=1e-4, metadata={"help": "learning rate of the student classifier"})
    balance: bool = field(
        default=False, metadata={"help": "have the teacher use all domains alike over the samples of all clients"}
    )

    name: ClassVar[str] = "fedcg"
    paper: ClassVar[str] = "Caldarola et al. 2021, Cluster-driven graph federated learning over multiple domains"
    summary: ClassVar[str] = "one network with residual layers for every domain that is found in the data"
    state_type: ClassVar[type[Domains]] = Domains
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "robust": {},
        "paper": {
            "find": "classifier",
            "graph": "distance",
            "w": "per_filter",
            "sigma": "relu",
            "start": "random",
            "averaging": "domains",
            "routing": "image",
            "aggregate": "mean",
        },
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        for key, least in _LEAST.items():
            self._require(getattr(self, key) >= least, key, f"be at least {least}")
        for key in ("sharpness", "ridge", "classifier_lr", "w_limit"):
            self._require(getattr(self, key) > 0, key, "be above 0")
        self._require(0 < self.beta <= 1, "beta", "lie in (0, 1]")
        lives = self.start == "random" or self.sigma == "none"
        self._require(lives, "start", f"be random with sigma = {self.sigma}, whose slope at zero is zero")

    def task(self, task: Task) -> Task:
        """The same task with domain layers in its network."""
        return replace(task, model=Wrapping(self.network, task.model), _local=threading.local())

    def network(self, base: nn.Module) -> DomainNet:
        """A network with this method's domain layers."""
        first: FixedAdjacency = self.graph_start if self.graph == "distance" else self.graph
        joined = self.graph != "eye" or self.w != "none" or self.sigma != "none"
        adjacency = None if self.graph == "eye" else fixed_adjacency(first, self.domains, self.beta)
        graph = Graph(adjacency, self.w, self.sigma, self.bottleneck, self.rank, self.w_limit) if joined else None
        return fedcg(
            base,
            domains=self.domains,
            layers=self.layers,
            graph=graph,
            scale=self.scale if self.agnostic else None,
            start=self.start,
        )

    @property
    def _finder(self) -> Finder:
        return FINDERS[self.find](self)

    def init(self, fed: Federation) -> Domains:
        """The network, and domains to begin with."""
        none, pooled = torch.zeros(0), self.routing == "pooled"
        return self._finder.begin(Domains(fed.task.init(fed.seed), {}, {}, {}, none, none, pooled, [], {}), fed)

    def admit(self, state: Domains, fed: Federation, new: Sequence[ClientId]) -> Domains:
        """Only k-means on models must ask newcomers: they train once and go to the nearest centre."""
        return self._finder.admit(state, fed, new)

    @on_client("features")
    def describe(self, c: Cohort, sent: Nothing) -> Sums:
        """On the client: sums of features and of their products."""
        own = [features_of(c.task.inputs(client.train.x), c.seed, self.features) for client in c.data]
        return Sums(torch.stack([f.sum(0) for f in own]), torch.stack([triangle(f.T @ f) for f in own]), c.size)

    @on_client("features")
    def weigh(self, c: Cohort, sent: Weigh) -> Weighed:
        """On the client: how much of its samples a teacher puts into each domain, and its outputs in sum."""
        finder = TeacherFinder(self)
        soft, products, total, squares = [], [], [], []
        for client in c.data:
            said = finder.log_probabilities(c.task, sent.teacher, client.train)
            outputs = said - said.mean(1, keepdim=True)
            own = soft_assignments(outputs, sent.offsets, sent.sharpness)
            soft.append(own.sum(0))
            products.append(own.T @ own)
            total.append(outputs.sum(0))
            squares.append((outputs**2).sum(0))
        sums = [torch.stack(each) for each in (soft, products, total, squares)]
        return Weighed(sums[0], sums[1], sums[2], sums[3], c.size)

    @on_client("models")
    def train_alone(self, c: Cohort, sent: Models) -> Trained:
        """On the client: epochs of its own with the plain network, from the common start.

        Without momentum and with the rate of the first round, so that what the models differ by is the data.
        """
        opt = replace(self.opt, epochs=self.alone_epochs, momentum=0.0, lr_decay=1.0)
        return Trained(local_sgd(replace(c, task=plain(c.task)), spread(sent.models, len(c)), opt), c.size)

    def step(self, state: Domains, fed: Federation) -> tuple[Domains, Log]:
        """Train network and student on the sampled clients, average, then measure how close domains are."""
        finder = self._finder
        ids, state = fed.sample(self.fraction), finder.search(state, fed)
        replies = fed.ask(self.train, ids, each=self._message(state, fed, ids), common=_COMMON)
        replies = self.usable(fed, replies, spread(state.model, len(replies.ids)))
        if replies.value is None:
            return state, {}
        net = fed.task.module
        assert isinstance(net, DomainNet)
        counts = _told(replies.value.counts, replies.value.size).sum(0)
        model = self._averaged(replies.value, state.model, net.residuals)
        if self.graph == "distance":
            theta = torch.cat([model[name].double() for name in net.residuals], dim=1)
            model["adjacency"] = distance_adjacency(
                theta, self.beta, sharpness=self.sharpness, samples=counts, few=self.few
            ).to(model["adjacency"].dtype)
        log = self._measures(model, counts, replies.value, net.scales)
        history = {key: [*state.history.get(key, []), value] for key, value in log.items() if isinstance(value, float)}
        after = finder.renewed(state, replies.value, fed.round)
        return replace(after, model=model, samples=counts.tolist(), history={**state.history, **history}), log

    def _message(self, state: Domains, fed: Federation, ids: Sequence[ClientId]) -> Sent:
        finder = self._finder
        domain = finder.domain_of(state, fed, ids)
        return Sent(state.model, finder.teacher(state), state.student, state.pooled, domain)

    @on_client("models")
    def train(self, c: Cohort, sent: Sent) -> Report:
        """On the client: every sample trains the residuals of its domain; then the student learns from the teacher."""
        finder = self._finder
        seen = [finder.seen(c, sent, index, client.train) for index, client in enumerate(c.data)]
        labels = [finder.taught(c, sent, client.train, own) for client, own in zip(c.data, seen, strict=True)]
        model = local_sgd(c.beside(labels), spread(sent.model, len(c)), self.opt)
        counts = [torch.bincount(own, minlength=self.domains) for own in labels]
        agreed = [(own.argmax(1) == label).sum() for own, label in zip(seen, labels, strict=True)]
        return Report(model, finder.distilled(c, sent, labels), torch.stack(counts), torch.stack(agreed), c.size)

    def _averaged(self, replies: Report, previous: State, residuals: Sequence[str]) -> State:
        """FedAvg (equation 2); V of a domain by its samples, or (reach) by those of all domains that borrow from it.

        With `averaging = "clients"` the untouched copies of clients without samples of a domain are averaged in, too.
        """
        model = combined_one(self.aggregate, replies.model, replies.size, previous)
        if self.averaging == "clients":
            return model
        reached = _told(replies.counts, replies.size)
        if self.averaging == "reach" and "adjacency" in previous:
            reached = reached @ previous["adjacency"].double()
        for d in range(self.domains):
            own = {name: replies.model[name][:, d] for name in residuals}
            before = {name: previous[name][d : d + 1] for name in residuals}
            together = torch.zeros(len(reached), dtype=torch.int64)
            for name, tensor in combined(self.aggregate, own, reached[:, d], together, before).items():
                model[name][d] = tensor[0]
        return model

    def _measures(self, model: State, counts: Tensor, replies: Report, lambdas: Sequence[str]) -> Log:
        """Whether the domains have collapsed, and how much the residuals weigh."""
        samples = counts.sum().clamp_min(1)
        scales = [float(model[name]) for name in lambdas]
        return {
            "largest domain": float(counts.max() / samples),
            "evenness": evenness(counts),
            "agreement": float(replies.agreed.sum() / samples),
            "lambda": sum(scales) / len(scales) if scales else 1.0,
            "domains": [float(n) for n in counts / samples],
            "lambdas": scales,
            **({"adjacency": model["adjacency"].flatten().tolist()} if "adjacency" in model else {}),
        }

    def assess(self, state: Domains, fed: Federation, ids: Sequence[ClientId]) -> Replies[Assessment]:
        """Clients find the domains of their test samples, without their labels, and use the residuals accordingly."""
        message = self._message(state, fed, ids)
        return fed.ask(self.route_and_judge, ids, each=message, common=_COMMON, purpose="evaluation")

    @on_client("scores")
    def route_and_judge(self, c: Cohort, sent: Sent) -> Assessment:
        """On the client: every test sample by its own domains, or all by what they look like together."""
        finder = self._finder
        seen = [finder.seen(c, sent, index, client.test) for index, client in enumerate(c.data)]
        weights = [finder.together(sent, own) for own in seen]
        main = torch.stack([own.mean(0).nan_to_num().argmax() for own in weights])
        sides = weights if self.soft else [own.argmax(1) for own in weights]
        scores = evaluate(c.beside(sides, "test"), spread(sent.model, len(c)))
        return Assessment(scores.correct, scores.loss, scores.count, main)

    def model_for(self, state: Domains, ids: Sequence[ClientId]) -> tuple[Stack, list[int]]:
        """One network for everyone; which residuals it uses is decided by the samples."""
        return stack([state.model]), [0] * len(ids)

    def models(self, state: Domains) -> Mapping[str, State]:
        """The network and, where there is one, the student."""
        return {"network": state.model, **({"student": state.student} if state.student else {})}

    def panels(self, state: Domains, ids: Sequence[ClientId], truth: Sequence[int] | None) -> list[Panel]:
        """Collapse, the weight of the residuals and the adjacency."""
        return domain_panels(state.history, state.samples, state.model.get("adjacency"))


def _told(counts: Tensor, size: Tensor) -> Tensor:
    """Samples by domain, [C, D], which are as many as the client has: nobody weighs more by claiming more of them."""
    given = counts.double().clamp_min(0)
    return given * (size.double() / given.sum(1).clamp_min(1))[:, None]

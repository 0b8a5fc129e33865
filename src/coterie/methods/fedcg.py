"""FedCG: domains found in the data, each with residual layers of its own, joined by a graph (Caldarola et al., 2021).

The defaults are a variant that works where the paper's own settings collapse (see docs/results/fedcg.md); the preset
"paper" is the method as it was written.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.aggregate import combined, combined_one
from coterie.clustering.domains import (
    UNEVEN,
    Moments,
    balanced,
    domain_panels,
    evenness,
    features_of,
    find_domains,
    kmeans,
    mix,
    pool,
    posterior,
    square,
    triangle,
)
from coterie.cohort import Cohort, Optimiser, evaluate, local_sgd, probabilities
from coterie.data.samples import ClientData, ClientId, Normalise, Samples
from coterie.errors import CoterieError
from coterie.federation import Federation, Nothing, Replies, on_client
from coterie.methods.base import Assessment, Log, Models, ServerMethod, Trained
from coterie.models.domain_graph import FixedAdjacency, Sigma, WKind, distance_adjacency, fixed_adjacency
from coterie.models.domains import DomainNet, Graph, domain_classifier, fedcg
from coterie.models.residual import ResidualStart
from coterie.report.panels import Panel
from coterie.states import Stack, State, distance, flat, spread, stack
from coterie.task import Task

_COMMON = ("model", "teacher", "student")
_AT_ONCE = 32
"""So many clients' second moments are held by the server together."""


@dataclass(frozen=True)
class Domains:
    """The network, what tells domains apart, and how evenly they were used in every round."""

    model: State
    student: State
    teacher: State
    cluster: dict[str, int]
    centres: Tensor
    pooled: bool
    samples: list[float]
    history: dict[str, list[float]]


@dataclass(frozen=True)
class Sent:
    """The network, teacher and student for everyone, and the domain of each client where the server decides it."""

    model: State
    teacher: State
    student: State
    pooled: bool
    domain: Tensor


@dataclass(frozen=True)
class Report:
    """A client's network and student after training, its samples by domain and how many its student agrees on."""

    model: Stack
    student: Stack
    counts: Tensor
    agreed: Tensor
    size: Tensor


@dataclass(frozen=True)
class Sums:
    """First and second moments of a client's features, summed over its samples."""

    total: Tensor
    products: Tensor
    size: Tensor


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
    w: WKind = field(default="none", metadata={"help": "W of equation 5: none, per_filter, bottleneck or full"})
    bottleneck: int = field(default=16, metadata={"help": "by what the bottleneck divides the parameters"})
    sigma: Sigma = field(default="none", metadata={"help": "relu on the parameters, none, or on_activation"})
    scale: float = field(default=1.0, metadata={"help": "first weight of the residuals (lambda)"})
    start: ResidualStart = field(default="zero", metadata={"help": "first residuals: zero, or random as layers are"})
    agnostic: bool = field(default=True, metadata={"help": "false: domain-specific layers alone (GCN in the paper)"})
    averaging: Literal["clients", "domains", "reach"] = field(
        default="domains", metadata={"help": "weigh residuals by clients' samples, by each domain's, or by A's reach"}
    )
    routing: Literal["auto", "pooled", "mixed", "image"] = field(
        default="auto",
        metadata={"help": "domains of a client's images: one, a mixture, each by itself, or (auto) as the data look"},
    )
    soft: bool = field(default=True, metadata={"help": "mix residuals by the student's probabilities at test time"})
    features: int = field(default=256, metadata={"help": "random features that the student sees"})
    ridge: float = field(default=0.01, metadata={"help": "strength of the student's ridge, per sample"})
    teacher_every: int = field(default=10, metadata={"help": "rounds after which the student is the teacher (T)"})
    classifier_lr: float = field(default=1e-4, metadata={"help": "learning rate of the student classifier"})
    balance: bool = field(
        default=False, metadata={"help": "have the teacher use all domains equally, client by client"}
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
            "averaging": "clients",
            "routing": "image",
            "aggregate": "mean",
        },
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        for key, least in {"domains": 1, "bottleneck": 1, "features": 1, "teacher_every": 1, "few": 0}.items():
            self._require(getattr(self, key) >= least, key, f"be at least {least}")
        for key in ("sharpness", "ridge", "classifier_lr"):
            self._require(getattr(self, key) > 0, key, "be above 0")
        self._require(0 < self.beta <= 1, "beta", "lie in (0, 1]")
        lives = self.start == "random" or self.sigma == "none"
        self._require(lives, "start", f"be random with sigma = {self.sigma}, whose slope at zero is zero")

    def task(self, task: Task) -> Task:
        """The same task with domain layers in its network."""
        return replace(task, model=partial(self._wrapped, task.model), _local=threading.local())

    def _wrapped(self, model: nn.Module | Callable[[], nn.Module]) -> DomainNet:
        base = copy.deepcopy(model) if isinstance(model, nn.Module) else model()
        first: FixedAdjacency = self.graph_start if self.graph == "distance" else self.graph
        joined = self.graph != "eye" or self.w != "none" or self.sigma != "none"
        adjacency = None if self.graph == "eye" else fixed_adjacency(first, self.domains, self.beta)
        return fedcg(
            base,
            domains=self.domains,
            layers=self.layers,
            graph=Graph(adjacency, self.w, self.sigma, self.bottleneck) if joined else None,
            scale=self.scale if self.agnostic else None,
            start=self.start,
        )

    def _classifier(self, task: Task) -> Task:
        return _classifier(task.shape, self.domains, task.normalise, task.dtype)

    def init(self, fed: Federation) -> Domains:
        """The network, and domains to begin with."""
        state = Domains(fed.task.init(fed.seed), {}, {}, {}, torch.zeros(0), self.routing == "pooled", [], {})
        if self.find == "classifier":
            classifier = self._classifier(fed.task)
            return replace(state, teacher=classifier.init(fed.seed, 1), student=classifier.init(fed.seed, 2))
        return self._searched(state, fed)

    def _searched(self, state: Domains, fed: Federation) -> Domains:
        """With domains, if there are none yet: where nobody answered, the next round asks again."""
        if self.find == "features" and not state.student:
            return self._from_features(state, fed, sorted(fed.ids))
        if self.find == "models" and not len(state.centres):
            return self._from_models(state, fed, sorted(fed.ids))
        return state

    def _from_features(self, state: Domains, fed: Federation, ids: Sequence[ClientId]) -> Domains:
        moments: Moments | None = None
        for begin in range(0, len(ids), _AT_ONCE):
            value = fed.ask(self.describe, ids[begin : begin + _AT_ONCE], same=Nothing()).value
            if value is not None:
                some = Moments.of(value.total, square(value.products, self.features), value.size)
                moments = some if moments is None else moments.plus(some)
        if moments is None:
            return state
        found = find_domains(moments, self.domains, _seed(fed), self.ridge)
        pooled = found.unevenness <= UNEVEN if self.routing == "auto" else state.pooled
        return replace(state, student=found.student, pooled=pooled, history={"unevenness": [found.unevenness]})

    @on_client("features")
    def describe(self, c: Cohort, sent: Nothing) -> Sums:
        """On the client: sums of features and of their products."""
        own = [features_of(c.task.inputs(client.train.x), c.seed, self.features) for client in c.data]
        return Sums(torch.stack([f.sum(0) for f in own]), torch.stack([triangle(f.T @ f) for f in own]), c.size)

    def _from_models(self, state: Domains, fed: Federation, ids: Sequence[ClientId]) -> Domains:
        replies = fed.ask(self.train_alone, ids, same=Models(fed.task.init(fed.seed)))
        replies = self.usable(fed, replies, spread(fed.task.init(fed.seed), len(replies.ids)))
        if replies.value is None:
            return state
        labels = kmeans(flat(replies.value.model), self.domains, _seed(fed))
        first = spread(fed.task.init(fed.seed), int(labels.max()) + 1)
        equal = torch.ones(len(labels), dtype=torch.float64)
        each = combined(self.aggregate, replies.value.model, equal, labels, first)
        cluster = dict(zip(replies.ids, labels.tolist(), strict=True))
        return replace(state, cluster=cluster, centres=flat(each))

    @on_client("models")
    def train_alone(self, c: Cohort, sent: Models) -> Trained:
        """On the client: one epoch of its own from the common start, as if there were a single domain."""
        alone = c.beside([torch.zeros(len(client.train), dtype=torch.int64) for client in c.data])
        return Trained(local_sgd(alone, spread(sent.models, len(c)), replace(self.opt, epochs=1)), c.size)

    def admit(self, state: Domains, fed: Federation, new: Sequence[ClientId]) -> Domains:
        """Only k-means on models must ask newcomers: they train once and go to the nearest centre."""
        if self.find != "models" or not len(state.centres):
            return state
        replies = fed.ask(self.train_alone, new, same=Models(fed.task.init(fed.seed)))
        if replies.value is None:
            return state
        nearest = distance({"": flat(replies.value.model)}, {"": state.centres}).argmin(1)
        return replace(state, cluster={**state.cluster, **dict(zip(replies.ids, nearest.tolist(), strict=True))})

    def step(self, state: Domains, fed: Federation) -> tuple[Domains, Log]:
        """Train network and student on the sampled clients, average, then measure how close domains are."""
        ids, state = fed.sample(self.fraction), self._searched(state, fed)
        replies = fed.ask(self.train, ids, each=self._message(state, fed, ids), common=_COMMON)
        replies = self.usable(fed, replies, spread(state.model, len(replies.ids)))
        if replies.value is None:
            return state, {}
        counts = _told(replies.value.counts, replies.value.size).sum(0)
        model = self._averaged(replies.value, state.model)
        if self.graph == "distance":
            theta = torch.cat([model[name].double() for name in model if name.endswith(".residual")], dim=1)
            model["adjacency"] = distance_adjacency(
                theta, self.beta, sharpness=self.sharpness, samples=counts, few=self.few
            ).to(model["adjacency"].dtype)
        student = state.student
        if self.find == "classifier":
            student = combined_one(self.aggregate, replies.value.student, replies.value.size, state.student)
        renewed = (fed.round + 1) % self.teacher_every == 0
        log = self._measures(model, counts, replies.value)
        history = {key: [*state.history.get(key, []), value] for key, value in log.items() if isinstance(value, float)}
        after = replace(
            state,
            model=model,
            student=student,
            teacher=student if renewed and self.find == "classifier" else state.teacher,
            samples=counts.tolist(),
            history={**state.history, **history},
        )
        return after, log

    def _message(self, state: Domains, fed: Federation, ids: Sequence[ClientId]) -> Sent:
        if self.find == "oracle":
            domain = fed.truth(ids)
        else:
            domain = torch.tensor([state.cluster.get(client, -1) for client in ids])
        return Sent(state.model, state.teacher, state.student, state.pooled, domain)

    @on_client("models")
    def train(self, c: Cohort, sent: Sent) -> Report:
        """On the client: every sample trains the residuals of its domain; then the student learns from the teacher."""
        seen = [self._seen(c, sent, index, client.train) for index, client in enumerate(c.data)]
        labels = [self._taught(c, sent, client.train, own) for client, own in zip(c.data, seen, strict=True)]
        model = local_sgd(c.beside(labels), spread(sent.model, len(c)), self.opt)
        counts = [torch.bincount(own, minlength=self.domains) for own in labels]
        agreed = [(own.argmax(1) == label).sum() for own, label in zip(seen, labels, strict=True)]
        return Report(model, self._distilled(c, sent, labels), torch.stack(counts), torch.stack(agreed), c.size)

    def _seen(self, c: Cohort, sent: Sent, index: int, samples: Samples) -> Tensor:
        """How probable each domain is for each sample of a client, as the student (or whoever knows) says: [n, D]."""
        if self.find == "features" and not sent.student:
            return torch.full((len(samples), self.domains), 1 / self.domains)
        if self.find == "features":
            return posterior(sent.student, features_of(c.task.inputs(samples.x), c.seed, self.features))
        if self.find == "classifier":
            classifier = self._classifier(c.task)
            return probabilities(classifier, stack([sent.student]), classifier.inputs(samples.x))[0]
        known = samples.side if self.find == "metadata" else sent.domain[index].expand(len(samples))
        if known is None:
            raise CoterieError('fedcg: these samples have no metadata beside them; set find to "features".')
        if bool((known >= self.domains).any()):
            highest = int(known.max())
            raise CoterieError(f"fedcg: samples have domain {highest}, counted from 0; set domains to all there are.")
        told = F.one_hot(known.clamp_min(0), self.domains).to(torch.float32)
        return torch.where(known[:, None] < 0, 1 / self.domains, told)

    def _taught(self, c: Cohort, sent: Sent, samples: Samples, seen: Tensor) -> Tensor:
        """The domain that each training sample is given, [n]."""
        if self.find != "classifier":
            return self._together(sent, seen).argmax(1)
        teacher = self._classifier(c.task)
        told = probabilities(teacher, stack([sent.teacher]), teacher.inputs(samples.x))[0]
        return balanced(told) if self.balance else told.argmax(1)

    def _together(self, sent: Sent, seen: Tensor) -> Tensor:
        """The same, given that all samples are of one client."""
        return pool(seen) if sent.pooled else seen if self.routing == "image" else mix(seen)

    def _distilled(self, c: Cohort, sent: Sent, labels: Sequence[Tensor]) -> Stack:
        """The student after learning the teacher's labels (equation 3)."""
        if self.find != "classifier":
            return {}
        lessons = [Samples(client.train.x, label) for client, label in zip(c.data, labels, strict=True)]
        pupils = replace(c, task=self._classifier(c.task), data=tuple(ClientData(own, own) for own in lessons))
        opt = Optimiser(epochs=1, batch=self.batch, lr=self.classifier_lr)
        return local_sgd(pupils, spread(sent.student, len(c)), opt, purpose="student")

    def _averaged(self, replies: Report, previous: State) -> State:
        """FedAvg; residuals by the samples of their domain, or (reach) of all who borrow from it, as they do."""
        model = combined_one(self.aggregate, replies.model, replies.size, previous)
        if self.averaging == "clients":
            return model
        reached = _told(replies.counts, replies.size)
        if self.averaging == "reach" and "adjacency" in previous:
            reached = reached @ previous["adjacency"].double()
        residuals = [name for name in model if name.endswith(".residual")]
        for d in range(self.domains):
            own = {name: replies.model[name][:, d] for name in residuals}
            before = {name: previous[name][d : d + 1] for name in residuals}
            together = torch.zeros(len(reached), dtype=torch.int64)
            for name, tensor in combined(self.aggregate, own, reached[:, d], together, before).items():
                model[name][d] = tensor[0]
        return model

    def _measures(self, model: State, counts: Tensor, replies: Report) -> Log:
        """Whether the domains have collapsed, and how much the residuals weigh."""
        samples = counts.sum().clamp_min(1)
        scales = [float(model[name]) for name in model if name.endswith(".scale")]
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
        seen = [self._seen(c, sent, index, client.test) for index, client in enumerate(c.data)]
        weights = [self._together(sent, own) for own in seen]
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


@lru_cache(maxsize=8)
def _classifier(shape: tuple[int, ...], domains: int, normalise: Normalise, dtype: torch.dtype) -> Task:
    """The task of telling domains apart; made once, because its scratch network is."""
    return Task(partial(domain_classifier, shape, domains), shape, domains, normalise, dtype=dtype)


def _told(counts: Tensor, size: Tensor) -> Tensor:
    """Samples by domain, [C, D], which are as many as the client has: nobody weighs more by claiming more of them."""
    given = counts.double().clamp_min(0)
    return given * (size.double() / given.sum(1).clamp_min(1))[:, None]


def _seed(fed: Federation) -> int:
    return int(fed.rng("domains").integers(1 << 31))

"""The settings of FedCG: the paper's with its symbols, then ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from coterie.core.states import State
from coterie.methods.base import RoundMethod
from coterie.methods.counted import Counted, number_of
from coterie.methods.fedcg.graph import FixedAdjacency, Graph, Sigma, WKind, fixed_adjacency
from coterie.methods.fedcg.layers import ResidualStart
from coterie.methods.fedcg.messages import Domains
from coterie.methods.fedcg.network import DomainNet, fedcg

_LEAF = {
    "epochs": 1, "lr": 0.001, "momentum": 0.0, "weight_decay": 0.0, "lr_decay": 1.0, "optimiser": "sgd"
}  # fmt: skip
"""Local training in section 4; of the optimiser it says that it is LEAF's."""
_LEAST = {"bottleneck": 1, "rank": 1, "features": 1, "teacher_every": 1, "alone_epochs": 1, "few": 0}


@dataclass(frozen=True)
class FedCGPaperSettings(Counted[Domains]):
    """What the paper names, in equations 4 to 6 and in its Tables 3 and 4."""

    domains: int = field(default=4, metadata=number_of("domains", "D"))
    layers: str = field(
        default="last", metadata={"help": "layers with residuals: last, convolutions, all, or names joined by commas"}
    )
    graph: Literal["eye", "random", "uniform", "hamming", "distance"] = field(
        default="eye", metadata={"help": "adjacency A: eye (domains apart), fixed ones, or distance (equation 6)"}
    )
    graph_start: Literal["eye", "random", "uniform"] = field(
        default="eye", metadata={"help": "A of the first round, where it comes from distances"}
    )
    beta: float = field(default=0.5, metadata={"help": "what a domain keeps of itself in A"})
    w: WKind = field(
        default="none",
        metadata={"help": "W of equation 5: full, low_rank, bottleneck, none, or per_filter (ours: mixes no filters)"},
    )
    sigma: Sigma = field(default="none", metadata={"help": "relu on the parameters, none, or on_activation"})
    scale: float = field(default=1.0, metadata={"help": "first weight of the residuals (lambda)"})
    agnostic: bool = field(default=True, metadata={"help": "false: domain-specific layers alone (GCN in the paper)"})
    soft: bool = field(default=True, metadata={"help": "mix residuals by the student's probabilities at test time"})
    teacher_every: int = field(default=10, metadata={"help": "rounds after which the student is the teacher (T)"})
    classifier_lr: float = field(default=1e-4, metadata={"help": "learning rate of the student classifier"})
    alone_epochs: int = field(
        default=20, metadata={"help": "epochs that clients train alone before k-means on their models"}
    )


@dataclass(frozen=True)
class FedCGSettings(FedCGPaperSettings):
    """What we added to them, and what the paper leaves open (docs/results/fedcg.md)."""

    find: Literal["features", "classifier", "models", "oracle", "metadata"] = field(
        default="features",
        metadata={
            "help": "domains from clients' mean features, teacher and student, k-means on clients' models, the true "
            "groups, or metadata beside the samples"
        },
    )
    means: Literal["classes", "inputs"] = field(
        default="classes",
        metadata={
            "help": "mean features of each class (skewed and swapped labels are told from domains, clients tell label "
            "counts; domains may be found late), or of all inputs (groups that differ in labels alone are not seen)"
        },
    )
    sharpness: float = field(default=1.0, metadata={"help": "power of the similarities in A; 1 is equation 6"})
    few: float = field(
        default=0.0, metadata={"help": "a domain with n samples in a round keeps n / (n + few), at least beta; 0: beta"}
    )
    rank: int = field(default=16, metadata={"help": "rank of a low_rank W; keeps the first V where it is at least D"})
    w_limit: float = field(default=1.0, metadata={"help": "largest W of a layer, in GiB; more is refused"})
    bottleneck: int = field(default=16, metadata={"help": "by what the bottleneck divides the parameters"})
    start: ResidualStart = field(default="zero", metadata={"help": "first residuals: zero, or random as layers are"})
    averaging: Literal["clients", "domains", "reach"] = field(
        default="domains",
        metadata={
            "help": "average a domain's residuals over the clients that have samples of it (domains), over all "
            "(clients: copies that no client trained, too), or by A's reach"
        },
    )
    weight: Literal["judged", "learnt"] = field(
        default="judged",
        metadata={
            "help": "lambda as it is learnt, or (judged) only until clients' held-out loss says that less is better: "
            "then it is made smaller and held"
        },
    )
    routing: Literal["auto", "pooled", "mixed", "image"] = field(
        default="auto",
        metadata={"help": "domains of a client's images: one, a mixture, each by itself, or (auto) as the data look"},
    )
    features: int = field(default=256, metadata={"help": "random features that the student sees"})
    ridge: float = field(default=0.01, metadata={"help": "strength of the student's ridge, per sample"})
    balance: bool = field(
        default=False, metadata={"help": "have the teacher use all domains alike over the samples of all clients"}
    )

    counts: ClassVar[str] = "domains"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "robust": {},
        "paper": {
            "find": "classifier",
            "graph": "distance",
            "w": "per_filter",
            "sigma": "relu",
            "start": "random",
            "averaging": "domains",
            "weight": "learnt",
            "routing": "image",
            "aggregate": "mean",
        },
    }
    scenario_presets: ClassVar[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {
        "paper": {
            "femnist": {**_LEAF, "batch": 10, "fraction": 5},
            "celeba": {**_LEAF, "batch": 5, "fraction": 10},
        }
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

    @property
    def needs_groups(self) -> bool:
        """Only where the domains are the true groups."""
        return self.find == "oracle"

    def part_named(self, name: str) -> RoundMethod[Any] | None:
        """Ours: the method with as many domains as have been found by now."""
        return self if not name else self.part_of(name)

    def network(self, base: nn.Module) -> DomainNet:
        """A network with this method's domain layers."""
        first: FixedAdjacency = self.graph_start if self.graph == "distance" else self.graph
        joined = self.graph != "eye" or self.w != "none" or self.sigma != "none"
        adjacency = None if self.graph == "eye" else fixed_adjacency(first, self.domains, self.beta)
        graph = Graph(adjacency, self.w, self.sigma, self.bottleneck, self.rank, self.w_limit) if joined else None
        scale = self.scale if self.agnostic else None
        return fedcg(base, domains=self.domains, layers=self.layers, graph=graph, scale=scale, start=self.start)

    def blank(self, model: State) -> Domains:
        """A network, and nothing known of domains."""
        none = torch.zeros(0)
        return Domains(model, {}, {}, {}, none, none, self.routing == "pooled", [], {}, None)

"""The settings of MD-ICFL: the paper's with its symbols, then ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from coterie.core.federation import Federation
from coterie.core.samples import ClientId
from coterie.core.states import Stack
from coterie.methods.base import Trained
from coterie.methods.clustered import ModelPerCluster
from coterie.methods.counted import Counted, number_of
from coterie.methods.md_icfl.messages import Distanced

_CIFAR10 = ("swapped-rotated-cifar10", "rotated-cifar10", "swapped-cifar10", "cycled-cifar10")


@dataclass(frozen=True)
class MDICFLPaperSettings(ModelPerCluster[Distanced], Counted[Distanced]):
    """What the paper names. Of the shared settings, epochs is its E, batch its B, lr its mu, fraction its R."""

    k: int = field(default=4, metadata=number_of("clusters", "K"))
    sampling: Literal["back-search", "generator"] = field(
        default="back-search", metadata={"help": "samples by back-search (MD-ICFL-1) or by a generator (MD-ICFL-2)"}
    )
    privacy: Literal["weak", "strong"] = field(
        default="weak", metadata={"help": "weak: clients tell their label shares once; strong: never"}
    )
    per_class: int = field(default=10, metadata={"help": "samples per class and cluster (M; paper: 30)"})
    steps: int = field(default=100, metadata={"help": "Adam steps of the back-search from noise"})
    search_lr: float = field(default=0.1, metadata={"help": "learning rate of the back-search"})
    generator_steps: int = field(default=1000, metadata={"help": "Adam steps of a fresh generator"})
    generator_lr: float = field(default=0.01, metadata={"help": "learning rate of the generator"})
    generator_batch: int = field(default=100, metadata={"help": "batch size of the generator"})
    noise: int = field(default=16, metadata={"help": "noise inputs of the generator"})
    prior: float = field(default=0.1, metadata={"help": "strength of the prior (lambda)"})
    prior_mean: float | None = field(
        default=None, metadata={"help": "prior mean (mu) in the network's input space; none: asked of the clients once"}
    )


@dataclass(frozen=True)
class MDICFLSettings(MDICFLPaperSettings):
    """What we added to them. `preset=paper` turns all of it off."""

    start: Literal["shared", "independent"] = field(
        default="shared", metadata={"help": "one initial model for all clusters, or one each"}
    )
    seeding: Literal["none", "cosine", "cosine-labels"] = field(
        default="cosine",
        metadata={
            "help": "first clusters: random (the paper), by the cosine of updates, or that less what labels explain"
        },
    )
    label_noise: float = field(
        default=0.05, metadata={"help": "strong privacy: standard deviation of the noise on label shares, drawn once"}
    )
    agree: int = field(default=3, metadata={"help": "successive judgements that must give the same groups"})
    patience: int = field(default=10, metadata={"help": "judgements after which the seeding takes what it has"})
    hold: int = field(
        default=3, metadata={"help": "rounds of everybody for which seeded clusters are kept before distances count"}
    )
    doubt: float = field(
        default=3.0,
        metadata={"help": "deviations beyond the usual distance to its cluster from which a client is looked at again"},
    )
    margin: float = field(
        default=0.4, metadata={"help": "a seeded client is looked at again if another cluster is nearer by this share"}
    )
    trust: float = field(
        default=0.5,
        metadata={"help": "no seeded client moves while samples have a higher cross-entropy by their own model"},
    )
    warm_steps: int = field(
        default=20, metadata={"help": "steps from the last round's samples; 0: from noise every round"}
    )
    generator_warm_steps: int = field(
        default=100, metadata={"help": "steps of the last round's generator; 0: a fresh one every round"}
    )
    generator_hidden: int = field(default=256, metadata={"help": "width of the generator's hidden layer"})
    prior_squared: bool = field(default=False, metadata={"help": "square the norm of the prior"})
    clip: float = field(default=0.0, metadata={"help": "keep samples within +-clip; 0: free"})
    weighting: Literal["samples", "equal"] = field(
        default="samples", metadata={"help": "clients count by their samples, or all alike (the paper)"}
    )

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {
            "start": "independent", "seeding": "none", "privacy": "weak", "label_noise": 0.0, "weighting": "equal",
            "per_class": 30, "steps": 100, "warm_steps": 0, "search_lr": 0.1, "prior": 0.1, "prior_mean": 0.5,
            "generator_steps": 1000, "generator_warm_steps": 0, "generator_lr": 0.01, "generator_batch": 100,
            "noise": 16, "epochs": 2, "batch": 50, "lr": 0.1, "momentum": 0.0, "weight_decay": 0.0, "lr_decay": 1.0,
            "optimiser": "sgd", "aggregate": "mean",
        },
    }  # fmt: skip
    scenario_presets: ClassVar[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {
        "paper": {"multi-source-digits": {"epochs": 3}, **{name: {"epochs": 1} for name in _CIFAR10}}
    }

    @property
    def needs_classes(self) -> bool:
        """It makes samples of each class."""
        return True

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("agree", "patience", "per_class", "steps", "generator_steps", "generator_hidden", "noise"):
            self._require(getattr(self, key) >= 1, key, "be at least 1")
        for key in ("hold", "warm_steps", "generator_warm_steps", "prior", "clip", "trust", "doubt", "label_noise"):
            self._require(getattr(self, key) >= 0, key, "be at least 0")
        self._require(0 <= self.margin < 1, "margin", "lie in [0, 1)")
        for key in ("search_lr", "generator_lr"):
            self._require(getattr(self, key) > 0, key, "be above 0")
        self._require(self.generator_batch >= 2, "generator_batch", "be at least 2 (it is normalised)")
        self._require(
            self.seeding != "cosine-labels" or self.privacy == "weak", "seeding", "not need labels under strong privacy"
        )
        self._require(self.seeding == "none" or self.start == "shared", "start", "be shared where clusters are seeded")

    @property
    def seeded(self) -> bool:
        """Whether the first clusters are found by our seeding."""
        return self.seeding != "none" and self.k > 1

    def begun(self, fed: Federation, models: Stack, cluster: Mapping[ClientId, int]) -> Distanced:
        """Ours: groups that were found are kept for some rounds, as seeded ones are."""
        return Distanced(models, dict(cluster), {}, {}, held=self.held_until(fed, len(fed.sample(self.fraction))))

    def held_until(self, fed: Federation, participants: int) -> int:
        """The round until which groups that have just been found are kept."""
        return fed.round + 1 + ceil(self.hold * len(fed.ids) / max(1, participants))

    def weights(self, replies: Trained) -> Tensor:
        """What each client counts in a mean: its samples, or (the paper) 1."""
        return replies.size if self.weighting == "samples" else torch.ones_like(replies.size)

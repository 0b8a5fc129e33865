"""The settings of PANM: the paper's with its symbols, then ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from coterie.methods.p2p.base import PeerMethod
from coterie.methods.p2p.similarity import LossScore
from coterie.methods.panm.ours import Rules

_STRIDES = 1 + 5  # the first, and the last five


@dataclass(frozen=True)
class Matching:
    """A peer's neighbours N_i [C, w], its rounds so far [C], and whom it measured last with what result [C, m].

    Ours: the peers it met last [C, w] with their sketches [C, room, 2, length], how far it went in its last trainings
    [C, 6], and the share of those asked that answer [C].
    """

    neighbours: Tensor
    age: Tensor
    scored: Tensor
    similarity: Tensor
    met: Tensor
    looks: Tensor
    strides: Tensor
    rate: Tensor

    @classmethod
    def first(cls, peers: int, room: int, length: int) -> Matching:
        """Before the first round."""
        none = torch.empty(peers, 0, dtype=torch.int64)
        return cls(
            neighbours=none,
            age=torch.zeros(peers, dtype=torch.int64),
            scored=none,
            similarity=none.double(),
            met=none,
            looks=torch.zeros(peers, room, 2, length, dtype=torch.int8),
            strides=torch.zeros(peers, _STRIDES, dtype=torch.float64),
            rate=torch.ones(peers, dtype=torch.float64),
        )


@dataclass(frozen=True)
class PANMPaperSettings(PeerMethod[Matching]):
    """What the paper names. Of the settings of all peers, k and l are its k and l, epochs its e, lr its eta."""

    t1: int = field(default=10, metadata={"help": "rounds of stage one (T1)"})
    tau: int = field(default=2, metadata={"help": "in stage two neighbours are matched every tau rounds"})
    metric: Literal["grad", "loss"] = field(
        default="grad",
        metadata={"help": "similarity by directions of learning (grad) or by loss on the peer's own data"},
    )
    alpha: float = field(default=0.5, metadata={"help": "weight of the last update's direction in grad (alpha)"})


@dataclass(frozen=True)
class PANMSettings(PANMPaperSettings):
    """What we added to them. `preset=paper` turns all of it off."""

    weigh: Literal["fixed", "fisher", "late"] = field(
        default="late",
        metadata={
            "help": "weight of the last update: fixed at alpha; or at most alpha, by how well it separates neighbours, "
            "always (fisher) or in stage two (late)"
        },
    )
    loss_score: LossScore = field(
        default="inverse", metadata={"help": "similarity in loss: 1 / F (inverse) or -F (negative)"}
    )
    guard: float = field(
        default=1.5,
        metadata={
            "help": "a matching changes the list only if the groups' means are this many deviations apart; 0: always"
        },
    )
    monotone: bool = field(
        default=True,
        metadata={"help": "a similarity above the larger mean always matches, one below the smaller never"},
    )
    least_sigma: float = field(
        default=1e-3,
        metadata={"help": "least deviation of a group in the matching, as a share of the similarities' range; 0: none"},
    )
    fill: bool = field(
        default=True, metadata={"help": "with fewer than l neighbours, match with more candidates: 2 l models in all"}
    )

    sketch_length: int = field(
        default=512,
        metadata={"help": "numbers of each direction's sketch, by which neighbours are chosen; 0: by models (grad)"},
    )
    remember: int = field(default=40, metadata={"help": "peers whose sketches a peer remembers"})
    forget: float = field(
        default=3.0,
        metadata={"help": "restart a peer whose update is this many times its usual length (new data); 0: never"},
    )
    judge: Literal["train", "valid", "half"] = field(
        default="valid",
        metadata={
            "help": "data for loss: training, validation (training where there is none), or a half not trained on"
        },
    )

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {
            "weigh": "fixed", "guard": 0.0, "monotone": False, "least_sigma": 0.0, "fill": False, "sketch_length": 0,
            "forget": 0.0, "judge": "train",
            "t1": 100, "tau": 10, "alpha": 0.5, "k": 5, "l": 10,
            "epochs": 3, "batch": 128, "lr": 0.08, "momentum": 0.9, "weight_decay": 0.0, "lr_decay": 0.99,
            "optimiser": "sgd", "aggregate": "mean",
        },
    }  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.t1 >= 0, "t1", "be at least 0")
        self._require(self.tau >= 1, "tau", "be at least 1")
        self._require(0 <= self.alpha <= 1, "alpha", "lie in [0, 1]")
        self._require(self.guard >= 0, "guard", "be at least 0")
        self._require(0 <= self.least_sigma <= 1, "least_sigma", "lie in [0, 1]")

        self._require(self.sketch_length >= 0, "sketch_length", "be at least 0")
        self._require(self.remember >= 1, "remember", "be at least 1")
        self._require(self.forget == 0 or self.forget > 1, "forget", "be above 1, or 0")

    @property
    def sketches(self) -> bool:
        """Whether peers look at sketches before they ask for models; a loss needs the models."""
        return self.sketch_length > 0 and self.metric == "grad"

    @property
    def rules(self) -> Rules:
        """What we add to the matching."""
        return Rules(self.guard, self.monotone, self.least_sigma)

    def compared(self, node: Matching, known: Tensor) -> Tensor | None:
        """The neighbours by whom alpha is weighed; None: alpha is fixed, as in the paper.

        "late": none in stage one, where the noise of theta1 has its use: by theta2 alone, who was averaged once stays
        the most similar for good, and a group falls into cliques.
        """
        if self.weigh == "fixed":
            return None
        return known & (node.age >= self.t1)[:, None] if self.weigh == "late" else known

"""The settings of embedding clustering: the paper's with its symbols, then ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from coterie.core.errors import CoterieError
from coterie.core.optimiser import Optimiser
from coterie.core.task import Task
from coterie.methods.clustered import AverageInClusters
from coterie.methods.embedding.messages import EmbeddedClusters
from coterie.methods.embedding.privacy import check_flip


@dataclass(frozen=True)
class EmbeddingPaperSettings(AverageInClusters[EmbeddedClusters]):
    """What the paper and its authors' code set. Of the shared settings, fraction is the paper's m (of N clients)."""

    autoencoder: str = field(
        default="", metadata={"help": "autoencoder of `coterie list models`; empty: by input shape"}
    )
    pretraining: Literal["federated", "public", "hybrid"] = field(
        default="federated",
        metadata={"help": "train the autoencoder over the clients' data, on a public set, or (ours) on both in turn"},
    )
    public: str = field(default="", metadata={"help": "public set: a dataset's name, or a folder of images by class"})
    public_epochs: int = field(default=20, metadata={"help": "epochs on the public set"})
    encoder_rounds: int = field(default=10, metadata={"help": "rounds of federated pre-training"})
    encoder_fraction: float = field(default=0.5, metadata={"help": "clients per pre-training round, as for fraction"})
    encoder_epochs: int = field(default=3, metadata={"help": "local epochs of a pre-training round"})
    encoder_batch: int = field(default=32, metadata={"help": "batch size of pre-training"})
    encoder_lr: float = field(default=3e-3, metadata={"help": "learning rate of pre-training (Adam)"})
    flip: float = field(default=0.1, metadata={"help": "probability P that a bit is flipped, 0 to 0.5"})
    min_size: int = field(
        default=0, metadata={"help": "least cluster size of rules paper, bayes, silhouette; 0: a tenth"}
    )
    shared: int = field(default=0, metadata={"help": "first parameter tensors that all clusters share (authors: 4)"})


@dataclass(frozen=True)
class EmbeddingSettings(EmbeddingPaperSettings):
    """What we added to them."""

    rule: Literal[
        "either", "halves", "paper", "height_ratio", "calinski_harabasz", "silhouette", "bayes", "mixture"
    ] = field(
        default="either",
        metadata={"help": "how the number of clusters is chosen; paper and bayes are the paper's, the others ours"},
    )
    encoder: str = field(default="", metadata={"help": "file of a trained autoencoder to start from"})
    public_root: str = field(default="", metadata={"help": "data root of the public set (default: as for scenarios)"})
    encoder_steps: int = field(default=60, metadata={"help": "more epochs on small clients, up to so many steps"})
    encoder_scale: float = field(default=0.0, metadata={"help": "brings raw inputs to [0, 1]; 0: as the scenario's"})
    flips: tuple[tuple[str, float], ...] = field(
        default=(), metadata={"help": "clients with a P of their own, client:P, such as 07:0.2,12:0"}
    )
    newcomers: Literal["found", "nearest"] = field(
        default="found",
        metadata={"help": "several newcomers unlike all others found a cluster, or all go to the nearest (paper)"},
    )
    copies: int = field(
        default=3,
        metadata={
            "help": "rules either and mixture: how often a code is sent at most, in the place of missing classes"
        },
    )
    blocks: int = field(default=8, metadata={"help": "of numbers to predict: blocks by quantile, in place of classes"})
    reembed: int = field(default=0, metadata={"help": "clients embed again every so many rounds (drift); 0: never"})

    # Table I and section V; the optimiser, the batch and the pre-training, on which the paper is silent, by the code
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {
            "rule": "paper", "flip": 0.1, "shared": 0, "newcomers": "nearest", "fraction": 0.5,
            "pretraining": "federated", "encoder_rounds": 10, "encoder_fraction": 0.5, "encoder_epochs": 3,
            "encoder_steps": 1, "encoder_batch": 32, "encoder_lr": 1e-3,
            "epochs": 5, "batch": 32, "lr": 1e-3, "momentum": 0.0, "weight_decay": 0.0, "lr_decay": 1.0,
            "optimiser": "adam", "aggregate": "mean",
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
        for key in ("encoder_steps", "encoder_batch", "blocks", "copies"):
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

    def tells_classes(self, task: Task) -> bool:
        """Whether clients also say, in one flipped bit a class, which classes they hold, and send `copies`."""
        return self.rule in ("either", "mixture") and task.kind in ("classification", "binary")

    def blocks_of(self, task: Task) -> int:
        """How many mean codes a client sends: one a class or label; of a number to predict, one a quantile."""
        if task.kind != "regression":
            return task.classes
        return self.blocks if task.classes == 1 else 1

    def flip_of(self, client: str) -> float:
        """P of one client."""
        return dict(self.flips).get(client, self.flip)

    def encoder_opt(self, samples: int) -> Optimiser:
        """Local training of the autoencoder on so many samples."""
        steps = -(-max(samples, 1) // self.encoder_batch)
        epochs = max(self.encoder_epochs, -(-self.encoder_steps // steps))
        return Optimiser(epochs, self.encoder_batch, self.encoder_lr, kind="adam")

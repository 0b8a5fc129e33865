"""The networks that public federated benchmarks train, each with its usual batch and random data of its kind.

Training time does not depend on what is in the data. Needs torch and `coterie.models`, which needs torch alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from coterie.models import build_model

_CATEGORIES, _COLUMNS, _NUMBERS = 20, 8, 6


@dataclass(frozen=True)
class Case:
    """A network, what it reads, and one client's share of a round."""

    title: str
    source: str
    """Who trains it."""
    shape: tuple[int, ...]
    classes: int
    batch: int
    samples: int
    reads: Literal["images", "tokens", "columns"] = "images"
    model: str = ""
    """Its name in `coterie list models`; empty: `TabularNet`."""

    def build(self) -> nn.Module:
        """The network."""
        return build_model(self.model, self.shape, self.classes) if self.model else TabularNet(self.classes)

    def data(self, generator: torch.Generator, rows: int) -> tuple[Tensor, Tensor]:
        """Raw inputs and labels."""
        y = torch.randint(0, self.classes, (rows,), generator=generator)
        if self.reads == "images":
            return torch.randint(0, 256, (rows, *self.shape), generator=generator, dtype=torch.uint8), y
        if self.reads == "tokens":
            return torch.randint(0, self.classes, (rows, *self.shape), generator=generator), y
        names = torch.randint(0, _CATEGORIES, (rows, _COLUMNS), generator=generator).float()
        return torch.cat([names, torch.randn(rows, _NUMBERS, generator=generator)], 1), y

    def ready(self, x: Tensor) -> Tensor:
        """What the network reads."""
        return (x.float() / 255 - 0.5) / 0.5 if self.reads == "images" else x


class TabularNet(nn.Module):
    """An embedding for each column of names, beside columns of numbers, then an MLP."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(_CATEGORIES, 8) for _ in range(_COLUMNS))
        width = 8 * _COLUMNS + _NUMBERS
        self.layers = nn.Sequential(
            nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Logits of rows whose first columns are the numbers of names."""
        names = x[:, :_COLUMNS].long()
        found = [embedding(names[:, column]) for column, embedding in enumerate(self.embeddings)]
        out: Tensor = self.layers(torch.cat([*found, x[:, _COLUMNS:]], 1))
        return out


_LEAF, _TFF = "LEAF", "TensorFlow Federated"
_GREY, _COLOUR = (1, 28, 28), (3, 32, 32)
_ALL = (
    Case("MLP 784-200-200-10", "FedAvg", _GREY, 10, 32, 600, model="mlp"),
    Case("LeNet-5", "many", _GREY, 10, 32, 300, model="lenet5"),
    Case("LeNet-5 of 1998", "LeCun et al. 1998", _GREY, 10, 32, 300, model="lenet5-1998"),
    Case("FedAvg's CNN", "FedAvg", _GREY, 10, 10, 60, model="fedavg-cnn"),
    Case("EMNIST CNN with dropout", f"{_TFF}, fedjax", _GREY, 62, 20, 60, model="emnist-cnn"),
    Case("FEMNIST CNN", _LEAF, _GREY, 62, 10, 60, model="leaf-femnist"),
    Case("CIFAR CNN", "PENS, PANM", _COLOUR, 10, 64, 128, model="pens-cnn"),
    Case("CelebA CNN, BatchNorm", _LEAF, (3, 84, 84), 2, 10, 30, model="leaf-celeba"),
    Case("ResNet-8, BatchNorm", "usual for CIFAR-10", _COLOUR, 10, 32, 64, model="resnet8"),
    Case("ResNet-8, GroupNorm", "usual for CIFAR-10", _COLOUR, 10, 32, 64, model="resnet8-gn"),
    Case("ResNet-18, GroupNorm", _TFF, _COLOUR, 10, 20, 20, model="resnet18-gn"),
    Case("MobileNetV2", "Sandler et al. 2018", _COLOUR, 10, 32, 32, model="mobilenetv2"),
    Case("character LSTM", _LEAF, (80,), 80, 10, 40, "tokens", "char-lstm"),
    Case("next-word LSTM", _TFF, (20,), 10_004, 16, 48, "tokens", "word-lstm"),
    Case("small transformer", "ours", (64,), 80, 16, 64, "tokens", "char-transformer"),
    Case("tabular MLP with embeddings", "ours", (_COLUMNS + _NUMBERS,), 2, 32, 600, "columns"),
)
CASES: dict[str, Case] = {case.model or "tabular": case for case in _ALL}

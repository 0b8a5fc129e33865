"""The work every library does: the clients' images, the models, and what a script reports. Needs torch alone."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CLIENTS, SAMPLES, SAMPLED = 100, 600, 10
BATCH, RATE, CLASSES = 32, 0.1, 10
STEPS_PER_ROUND = SAMPLED * -(-SAMPLES // BATCH)
_JUDGED = 2000


@dataclass(frozen=True)
class Options:
    """What one run of a script does, and how much of the machine it takes."""

    model: str
    rounds: int
    threads: int
    workers: int


class Images(NamedTuple):
    """All clients' images, [clients, samples, 1, 28, 28], and their labels."""

    x: Tensor
    y: Tensor

    def client(self, index: int) -> tuple[Tensor, Tensor]:
        """One client's part."""
        return self.x[index], self.y[index]


def options() -> Options:
    """The command line of every script; torch takes the asked number of threads."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=("lenet5", "mlp"), required=True)
    parser.add_argument("--rounds", type=int, required=True, help="timed rounds, after one that is not")
    parser.add_argument("--threads", type=int, default=1, help="torch threads of each process")
    parser.add_argument("--workers", type=int, default=1, help="processes, where the library has them")
    found = Options(**vars(parser.parse_args()))
    torch.set_num_threads(found.threads)
    return found


def bytes_images() -> Images:
    """Blurred prototypes of ten classes under noise, as bytes: as large as MNIST, and learnable within a few rounds."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(CLASSES, 1, 7, 7, generator=generator)
    prototypes = F.interpolate(coarse, size=(28, 28), mode="bilinear") * 255
    y = torch.randint(0, CLASSES, (CLIENTS, SAMPLES), generator=generator)
    x = torch.empty(CLIENTS, SAMPLES, 1, 28, 28, dtype=torch.uint8)
    for client in range(CLIENTS):
        noise = torch.randn(SAMPLES, 1, 28, 28, generator=generator) * 50
        x[client] = (prototypes[y[client]] + noise).clamp(0, 255).to(torch.uint8)
    return Images(x, y)


def float_images() -> Images:
    """The same images, normalised once and for all: the libraries are spared that work."""
    raw = bytes_images()
    return Images((raw.x.float() / 255 - 0.5) / 0.5, raw.y)


def layers(model: str) -> list[nn.Module]:
    """The layers of LeNet-5 for 28 x 28 images, or of the MLP 784-200-200-10."""
    if model == "mlp":
        return [
            nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, CLASSES),
        ]  # fmt: skip
    return [
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, CLASSES),
    ]  # fmt: skip


def network(model: str) -> nn.Sequential:
    """A network with the same initial weights in every library."""
    torch.manual_seed(0)
    return nn.Sequential(*layers(model))


class CountedLoss(nn.CrossEntropyLoss):
    """Cross-entropy that counts its calls: one per step."""

    steps = 0

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The mean loss of a batch."""
        type(self).steps += 1
        return super().forward(input, target)


@torch.no_grad()
def judge(model: nn.Module, images: Images) -> float:
    """The loss on some of the images, outside the timed part: it tells whether the library really trained."""
    x, y = images.x.flatten(0, 1)[:_JUDGED], images.y.flatten()[:_JUDGED]
    return float(F.cross_entropy(model.eval()(x), y))


def report(package: str, times: Sequence[float], steps: int, before: float, after: float) -> None:
    """Print the one line the benchmark reads. `times` are when rounds ended; up to the first of them is warm-up."""
    seconds = [end - start for start, end in pairwise(times)]
    line = {"version": version(package), "seconds": seconds, "steps": steps, "before": before, "after": after}
    sys.stdout.write("\n" + json.dumps(line) + "\n")
    sys.stdout.flush()

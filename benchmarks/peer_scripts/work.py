"""The work every library does: the clients' images, the models, and what a script reports. Needs torch alone.

Only the networks of networks.py also need `coterie.models`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from benchmarks.peer_scripts.networks import Case

_CLIENTS, _SAMPLES, _SAMPLED = 100, 600, 10
_BATCH, _RATE, _CLASSES = 32, 0.1, 10
JUDGED = 2000


@dataclass(frozen=True)
class Options:
    """What one run of a script does, and how much of the machine it takes."""

    model: str
    rounds: int
    threads: int
    workers: int


class Instant(NamedTuple):
    """A moment on the wall's clock and on this process's own."""

    wall: float
    processor: float


class Images(NamedTuple):
    """All clients' images, [clients, samples, channels, height, width], and their labels."""

    x: Tensor
    y: Tensor

    def client(self, index: int) -> tuple[Tensor, Tensor]:
        """One client's part."""
        return self.x[index], self.y[index]


def options() -> Options:
    """The command line of every script; torch takes the asked number of threads."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True, help="lenet5, mlp, or one of networks.py")
    parser.add_argument("--rounds", type=int, required=True, help="timed rounds, after one that is not")
    parser.add_argument("--threads", type=int, default=1, help="torch threads of each process")
    parser.add_argument("--workers", type=int, default=1, help="processes or threads, where the library has them")
    found = Options(**vars(parser.parse_args()))
    torch.set_num_threads(found.threads)
    return found


def bytes_images(shape: Sequence[int], classes: int, clients: int, samples: int) -> Images:
    """Blurred prototypes of each class under noise, as bytes: as large as MNIST, and learnable within a few rounds."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(classes, shape[0], 7, 7, generator=generator)
    prototypes = F.interpolate(coarse, size=tuple(shape[1:]), mode="bilinear") * 255
    y = torch.randint(0, classes, (clients, samples), generator=generator)
    x = torch.empty(clients, samples, *shape, dtype=torch.uint8)
    for client in range(clients):
        noise = torch.randn(samples, *shape, generator=generator) * 50
        x[client] = (prototypes[y[client]] + noise).clamp(0, 255).to(torch.uint8)
    return Images(x, y)


def layers(model: str) -> list[nn.Module]:
    """The layers of LeNet-5 for 28 x 28 images, or of the MLP 784-200-200-10."""
    if model == "mlp":
        return [
            nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, _CLASSES),
        ]  # fmt: skip
    return [
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, _CLASSES),
    ]  # fmt: skip


@dataclass(frozen=True)
class Job:
    """A model with its clients: of MNIST's size, 10 of 100 a round; or one of networks.py, 2 of 4 a round."""

    model: str

    @property
    def case(self) -> Case | None:
        """Where the model is one of networks.py."""
        if self.model in ("lenet5", "mlp"):
            return None
        from benchmarks.peer_scripts.networks import CASES

        return CASES[self.model]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one input."""
        return self.case.shape if self.case else (1, 28, 28)

    @property
    def classes(self) -> int:
        """How many there are."""
        return self.case.classes if self.case else _CLASSES

    @property
    def clients(self) -> int:
        """How many there are."""
        return 4 if self.case else _CLIENTS

    @property
    def samples(self) -> int:
        """Of each client."""
        return self.case.samples if self.case else _SAMPLES

    @property
    def sampled(self) -> int:
        """How many clients a round has."""
        return 2 if self.case else _SAMPLED

    @property
    def share(self) -> float:
        """The same as a part of all."""
        return self.sampled / self.clients

    @property
    def batch(self) -> int:
        """Samples of a step."""
        return self.case.batch if self.case else _BATCH

    @property
    def rate(self) -> float:
        """The learning rate."""
        return _RATE if not self.case else 0.001 if self.model == "resnet18-gn" else 0.01

    @property
    def steps(self) -> int:
        """Of a round, by all its clients."""
        return self.sampled * -(-self.samples // self.batch)

    def raw(self) -> Images:
        """All clients' data as they are kept."""
        if not self.case or self.case.reads == "images":
            return bytes_images(self.shape, self.classes, self.clients, self.samples)
        x, y = self.case.data(torch.Generator().manual_seed(0), self.clients * self.samples)
        return Images(x.unflatten(0, (self.clients, -1)), y.unflatten(0, (self.clients, -1)))

    def ready(self) -> Images:
        """All clients' data as networks read them, once and for all: the libraries are spared that work."""
        raw = self.raw()
        return Images((raw.x.float() / 255 - 0.5) / 0.5 if raw.x.dtype is torch.uint8 else raw.x, raw.y)

    def layers(self) -> list[nn.Module]:
        """The network, as modules to be called one after the other."""
        return [self.case.build()] if self.case else layers(self.model)

    def network(self) -> nn.Sequential:
        """The network, with the same initial weights in every library."""
        torch.manual_seed(0)
        return nn.Sequential(*self.layers())


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
    x, y = images.x.flatten(0, 1)[:JUDGED], images.y.flatten()[:JUDGED]
    return float(F.cross_entropy(model.eval()(x), y))


def now() -> Instant:
    """The present moment."""
    return Instant(time.perf_counter(), time.process_time())


def report(package: str, times: Sequence[Instant], steps: int, before: float, after: float) -> None:
    """Print the one line the benchmark reads. `times` are when rounds ended; up to the first of them is warm-up."""
    seconds = [end.wall - start.wall for start, end in pairwise(times)]
    processor = [end.processor - start.processor for start, end in pairwise(times)]
    line: dict[str, object] = {"version": version(package), "seconds": seconds, "processor": processor}
    line |= {"steps": steps, "before": before, "after": after}
    sys.stdout.write("\n" + json.dumps(line) + "\n")
    sys.stdout.flush()

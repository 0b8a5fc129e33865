"""Domains of images: groups of clients by their mean features, a student fitted from sums, and measures of collapse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.report.panels import Heatmap, Lines, Panel, Table
from coterie.rng import torch_rng
from coterie.states import State

_SIDE = 14
"""Images are looked at in at most so many pixels a side."""
_GAIN, _SHIFT = 1.5, 0.5
_SMALLEST_SCALE = 1e-3
_FLOOR = 0.02
"""The least probability of a domain: a single odd image must not outvote all others of its client."""


@lru_cache(maxsize=4)
def _projection(seed: int, inputs: int, features: int) -> tuple[Tensor, Tensor]:
    generator = torch_rng(seed, "domain features", inputs, features)
    directions = torch.randn(inputs, features, generator=generator) * (_GAIN / inputs**0.5)
    return directions, torch.randn(features, generator=generator) * _SHIFT


def features_of(inputs: Tensor, seed: int, features: int) -> Tensor:
    """Random rectified features of small versions of the inputs, the same for everyone who knows the seed."""
    if inputs.dim() == 4 and max(inputs.shape[2:]) > _SIDE:
        inputs = F.adaptive_avg_pool2d(inputs, _SIDE)
    pixels = inputs.reshape(len(inputs), -1).float()
    directions, shift = _projection(seed, pixels.shape[1], features)
    return F.relu(pixels @ directions + shift)


def triangle(products: Tensor) -> Tensor:
    """The upper half of symmetric matrices [..., h, h] in one row each: half the bytes."""
    rows, columns = torch.triu_indices(products.shape[-1], products.shape[-1])
    return products[..., rows, columns]


def square(upper: Tensor, size: int) -> Tensor:
    """The inverse of `triangle`."""
    rows, columns = torch.triu_indices(size, size)
    whole = upper.new_zeros(*upper.shape[:-1], size, size)
    whole[..., rows, columns] = upper
    whole[..., columns, rows] = upper
    return whole


@dataclass(frozen=True)
class Moments:
    """What the server has learnt of clients' features: a sum and a number for each, and sums over all of them.

    `products` is the sum of x x^T over all samples, `within` the sum over clients of their own covariance.
    """

    total: Tensor
    number: Tensor
    products: Tensor
    within: Tensor

    @classmethod
    def of(cls, total: Tensor, products: Tensor, number: Tensor) -> Moments:
        """From every client's own sums: [C, h], [C, h, h], [C]."""
        total, products, number = total.double(), products.double(), number.double()
        mean = total / number.clamp_min(1)[:, None]
        own = products - number[:, None, None] * mean[:, :, None] * mean[:, None, :]
        return cls(total, number, products.sum(0), (own / (number - 1).clamp_min(1)[:, None, None]).sum(0))

    def plus(self, other: Moments) -> Moments:
        """With further clients."""
        return Moments(
            torch.cat([self.total, other.total]),
            torch.cat([self.number, other.number]),
            self.products + other.products,
            self.within + other.within,
        )


@dataclass(frozen=True)
class Found:
    """Domains of clients, and the student that tells them.

    `unevenness` says how much farther clients lie from the centre of their domain than chance explains: about 1 where
    every client has one domain, clearly more where clients mix several.
    """

    labels: Tensor
    student: State
    unevenness: float


def find_domains(moments: Moments, domains: int, seed: int, ridge: float) -> Found:
    """k-means on the clients' mean features, then a ridge regression from features to domains out of the sums."""
    width, number = moments.total.shape[1], moments.number
    samples = float(number.sum())
    mean = moments.total.sum(0) / max(samples, 1)
    scale = (moments.products.diagonal() / max(samples, 1) - mean**2).clamp_min(0).sqrt() + _SMALLEST_SCALE
    centred = (moments.total / number.clamp_min(1)[:, None] - mean) / scale
    labels = kmeans(centred[number > 0], domains, seed)
    filled = torch.zeros(len(number), dtype=torch.int64)
    filled[number > 0] = labels
    # sums of standardised features and a constant 1
    sums = torch.cat([centred * number[:, None], number[:, None]], dim=1)
    gram = torch.zeros(width + 1, width + 1, dtype=torch.float64)
    gram[:-1, :-1] = (moments.products - samples * torch.outer(mean, mean)) / torch.outer(scale, scale)
    gram[-1, -1] = samples
    targets = torch.zeros(width + 1, domains, dtype=torch.float64).index_add_(1, filled, sums.T)
    weight = torch.linalg.solve(gram + ridge * max(samples, 1) * torch.eye(width + 1, dtype=torch.float64), targets)
    student = {"mean": mean.float(), "scale": scale.float(), "weight": weight.float()}
    within = moments.within / torch.outer(scale, scale)
    chance = float((weight[:-1] * (within @ weight[:-1])).sum())
    means = torch.cat([centred, torch.ones_like(centred[:, :1])], dim=1) @ weight
    share = F.one_hot(filled, domains).double() * number[:, None]
    centre = (share.T @ means) / share.sum(0).clamp_min(1)[:, None]
    excess = float((number * ((means - centre[filled]) ** 2).sum(1)).sum())
    return Found(filled, student, excess / chance if chance > 0 else 1.0)


def kmeans(points: Tensor, groups: int, seed: int) -> Tensor:
    """The group of every point; fewer groups than asked for where there are fewer different points."""
    if not len(points):
        return torch.zeros(0, dtype=torch.int64)
    exact = points.double().numpy()
    different = len(np.unique(exact, axis=0))
    from sklearn.cluster import KMeans

    fitted = KMeans(min(groups, different), n_init=10, random_state=seed).fit(exact)
    return torch.from_numpy(fitted.labels_.astype(np.int64))


def posterior(student: State, features: Tensor) -> Tensor:
    """How probable each domain is for each sample, [n, D]."""
    standard = (features - student["mean"]) / student["scale"]
    scores = (standard @ student["weight"][:-1] + student["weight"][-1]).clamp_min(_FLOOR)
    return scores / scores.sum(1, keepdim=True)


def pool(probabilities: Tensor) -> Tensor:
    """The probabilities for samples that all belong to one domain, the same for every sample."""
    together = F.softmax(probabilities.double().clamp_min(1e-12).log().sum(0), 0)
    return together.to(probabilities.dtype).expand_as(probabilities)


def balanced(probabilities: Tensor, rounds: int = 50) -> Tensor:
    """Labels with all domains equally large: Sinkhorn's balancing of the probabilities, as in self-labelling."""
    plan = probabilities.double().clamp_min(1e-12)
    for _ in range(rounds):
        plan = plan / plan.sum(0, keepdim=True)
        plan = plan / plan.sum(1, keepdim=True)
    return plan.argmax(1)


def evenness(counts: Tensor) -> float:
    """The entropy of a histogram relative to its largest: 1 is even, 0 is collapsed to one domain."""
    shares = counts.double() / counts.sum().clamp_min(1)
    entropy = -(shares * shares.clamp_min(1e-12).log()).sum()
    return float(entropy.clamp_min(0) / np.log(len(counts))) if len(counts) > 1 else 1.0


def domain_panels(
    history: Mapping[str, Sequence[float]], samples: Sequence[float], adjacency: Tensor | None
) -> list[Panel]:
    """How evenly domains were used in every round, how much the residuals weigh, and who is joined to whom."""
    curves = {key: list(history[key]) for key in ("largest domain", "evenness", "agreement") if key in history}
    if not curves:
        return []
    rounds = [float(number + 1) for number in range(len(curves["evenness"]))]
    shown: list[Panel] = [
        Lines("how evenly domains are used", rounds, dict(curves)),
        Lines("weight of the residuals (lambda, mean over layers)", rounds, {"lambda": history["lambda"]}),
        Table("samples of the last round by domain", ["domain", "samples"], list(enumerate(samples))),
    ]
    if adjacency is not None:
        shown.append(Heatmap("adjacency of the domains", adjacency.tolist()))
    return shown

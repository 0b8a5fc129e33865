"""Ours, not in the paper: domains of images as groups of clients by their mean features, a student fitted from sums.

`kmeans` serves the paper's baseline of Table 4, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.core.groupings import different, k_means
from coterie.core.rng import torch_rng
from coterie.core.states import State

_SIDE = 14
"""Images are looked at in at most so many pixels a side."""
_GAIN, _SHIFT = 1.5, 0.5
SMALLEST_SCALE = 1e-3
_FLOOR = 0.02
"""The least probability of a domain: a single odd image must not outvote all others of its client."""

_SHARPER = 3
_FITS = 30
_SUMS_TO_ONE = 10.0
UNEVEN = 2.5
"""Clients whose means scatter more than this many times what chance explains mix several domains."""


@lru_cache(maxsize=4)
def _projection(seed: int, inputs: int, features: int) -> tuple[Tensor, Tensor]:
    generator = torch_rng(seed, "domain features", inputs, features)
    directions = torch.randn(inputs, features, generator=generator) * (_GAIN / inputs**0.5)
    return directions, torch.randn(features, generator=generator) * _SHIFT


def features_of(inputs: Tensor, seed: int, features: int) -> Tensor:
    """Random rectified features of small versions of the inputs, the same for everyone who knows the seed."""
    if inputs.dim() == 4 and max(inputs.shape[2:]) > _SIDE:
        inputs = F.adaptive_avg_pool2d(inputs, _SIDE)
    pixels = inputs.flatten(1).float()
    directions, shift = _projection(seed, int(pixels.shape[1]), features)  # in a recording it is no plain number
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
    every client has one domain, clearly more where clients mix several. `shares` [C, D] are the domains of each
    client: one alone, or a mixture where they are uneven.
    """

    shares: Tensor
    student: State
    unevenness: float

    @property
    def labels(self) -> Tensor:
        """The domain that most of a client's samples have, [C]."""
        return self.shares.argmax(1)


def find_domains(moments: Moments, domains: int, seed: int, ridge: float) -> Found:
    """Domains of the clients from their mean features, then a ridge regression to them out of the sums.

    k-means where every client has one domain. Where clients mix several, their means lie inside of a simplex whose
    corners are the domains; then the shares come from there, and the regression, which sees no sample's own domain,
    is put right by what it must confuse (as one learns from label proportions).
    """
    number = moments.number
    mean, scale, centred = _standard(moments)
    present = number > 0
    shares = torch.zeros(len(number), domains, dtype=torch.float64)
    shares[:, 0] = 1.0
    shares[present] = F.one_hot(kmeans(centred[present], domains, seed), domains).double()
    weight = _ridge(moments, mean, scale, centred, shares, ridge)
    unevenness = _unevenness(moments, scale, centred, shares, weight)
    if unevenness > UNEVEN:
        shares[present] = simplex_shares(centred[present], number[present], domains)
        weight = _ridge(moments, mean, scale, centred, shares, ridge) @ torch.linalg.pinv(_confusion(shares, number))
    return Found(shares, _student(mean, scale, weight), unevenness)


def student_of(total: Tensor, number: Tensor, products: Tensor, ridge: float) -> State:
    """The student of known domains: sums [D, h] and samples [D] of each, and the sum of x x^T over all samples."""
    moments = Moments(total.double(), number.double(), products.double(), torch.zeros_like(products.double()))
    mean, scale, centred = _standard(moments)
    shares = torch.eye(len(number), dtype=torch.float64)
    return _student(mean, scale, _ridge(moments, mean, scale, centred, shares, ridge))


def _student(mean: Tensor, scale: Tensor, weight: Tensor) -> State:
    return {"mean": mean.float(), "scale": scale.float(), "weight": weight.float()}


def _standard(moments: Moments) -> tuple[Tensor, Tensor, Tensor]:
    """The mean and deviation of all samples, and the clients' means in these units."""
    samples = max(float(moments.number.sum()), 1.0)
    mean = moments.total.sum(0) / samples
    scale = (moments.products.diagonal() / samples - mean**2).clamp_min(0).sqrt() + SMALLEST_SCALE
    return mean, scale, (moments.total / moments.number.clamp_min(1)[:, None] - mean) / scale


def _ridge(moments: Moments, mean: Tensor, scale: Tensor, centred: Tensor, shares: Tensor, ridge: float) -> Tensor:
    """From standardised features and a constant 1 to the shares of the client that a sample is of, [h + 1, D]."""
    width, samples = len(mean), float(moments.number.sum())
    sums = torch.cat([centred * moments.number[:, None], moments.number[:, None]], dim=1)
    gram = torch.zeros(width + 1, width + 1, dtype=torch.float64)
    gram[:-1, :-1] = (moments.products - samples * torch.outer(mean, mean)) / torch.outer(scale, scale)
    gram[-1, -1] = samples
    gram += ridge * max(samples, 1) * torch.eye(width + 1, dtype=torch.float64)
    weight: Tensor = torch.linalg.solve(gram, sums.T @ shares)
    return weight


def _confusion(shares: Tensor, number: Tensor) -> Tensor:
    """The mean shares of the clients that a sample of each domain is of, [D, D]; the identity without mixtures."""
    each = shares * number[:, None]
    confusion: Tensor = (each.T @ shares) / each.sum(0).clamp_min(1)[:, None]
    return confusion


def _unevenness(moments: Moments, scale: Tensor, centred: Tensor, shares: Tensor, weight: Tensor) -> float:
    chance = float((weight[:-1] * (moments.within / torch.outer(scale, scale) @ weight[:-1])).sum())
    means = torch.cat([centred, torch.ones_like(centred[:, :1])], dim=1) @ weight
    each = shares * moments.number[:, None]
    centre = (each.T @ means) / each.sum(0).clamp_min(1)[:, None]
    excess = float((moments.number * ((means - shares @ centre) ** 2).sum(1)).sum())
    return excess / chance if chance > 0 else 1.0


def simplex_shares(points: Tensor, sizes: Tensor, corners: int) -> Tensor:
    """Points [C, h] as mixtures of `corners` unknown ones, [C, D]: rows are at least 0 and sum to 1.

    Successive projections find points near the corners of the simplex that holds all of them; then shares and corners
    are fitted in turn (least squares; a large extra coordinate makes shares sum to 1).
    """
    from scipy.optimize import nnls

    corners = min(corners, len(points))
    exact = points.double() - points.double().mean(0)
    plane = torch.linalg.svd(exact, full_matrices=False).Vh[: max(corners - 1, 1)]
    flat = exact @ plane.T
    far = max(float(flat.norm(dim=1).max()), 1e-12)
    lifted = torch.cat([flat, torch.full((len(flat), 1), _SUMS_TO_ONE * far, dtype=torch.float64)], dim=1)
    left, chosen = lifted.clone(), []
    left[:, -1] = far
    for _ in range(corners):
        chosen.append(int(left.norm(dim=1).argmax()))
        direction = F.normalize(left[chosen[-1]], dim=0)
        left = left - torch.outer(left @ direction, direction)
    found, heavy = lifted[chosen], sizes.double().sqrt()[:, None]
    shares = torch.zeros(len(points), corners, dtype=torch.float64)
    for _ in range(_FITS):
        basis = found.T.numpy()
        shares = torch.tensor(np.array([nnls(basis, point)[0] for point in lifted.numpy()]))
        shares = shares / shares.sum(1, keepdim=True).clamp_min(1e-12)
        found = torch.linalg.lstsq(shares * heavy, lifted * heavy, driver="gelsd").solution
        found[:, -1] = _SUMS_TO_ONE * far
    return shares


def kmeans(points: Tensor, groups: int, seed: int) -> Tensor:
    """The group of every point; fewer groups than asked for where there are fewer different points."""
    if not len(points):
        return torch.zeros(0, dtype=torch.int64)
    return k_means(points, min(groups, different(points)), seed)[0]


def posterior(student: State, features: Tensor) -> Tensor:
    """How probable each domain is for each sample, [n, D]."""
    standard = (features - student["mean"]) / student["scale"]
    scores = (standard @ student["weight"][:-1] + student["weight"][-1]).clamp_min(_FLOOR)
    return scores / scores.sum(1, keepdim=True)


def pool(probabilities: Tensor) -> Tensor:
    """The probabilities for samples that all belong to one domain, the same for every sample."""
    together = F.softmax(probabilities.double().clamp_min(1e-12).log().sum(0), 0)
    return together.to(probabilities.dtype).expand_as(probabilities)


def mix(probabilities: Tensor, rounds: int = 50) -> Tensor:
    """The probabilities for samples of one client that mixes domains: its shares, found by EM, weigh each sample's own.

    The ridge's scores are milder than probabilities; their third power was the best of 1 to 6 on mixed rotations.
    """
    likely = probabilities.double() ** _SHARPER
    share = torch.ones_like(likely[:1]) / likely.shape[1]
    told = likely
    for _ in range(rounds):
        told = likely * share
        told = told / told.sum(1, keepdim=True)
        share = told.mean(0, keepdim=True).clamp_min(1e-3)
    return told.to(probabilities.dtype)

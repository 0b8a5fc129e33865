"""Which partition of some clients their looks propose, how sure they are, and how much of it they explain (ours).

The pull of client i on class y is taken as theta(group of i, y) + noise / sqrt(samples), thetas of one spread.
Groups are grown by the likelihood of this model with the thetas integrated out: two clients that hold no class in
common are neither alike nor unlike. A partition found from one half of every client's data is judged by the other half:
how much better is a client's pull foretold by its *fellow members'* than by the mean of all? The halves are disjoint,
so chance finds groups but cannot confirm them.

`explained` compares this with what the members of real groups would foretell. Where each client has a way of its own
(writers), there are partitions that are sure and explain little.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from coterie.core.samples import ClientId
from coterie.methods.auto.messages import Look

Labels = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64]
MOST = 16
"""Parts that are tried at most."""
CLEAR = 4.0
EXPLAINED, EXPLAINED_NUMBERS = 0.75, 0.5
"""Groups are clear if the t of the looks is above the first and the share that they explain above the second.

On one group, with labels skewed or not, t is below 0; where every writer has a hand of its own it is 14, but the share
is 0.3. Real groups of images have 5 to 110, and 0.8 to 1. Where people who form groups have ways of their own, too, the
share is 0.5 to 0.76: their losses are asked. Without classes looks are of another kind (`looks`), and there is the
third.
"""
_FEWEST = 4
_TREE = 400  # more clients than that are put into the groups that so many of them make
_LEAST_SPREAD = 0.02
_MOVES = 20
_LONGEST, _MOST_SAMPLES = 4.0, 20.0  # times the median of all: what a client's pull and its samples can weigh
_PART = 0.6  # likelihood that one more part must gain; clients with no class in common make parts of their own for less


@dataclass(frozen=True)
class Proposal:
    """A partition of some clients, the t of what its parts foretell of the other half, what share they explain, and how
    far the groups' pulls are apart by what a client's halves have in common, as a share of one sample's noise.

    `clear` says that it needs no judgement by losses.
    """

    part: dict[str, int]
    evidence: float
    explained: float
    spread: float
    clear: bool


@dataclass(frozen=True)
class Pulls:
    """Sums of samples' pulls [n, kinds, width] and their counts [n, kinds]; the model's noise and spread.

    `modest` is the spread that all but the loudest client show: one liar does not make all others' groups unclear.
    """

    total: Numbers
    counts: Numbers
    noise: float
    spread: float
    modest: float

    @property
    def mean(self) -> Numbers:
        """The mean pull of each kind of a client's samples."""
        return np.asarray(self.total / np.maximum(self.counts, 1e-9)[:, :, None])

    @cached_property
    def squares(self) -> Numbers:
        """The squared lengths of the clients' sums [n, kinds]: a search asks for them in every step."""
        return np.asarray((self.total**2).sum(-1))

    def likelihood(self, squares: Numbers, counts: Numbers) -> Numbers:
        """The log-likelihood of pulls whose sum has this squared length, up to a constant: last axis summed."""
        wide = 1 + counts * self.spread
        return np.asarray((-0.5 * np.log(wide) + self.spread * squares / (2 * self.noise * wide)).sum(-1))

    def sums(self, labels: Labels) -> tuple[Numbers, Numbers]:
        """The sums [P, kinds, width] and counts [P, kinds] of all parts; a client with the label -1 is in none."""
        member = (labels[:, None] == np.arange(int(labels.max()) + 1)[None]).astype(np.float64)
        return np.einsum("ip,ikw->pkw", member, self.total), member.T @ self.counts

    def fits(self, labels: Labels) -> Numbers:
        """How likely each client's pulls are among each part's, itself left out, [n, P]; alone it is the prior's."""
        total, counts = self.sums(labels)
        cross = np.einsum("pkw,ikw->ipk", total, self.total)
        own, squares = self.squares[:, None], (total**2).sum(-1)[None]
        with_it = squares + 2 * cross + own
        number = counts[None] + self.counts[:, None]
        inside = labels[:, None] == np.arange(len(total))[None]
        with_it = np.where(inside[:, :, None], squares, with_it)
        number = np.where(inside[:, :, None], counts[None], number)
        rest = np.where(inside[:, :, None], squares - 2 * cross + own, squares)
        return self.likelihood(with_it, number) - self.likelihood(rest, number - self.counts[:, None])

    def total_likelihood(self, labels: Labels) -> float:
        """How likely all pulls are under a partition."""
        total, counts = self.sums(labels)
        return float(self.likelihood((total**2).sum(-1), counts).sum())

    def alone(self) -> Numbers:
        """How likely each client's pulls are if it is like nobody, [n]."""
        return self.likelihood(self.squares, self.counts)

    def beyond(self, labels: Labels) -> Numbers:
        """The mean pull of each kind of a client's samples less its fellows', [n, kinds, width]; without fellows 0."""
        total, counts = self.sums(labels)
        number = counts[labels] - self.counts
        fellows = (total[labels] - self.total) / np.maximum(number, 1e-9)[:, :, None]
        return np.where(((number > 0) & (self.counts > 0))[:, :, None], self.mean - fellows, 0.0)

    def foretold(self, labels: Labels) -> tuple[Numbers, Numbers, Numbers]:
        """By how much fellows foretell each client's pulls, what they would in real groups, and the pulls' own size."""
        total, counts = self.sums(labels)
        number = counts[labels] - self.counts
        mean = (total[labels] - self.total) / (number + 1 / self.spread)[:, :, None]
        gain = (2 * (self.total * mean).sum(-1) - self.counts * (mean**2).sum(-1)).sum(1)
        full = np.where(number.sum(1, keepdims=True) > 0, number / (number + 1 / self.spread), 1.0)
        hoped = (self.counts * full).sum(1) * self.modest * self.noise
        size = (self.squares / np.maximum(self.counts, 1e-9)).sum(1)
        return gain, hoped, size


def propose(looks: Mapping[str, Look], members: Sequence[ClientId]) -> Proposal | None:
    """The partition of these clients that their looks support best; None where there are too few of them.

    Where it is clear, its parts are looked at again by themselves: what tells two alphabets of one pen apart is small
    beside what tells pens apart, and thetas of so wide a spread would be too dear for it. Few clients may seem sure by
    chance; so a part is parted only if there is a spread that the halves of its members can measure.
    """
    found = _proposed(looks, members)
    if found is None or not found.clear or not any(found.part.values()):
        return found
    part, parts = {}, 0
    for number in range(max(found.part.values()) + 1):
        some = [client for client in found.part if found.part[client] == number]
        finer = propose(looks, some)
        sure = finer is not None and finer.clear and finer.spread > _LEAST_SPREAD
        own = finer.part if finer is not None and sure else dict.fromkeys(some, 0)
        part.update({client: parts + own[client] for client in some})
        parts += max(own.values()) + 1
    return replace(found, part={client: part[client] for client in found.part})


def _proposed(looks: Mapping[str, Look], members: Sequence[ClientId]) -> Proposal | None:
    """The partition, of all clients at once.

    Two views of the pulls are tried, on the first fully connected layer and on all. The surer one says how many parts
    there are, about; of partitions into at most one more, that is taken under which all pulls together are most likely.
    """
    names = sorted(client for client in members if client in looks)
    if len(names) < _FEWEST:
        return None
    both = views(looks, names)
    evidence, explained, most = max(_judged(*halves) for halves in both)
    one, other = both[-1]
    whole = together(one, other)
    found = [labels for view in both for labels in _steps(together(*view)) if labels.max() <= most]
    best = max(found, key=lambda labels: whole.total_likelihood(labels) - _PART * int(labels.max()))
    part = refined(whole, best)
    enough = explained >= (EXPLAINED if one.counts.shape[1] > 1 else EXPLAINED_NUMBERS)
    if enough:  # where every client has a way of its own, most are like nobody
        part = _outcasts(one, other, part)
    clear = enough and evidence >= CLEAR
    return Proposal(dict(zip(names, part.tolist(), strict=True)), evidence, explained, whole.spread, clear)


def own_ways(looks: Mapping[str, Look], cluster: Mapping[str, int]) -> float:
    """The t of what the halves of a client have in common beyond its group: do clients have ways of their own?

    A client's pull less its fellows' is noise if it has none, and the noise of the two halves is independent.
    """
    names = sorted(client for client in looks if client in cluster)
    if len(names) < _FEWEST:
        return 0.0
    labels = np.asarray(np.unique([cluster[name] for name in names], return_inverse=True)[1], np.int64)
    one, other = views(looks, names)[-1]
    product = one.beyond(labels) * other.beyond(labels)
    own = (np.minimum(one.counts, other.counts) * product.sum(-1)).sum(1)
    return float(own.mean()) / max(_error(own), 1e-12)


def views(looks: Mapping[str, Look], names: Sequence[ClientId]) -> list[tuple[Pulls, Pulls]]:
    """The two halves of what these clients have shown, of the first block of layers and of all."""
    sketch = torch.stack([looks[name].sketch for name in names]).double().numpy()
    counts = torch.stack([looks[name].counts for name in names]).double().numpy()
    sketch, counts = _bounded(sketch, counts)
    blocks = sketch.shape[3]
    return [_prepared(sketch[:, :, :, :number], counts) for number in dict.fromkeys((1, blocks))]


def _bounded(sketch: Numbers, counts: Numbers) -> tuple[Numbers, Numbers]:
    """Pulls and counts with those that are far above most brought to that border: no client is the mean of all."""
    length = np.sqrt((sketch**2).sum(-1, keepdims=True))
    usual = np.nan_to_num(_median_above_zero(length))
    many = np.nan_to_num(_median_above_zero(counts))
    longest, most = _LONGEST * usual, np.maximum(_MOST_SAMPLES * many, 1.0)
    return sketch * np.minimum(1.0, longest / np.maximum(length, 1e-30)), np.minimum(counts, most)


def _median_above_zero(numbers: Numbers) -> Numbers:
    """The median over clients and halves (the first two axes) of those that are not 0; nan where there are none."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a class that nobody has
        return np.asarray(np.nanmedian(np.where(numbers > 0, numbers, np.nan), axis=(0, 1)))


def _prepared(sketch: Numbers, counts: Numbers) -> tuple[Pulls, Pulls]:
    """The halves' pulls less the mean of all clients' and on one scale, kind by kind and block by block."""
    counts = counts * sketch.any(axis=(3, 4))  # where nothing pulls (one sample under BatchNorm) nothing is known
    weight = counts[..., None, None]
    mean = (weight * sketch).sum((0, 1)) / np.maximum(weight.sum((0, 1)), 1e-9)
    apart = np.where(weight > 0, sketch - mean, 0.0)
    scale = np.sqrt((weight * apart**2).sum((0, 1, 4)) / np.maximum((counts > 0).sum((0, 1)), 1)[:, None])
    apart = (apart / np.maximum(scale, 1e-30)[:, :, None]).reshape(*apart.shape[:3], -1)
    both = np.minimum(counts[:, 0], counts[:, 1])
    inverse = 1 / np.maximum(counts[:, 0], 1) + 1 / np.maximum(counts[:, 1], 1)
    noise = (((apart[:, 0] - apart[:, 1]) ** 2).sum(-1) * (both > 0)).sum() / max((inverse * (both > 0)).sum(), 1e-9)
    noise = max(float(noise), 1e-9)
    common, number = (both * (apart[:, 0] * apart[:, 1]).sum(-1)).sum(1), both.sum(1)
    spread = _spread(common, number, noise)
    quiet = np.arange(len(common)) != int(common.argmax())
    modest = min(spread, _spread(common[quiet], number[quiet], noise))
    one, other = (Pulls(counts[:, h, :, None] * apart[:, h], counts[:, h], noise, spread, modest) for h in range(2))
    return one, other


def _spread(common: Numbers, number: Numbers, noise: float) -> float:
    """What the halves of these clients have in common, for each sample, beside one sample's noise."""
    return max(float(common.sum() / max(number.sum(), 1e-9)) / noise, _LEAST_SPREAD)


def together(one: Pulls, other: Pulls) -> Pulls:
    """All that the clients have shown."""
    return Pulls(one.total + other.total, one.counts + other.counts, one.noise, one.spread, one.modest)


def _judged(one: Pulls, other: Pulls) -> tuple[float, float, int]:
    """The evidence (t), what is explained, and the number of parts: by partitions of one half, on the other."""
    gains: dict[int, Numbers] = {}
    shares: dict[int, float] = {}
    steps = [_by_parts(_steps(half)) for half in (one, other)]
    for parts in range(2, min(MOST, len(one.counts) // 2) + 1):
        judged = [pulls.foretold(_at_most(step, parts)) for pulls, step in zip((other, one), steps, strict=True)]
        gains[parts] = np.mean([gain / np.maximum(size, 1e-9) for gain, _, size in judged], axis=0)
        shares[parts] = sum(float(g.sum()) for g, _, _ in judged) / max(sum(float(h.sum()) for _, h, _ in judged), 1e-9)
    parts = max(gains, key=lambda parts: float(gains[parts].mean()))
    return float(gains[parts].mean()) / max(_error(gains[parts]), 1e-12), shares[parts], parts


def _by_parts(steps: Sequence[Labels]) -> dict[int, Labels]:
    return {int(labels.max()) + 1: labels for labels in steps}


def _at_most(steps: Mapping[int, Labels], parts: int) -> Labels:
    return steps[max(number for number in steps if number <= parts)]


def _steps(pulls: Pulls) -> list[Labels]:
    """Partitions into ever fewer parts: from many, the two that are most alike are joined and all may move, in turn."""
    labels = refined(pulls, _tree(pulls))
    found = [labels]
    while labels.max() > 0:
        total, counts = pulls.sums(labels)
        squares, own = (total**2).sum(-1), pulls.likelihood((total**2).sum(-1), counts)
        cross = np.einsum("pkw,qkw->pqk", total, total)
        joined = pulls.likelihood(squares[:, None] + squares[None] + 2 * cross, counts[:, None] + counts[None])
        gain = joined - own[:, None] - own[None]
        np.fill_diagonal(gain, -np.inf)
        kept, gone = np.unravel_index(int(gain.argmax()), gain.shape)
        joint = np.unique(np.where(labels == gone, kept, labels), return_inverse=True)[1]
        labels = refined(pulls, np.asarray(joint, np.int64))
        found.append(labels)
    return found


def _outcasts(one: Pulls, other: Pulls, labels: Labels) -> Labels:
    """The partition in which those stand alone that, by either half, are like none of the parts."""
    unlike = np.ones(len(labels), dtype=bool)
    for half in (one, other):
        unlike &= half.fits(labels).max(1) + _PART / 2 < half.alone()
    labels = np.where(unlike, int(labels.max()) + 1 + np.arange(len(labels)), labels)
    return np.asarray(np.unique(labels, return_inverse=True)[1], np.int64)


def _tree(pulls: Pulls) -> Labels:
    """A partition into `MOST` parts: in each step the two parts are joined that gain most by it."""
    step = -(-len(pulls.counts) // _TREE)
    total, counts = pulls.total[::step], pulls.counts[::step].copy()
    number = len(counts)
    cross = np.einsum("ikw,jkw->ijk", total, total, optimize=True)
    own = pulls.likelihood(cross[np.arange(number), np.arange(number)], counts)

    def joined(place: int) -> Numbers:
        squares = cross[place, place][None] + cross[np.arange(number), np.arange(number)] + 2 * cross[place]
        return np.asarray(pulls.likelihood(squares, counts[place][None] + counts) - own[place] - own)

    gain = np.stack([joined(place) for place in range(number)])
    np.fill_diagonal(gain, -np.inf)
    labels, dead = np.arange(number), np.zeros(number, dtype=bool)
    for _ in range(number - MOST):
        kept, gone = np.unravel_index(int(gain.argmax()), gain.shape)
        cross[kept] += cross[gone]
        cross[:, kept] += cross[:, gone]
        counts[kept] += counts[gone]
        own[kept] = pulls.likelihood(cross[kept, kept], counts[kept])
        dead[gone] = True
        labels = np.where(labels == gone, kept, labels)
        new = np.where(dead, -np.inf, joined(int(kept)))
        new[kept] = -np.inf
        gain[kept], gain[:, kept], gain[gone], gain[:, gone] = new, new, -np.inf, -np.inf
    wide = np.full(len(pulls.counts), -1, np.int64)
    wide[::step] = np.unique(labels, return_inverse=True)[1]
    return wide


def refined(pulls: Pulls, labels: Labels) -> Labels:
    """Each client moves to the part among whose members its pulls are most likely, until all stay."""
    for _ in range(_MOVES):
        fits = pulls.fits(labels)
        best = fits.argmax(1)
        present = np.where(labels >= 0, fits[np.arange(len(labels)), labels], -np.inf)
        better = fits.max(1) > present + 1e-9
        moved = np.asarray(np.unique(np.where(better, best, labels), return_inverse=True)[1], np.int64)
        if np.array_equal(moved, labels):
            break
        labels = moved
    return labels


def _error(numbers: Numbers) -> float:
    """The standard error of a mean."""
    return float(numbers.std(ddof=1) / np.sqrt(len(numbers)))

"""Ours, the default rule for the number of clusters: groups found in half of the classes must show in the other half.

A client's embedding has one block of bits per class. What tells groups of clients apart (a rotation, another
labelling, another domain) shows in many classes; what merely makes clients of one group differ (which images they
happen to hold, flipped bits) is independent from class to class. So all clients are cut in two by the blocks of half of
the classes, and if in the other half of the classes the two parts do not differ, they are one group. If they do, both
parts are looked at in the same way, and so on. The score of a cut is in standard deviations of pure chance whatever the
flip probability is, which therefore need not be known.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from coterie.core.rng import rng
from coterie.methods.embedding.clustering.ward import Floats, Ints, squared_distances, ward

Bits = NDArray[np.uint8]

THRESHOLD = 4.5
"""Scores above this part clients; docs/results/embedding.md has the scores of real groups and of none."""
_DIVISIONS = 5
"""Ways to halve the classes that are tried; their scores are averaged."""
_MOST_TESTED = 200
"""More clients than this are judged by so many of them, drawn at random."""
_LEAST_TESTED = 4
_POWERS = 40
_MOST_PAIRS = 40
"""Pairs of groups that are tried to be put together, nearest first."""


def groups_by_halves(bits: Bits, classes: int) -> tuple[Ints, list[float]]:
    """The group of every row, and the score of every set of rows that was looked at, from all of them down."""
    found: list[Ints] = []
    scores: list[float] = []
    waiting, whole = [np.arange(len(bits))], np.ones(bits.shape[1], bool)
    while waiting:
        members = waiting.pop(0)
        scores.append(split_score(bits[members], classes) if len(members) >= _LEAST_TESTED else 0.0)
        several = scores[-1] > THRESHOLD
        first = _in_two(bits[members], _blocks(classes, whole)) if several else np.zeros(len(members), bool)
        if first.any() and not first.all():
            waiting += [members[first], members[~first]]
        else:
            found.append(members)
    labels = np.zeros(len(bits), np.int64)
    for number, members in enumerate(sorted(joined(bits, classes, found), key=lambda each: int(each[0]))):
        labels[members] = number
    return settled(bits, labels), scores


def joined(bits: Bits, classes: int, groups: list[Ints]) -> list[Ints]:
    """Groups that are one after all are put together: a cut above them may have gone right through one."""
    tested: set[tuple[int, int]] = set()
    while len(groups) > 1:
        means = np.stack([bits[members].mean(0) for members in groups])
        order = np.argsort(squared_distances(means), axis=None, kind="stable")
        pairs = (divmod(int(place), len(groups)) for place in order)
        for i, j in pairs:
            names = int(groups[i][0]), int(groups[j][0])
            if i >= j or names in tested:
                continue
            if len(tested) >= _MOST_PAIRS:
                return groups
            tested.add(names)
            both = np.sort(np.concatenate([groups[i], groups[j]]))
            if len(both) >= _LEAST_TESTED and split_score(bits[both], classes) <= THRESHOLD:
                groups = [members for k, members in enumerate(groups) if k not in (i, j)] + [both]
                tested = {pair for pair in tested if both[0] not in pair}
                break
        else:
            break
    return groups


def split_score(bits: Bits, classes: int) -> float:
    """How surely the rows are more than one group, as a standard score."""
    bits = bits[_some(len(bits))]
    scores = []
    for half in _divisions(classes, bits.shape[1]):
        for seen in (half, ~half):
            first = _in_two(bits[:, seen], _blocks(classes, seen))
            scores.append(_difference(bits[:, ~seen].astype(np.float64), first, _blocks(classes, ~seen)))
    # where a division hides what tells the parts apart, it says nothing against them; the two directions of a division
    # are nearly independent, the divisions are not
    return float(np.mean(np.maximum(scores, 0)) * np.sqrt(2))


def _blocks(classes: int, chosen: NDArray[np.bool_]) -> int:
    """How many classes the chosen bits are of; bits without classes are one block."""
    whole = len(chosen)
    return int(chosen.sum()) * classes // whole if classes > 1 and whole % classes == 0 else 1


def _some(rows: int) -> Ints:
    """All rows, or of very many some, drawn at random."""
    if rows <= _MOST_TESTED:
        return np.arange(rows)
    return np.sort(rng(0, "tested members").choice(rows, _MOST_TESTED, replace=False))


def _in_two(bits: Bits, blocks: int) -> NDArray[np.bool_]:
    """The better cut in two of those that start from Ward's last merge and from the direction of largest variance."""
    x = _without_noise(bits, blocks)
    some = x[_some(len(x))]
    starts = [ward(some).cut(2), (_principal(some @ some.T) > 0).astype(np.int64)]
    cuts = [settled(some, start) for start in starts if start.any() and not start.all()]
    if not cuts:
        return np.zeros(len(x), bool)
    best = max(cuts, key=lambda cut: _between(some, cut))
    if len(some) < len(x):
        means = np.stack([some[best == side].mean(0) for side in (0, 1)])
        best = ((means**2).sum(1)[None] - 2 * x @ means.T).argmin(1)
    return np.asarray(best == 0)


def _without_noise(bits: Bits, blocks: int) -> Floats:
    """The rows around their mean, less, class by class, what draws them from this mean towards 1/2.

    That is how noisier clients differ from others, and it must not be what the cut goes by.
    """
    x = bits.astype(np.float64).reshape(len(bits), blocks, -1)
    mean = x.mean(0)
    direction = mean - 0.5
    length = np.sqrt((direction**2).sum(1, keepdims=True))
    direction /= np.where(length > 0, length, 1)
    x -= mean
    x -= np.einsum("ncl,cl->nc", x, direction)[:, :, None] * direction
    return x.reshape(len(bits), -1)


def _between(x: Floats, cut: Ints) -> float:
    """The sum of squares between two parts of rows whose mean is 0."""
    return float(sum((x[cut == side].sum(0) ** 2).sum() / (cut == side).sum() for side in (0, 1)))


def _principal(gram: Floats) -> Floats:
    """The first eigenvector, by powers of the matrix."""
    vector = rng(0, "principal").normal(size=len(gram))
    for _ in range(_POWERS):
        vector = gram @ vector
        length = float(np.linalg.norm(vector))
        if length == 0:
            break
        vector = vector / length
    return vector


def _divisions(classes: int, length: int) -> Iterator[NDArray[np.bool_]]:
    """Which bits are in the first half: those of every other class, then of random ones (of bits, if one class)."""
    blocks = classes if classes > 1 and length % classes == 0 else length
    for turn in range(_DIVISIONS if blocks > 3 else 1):
        order = rng(0, "halves", turn).permutation(blocks) if turn else np.arange(blocks)
        first = np.zeros(blocks, bool)
        first[order[::2]] = True
        yield np.repeat(first, length // blocks)


def _difference(x: Floats, first: NDArray[np.bool_], blocks: int) -> float:
    """Standard score of the distance between the means of two parts, beyond what mere noise makes of one mean.

    Clients that are noisier than others (missing classes, more flips) have another mean, but are not a group: class
    by class, theirs is the others' mean drawn towards 1/2 by some factor. So the distance is taken to the nearest such
    mean, in the direction in which it is less. It and its variance under equal means are estimated as by Chen and Qin
    (2010).
    """
    parts = x[first], x[~first]
    a, b = map(len, parts)
    if min(a, b) < 2:
        return 0.0
    one, other = (part - part.mean(0) for part in parts)
    v, w = (float((part**2).sum()) / (len(part) - 1) for part in (one, other))
    means = [part.mean(0).reshape(blocks, -1) - 0.5 for part in parts]
    errors = [
        (part**2).reshape(len(part), blocks, -1).sum((0, 2)) / ((len(part) - 1) * len(part)) for part in (one, other)
    ]
    apart = min(
        _beyond_noise(means[0], errors[0], means[1], errors[1]), _beyond_noise(means[1], errors[1], means[0], errors[0])
    )
    if v + w <= 0:
        return np.inf if apart > 0 else 0.0
    across = float(((one @ other.T) ** 2).sum()) / ((a - 1) * (b - 1))
    variance = 2 * _squared(one, v) / (a * (a - 1)) + 2 * _squared(other, w) / (b * (b - 1)) + 4 * across / (a * b)
    return apart / float(np.sqrt(variance))


def _beyond_noise(noisy: Floats, noisy_error: Floats, clear: Floats, clear_error: Floats) -> float:
    """Squared distance, without bias, of means [classes, code] less 1/2 from the clear ones times factors by class."""
    size = (clear**2).sum(1) - clear_error
    factor = np.clip((noisy * clear).sum(1) / np.where(size > 0, size, np.inf), 0, 1)
    left = ((noisy - factor[:, None] * clear) ** 2).sum(1)
    return float((left - noisy_error - factor**2 * clear_error).sum())


def _squared(scatter: Floats, trace: float) -> float:
    """The trace of the squared covariance without bias, of clients around their mean (Bai and Saranadasa 1996)."""
    free, length = len(scatter) - 1, scatter.shape[1]
    if free < 2:
        return trace**2
    gram = scatter @ scatter.T if len(scatter) < length else scatter.T @ scatter
    plain = float((gram**2).sum()) / free**2
    return float(max(free**2 / ((free + 2) * (free - 1)) * (plain - trace**2 / free), trace**2 / length))


def settled(bits: NDArray[np.generic], labels: Ints) -> Ints:
    """Every row with the nearest mean, until none moves: what Ward's tree joined too early is put right."""
    x = bits.astype(np.float64)
    groups = int(labels.max()) + 1
    for _ in range(len(x)):
        shares = np.eye(groups)[labels]
        means = (shares.T @ x) / shares.sum(0)[:, None]
        nearest = ((means**2).sum(1)[None] - 2 * x @ means.T).argmin(1)
        if (nearest == labels).all() or len(np.unique(nearest)) < groups:
            break
        labels = nearest
    return labels

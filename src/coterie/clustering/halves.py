"""The default rule for the number of clusters: groups found in half of the classes must show in the other half.

A client's embedding has one block of bits per class. What tells groups of clients apart (a rotation, another
labelling, another domain) shows in many classes; what merely makes clients of one group differ (which images they
happen to hold, flipped bits) is independent from class to class. So the tree is followed from its root: the members of
a node are cut in two by the blocks of half of the classes, and if in the other half of the classes the two parts do
not hold together, the node is one cluster. The score of that is in standard deviations of pure chance whatever the flip
probability is, which therefore need not be known.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from coterie.clustering.ward import Floats, Ints, ward
from coterie.rng import rng

Bits = NDArray[np.uint8]

THRESHOLD = 3.0
"""Scores above this split a node."""
_DIVISIONS = 5
"""Ways to halve the classes that are tried at each node; their scores are averaged."""
_MOST_TESTED = 300
"""Nodes with more members are judged by so many of them, drawn at random."""
_LEAST_TESTED = 4
_POWERS = 40
_MARGIN = 1.3
"""How far the distance of two parts must exceed the difference of their variances: pure noise is at 1."""


def groups_by_halves(bits: Bits, classes: int) -> tuple[Ints, list[float]]:
    """The group of every row, and the score of every set of rows that was looked at, from all of them down."""
    found: list[Ints] = []
    scores: list[float] = []
    waiting = [np.arange(len(bits))]
    while waiting:
        members = waiting.pop(0)
        scores.append(split_score(bits[members], classes) if len(members) >= _LEAST_TESTED else 0.0)
        first = _in_two(bits[members]) if scores[-1] > THRESHOLD else np.zeros(len(members), bool)
        if first.any() and not first.all():
            waiting += [members[first], members[~first]]
        else:
            found.append(members)
    labels = np.zeros(len(bits), np.int64)
    for number, members in enumerate(sorted(found, key=lambda each: int(each[0]))):
        labels[members] = number
    return settled(bits, labels), scores


def split_score(bits: Bits, classes: int) -> float:
    """How surely the rows are more than one group, as a standard score."""
    bits = bits[_some(len(bits))]
    scores = []
    for half in _divisions(classes, bits.shape[1]):
        parts = bits[:, half], bits[:, ~half]
        for seen, hidden in (parts, parts[::-1]):
            scores.append(_difference(hidden.astype(np.float64), _in_two(seen)))
    # where a division hides what tells the parts apart, it says nothing against them; the two directions of a division
    # are nearly independent, the divisions are not
    return float(np.mean(np.maximum(scores, 0)) * np.sqrt(2))


def _some(rows: int) -> Ints:
    """All rows, or of very many some, drawn at random."""
    if rows <= _MOST_TESTED:
        return np.arange(rows)
    return np.sort(rng(0, "tested members").choice(rows, _MOST_TESTED, replace=False))


def _in_two(bits: Bits) -> NDArray[np.bool_]:
    """The best cut in two that is found from Ward's last merge and from the direction of largest variance."""
    some = bits[_some(len(bits))]
    x = some.astype(np.float64)
    x -= x.mean(0)
    starts = [ward(some).cut(2), (_principal(x @ x.T) > 0).astype(np.int64)]
    cuts = [settled(some, start) for start in starts if start.any() and not start.all()]
    if not cuts:
        return np.zeros(len(bits), bool)
    # centred, the sum of squares between the parts is that of their means
    best = max(cuts, key=lambda cut: float(sum((x[cut == side].sum(0) ** 2).sum() / (cut == side).sum() for side in (0, 1))))
    means = np.stack([some[best == side].mean(0) for side in (0, 1)])
    nearest = ((means**2).sum(1)[None] - 2 * bits.astype(np.float64) @ means.T).argmin(1)
    return np.asarray((best if len(some) == len(bits) else nearest) == 0)


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


def _difference(x: Floats, first: NDArray[np.bool_]) -> float:
    """Standard score of how much nearer clients are to their own part than to the other.

    With means d apart and variances v and w (summed over the bits), a pair across is on average d^2 + v + w apart
    (squared), a pair inside 2 v or 2 w. So both parts hold together only as far as d^2 exceeds |v - w|: clients that
    are merely noisier than others (missing classes, more flips) have a mean of their own, but are no group. The
    estimate of d^2 and its variance under equal means are those of Chen and Qin (2010).
    """
    parts = x[first], x[~first]
    a, b = map(len, parts)
    if min(a, b) < 2:
        return 0.0
    apart = float(((parts[0].mean(0) - parts[1].mean(0)) ** 2).sum())
    one, other = (part - part.mean(0) for part in parts)
    v, w = (float((part**2).sum()) / (len(part) - 1) for part in (one, other))
    if v + w <= 0:
        return np.inf if apart > 0 else 0.0
    across = float(((one @ other.T) ** 2).sum()) / ((a - 1) * (b - 1))
    variance = 2 * _squared(one, v) / (a * (a - 1)) + 2 * _squared(other, w) / (b * (b - 1)) + 4 * across / (a * b)
    return (apart - v / a - w / b - _MARGIN * abs(v - w)) / float(np.sqrt(variance))


def _squared(scatter: Floats, trace: float) -> float:
    """The trace of the squared covariance without bias, of clients around their mean (Bai and Saranadasa 1996)."""
    free, length = len(scatter) - 1, scatter.shape[1]
    if free < 2:
        return trace**2
    gram = scatter @ scatter.T if len(scatter) < length else scatter.T @ scatter
    plain = float((gram**2).sum()) / free**2
    return float(max(free**2 / ((free + 2) * (free - 1)) * (plain - trace**2 / free), trace**2 / length))


def settled(bits: Bits, labels: Ints) -> Ints:
    """Every row with the nearest mean, until nobody moves: what Ward's tree joined too early is put right."""
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

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

from coterie.clustering.ward import Floats, Ints, Tree, ward
from coterie.rng import rng

Bits = NDArray[np.uint8]

THRESHOLD = 3.0
"""Scores above this split a node."""
_DIVISIONS = 5
"""Ways to halve the classes that are tried at each node; their scores are averaged."""
_MOST_TESTED = 300
"""Nodes with more members are judged by so many of them, drawn at random."""
_LEAST_TESTED = 4
_MARGIN = 1.3
"""How far the distance of two parts must exceed the difference of their variances: pure noise is at 1."""


def groups_by_halves(tree: Tree, bits: Bits, classes: int) -> tuple[Ints, list[float]]:
    """The cluster of every row, and the score of every node that was looked at, from the root down."""
    found, scores = [], []
    waiting = [tree.root]
    while waiting:
        node = waiting.pop(0)
        members = tree.members(node)
        score = split_score(bits[members], classes) if len(members) >= _LEAST_TESTED else 0.0
        scores.append(score)
        if score > THRESHOLD:
            waiting += tree.children(node)
        else:
            found.append(node)
    return settled(bits, tree.labels(found)), scores


def split_score(bits: Bits, classes: int) -> float:
    """How surely the rows are more than one group, as a standard score."""
    if len(bits) > _MOST_TESTED:
        bits = bits[np.sort(rng(0, "tested members").choice(len(bits), _MOST_TESTED, replace=False))]
    scores = []
    for half in _divisions(classes, bits.shape[1]):
        parts = bits[:, half], bits[:, ~half]
        for seen, hidden in (parts, parts[::-1]):
            scores.append(_difference(hidden.astype(np.float64), ward(seen).cut(2) == 0))
    # where a division hides what tells the parts apart, it says nothing against them; the two directions of a division
    # are nearly independent, the divisions are not
    return float(np.mean(np.maximum(scores, 0)) * np.sqrt(2))


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

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
"""Scores above this split a node; of real groups up to P = 0.15 none below 4.6 was seen, of one group none above 2.2."""
_DIVISIONS = 5
"""Ways to halve the classes that are tried at each node; their scores are averaged."""
_MOST_TESTED = 300
"""Nodes with more members are judged by so many of them, drawn at random."""
_LEAST_TESTED = 4


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
    # the two directions of a division are nearly independent, the divisions are not
    return float(np.mean(scores) * np.sqrt(2))


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

    With a and b clients in the parts, means apart by d and variances v and w (summed over the bits), a pair across is on
    average d^2 + v + w apart (squared), a pair inside 2 v or 2 w. Both parts hold together only as far as d^2 exceeds
    |v - w|: clients that are merely noisier than others (missing classes, more flips) have a mean of their own, but are
    no group. If the means are equal, the estimate of d^2, times ab / n, has variance 2 tr(S^2), S being the covariance
    inside the parts, which is estimated without bias (Bai and Saranadasa 1996).
    """
    n, a = len(x), int(first.sum())
    b, free = n - a, n - 2
    if min(a, b) < 2:
        return 0.0
    means = np.stack([x[first].mean(0), x[~first].mean(0)])
    scatter = x - means[(~first).astype(int)]
    squares = (scatter**2).sum(1)
    v, w = float(squares[first].sum()) / (a - 1), float(squares[~first].sum()) / (b - 1)
    apart = float(((means[0] - means[1]) ** 2).sum()) - v / a - w / b - abs(v - w)
    gram = scatter @ scatter.T if n < x.shape[1] else scatter.T @ scatter
    trace = float(squares.sum()) / free
    if trace <= 0:
        return np.inf if apart > 0 else 0.0
    squared = float((gram**2).sum()) / free**2
    spread = free**2 / ((free + 2) * (free - 1)) * (squared - trace**2 / free)
    spread = max(spread, trace**2 / x.shape[1])
    return apart * a * b / n / float(np.sqrt(2 * spread * (1 + 1 / free)))


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

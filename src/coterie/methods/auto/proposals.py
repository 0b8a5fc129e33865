"""Which partition of a group the looks propose, and how sure they are (ours).

A partition is found from the directions of one half of every client's data and judged by those of the other half: how
much better a client's direction is foretold by the mean of its *fellow members'* than by nothing. The halves are
disjoint, so chance finds groups but cannot confirm them. The fewest of equally good numbers of groups win.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.core.samples import ClientId
from coterie.methods.auto.messages import Look

Labels = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64]
MOST = 12
"""Parts that a group is split into at once; parts can be split again."""
_VIEWS = ((0,), (0, 1), (0, 1, 2))
_RIDGE = 0.3
_MOVES = 10
_TIE = 0.25  # standard errors


@dataclass(frozen=True)
class Proposal:
    """A partition of some clients, and the t of what its parts foretell of the other half's directions."""

    part: dict[str, int]
    evidence: float


def propose(looks: dict[str, Look], members: Sequence[ClientId]) -> Proposal | None:
    """The partition of these clients that their looks support best; None where there are too few of them.

    Several views of the directions are tried: the first fully connected layer, all layers but the last, all.
    """
    names = sorted(client for client in members if client in looks)
    if len(names) < 4:
        return None
    sketch = torch.stack([looks[name].sketch for name in names])
    shares = torch.stack([looks[name].shares for name in names])
    present = [block for block in range(sketch.shape[2]) if bool(sketch[:, :, block].any())]
    best: tuple[float, Labels] | None = None
    for view in dict.fromkeys(tuple(b for b in view if b in present) for view in _VIEWS):
        if view:
            found = _best_of_view(
                _prepared(sketch[:, 0, view], shares[:, 0]), _prepared(sketch[:, 1, view], shares[:, 1])
            )
            if best is None or found[0] > best[0]:
                best = found
    if best is None:
        return None
    return Proposal(dict(zip(names, best[1].tolist(), strict=True)), best[0])


def _prepared(directions: Tensor, shares: Tensor) -> Numbers:
    """Directions [n, blocks, width] of one half less what its label shares explain (by ridge regression): unit rows.

    Clients with like labels pull alike; that is no reason to separate them from the others.
    """
    known = torch.cat([shares, torch.ones(len(shares), 1)], dim=1)
    gram = known.T @ known + _RIDGE * torch.eye(known.shape[1])
    rows = directions.flatten(1)
    rest = (rows - known @ torch.linalg.solve(gram, known.T @ rows)).reshape(directions.shape)
    rest = F.normalize(rest - rest.mean(0), dim=-1).flatten(1)
    return F.normalize(rest, dim=1).double().numpy()


def _best_of_view(one: Numbers, other: Numbers) -> tuple[float, Labels]:
    """The evidence (t) and the partition: its number of parts by both halves crosswise, itself from both together."""
    trees = [_tree(half) for half in (one, other, _unit(one + other))]
    gains = []
    for parts in range(2, min(MOST, len(one) // 2) + 1):
        first, second = (_refined(half, _cut(tree, parts)) for half, tree in zip((one, other), trees[:2], strict=True))
        gains.append((_foretold(other, first) + _foretold(one, second)) / 2)
    none = (_foretold(one, np.zeros(len(one), np.int64)) + _foretold(other, np.zeros(len(one), np.int64))) / 2
    best = max(gains, key=lambda gain: float(gain.mean()))
    fewest = next(
        place for place, gain in enumerate(gains) if float((best - gain).mean()) <= _TIE * _error(best - gain) + 1e-12
    )
    together = _unit(one + other)
    gain = gains[fewest] - none
    evidence = float(gain.mean()) / max(_error(gain), 1e-12)
    return evidence, _refined(together, _cut(trees[2], fewest + 2))


def _foretold(directions: Numbers, labels: Labels) -> Numbers:
    """By how much the mean of its fellow members foretells each direction: |d|^2 - |d - mean|^2; 0 for one alone."""
    same = (labels[:, None] == labels[None]).astype(np.float64)
    np.fill_diagonal(same, 0.0)
    mean = same @ directions / np.maximum(same.sum(1, keepdims=True), 1.0)
    return np.asarray(2 * (directions * mean).sum(1) - (mean * mean).sum(1), np.float64)


def _tree(directions: Numbers) -> Numbers:
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    gaps = np.clip(1 - directions @ directions.T, 0, None)
    np.fill_diagonal(gaps, 0.0)
    return np.asarray(linkage(squareform((gaps + gaps.T) / 2, checks=False), "average"), np.float64)


def _cut(tree: Numbers, parts: int) -> Labels:
    from scipy.cluster.hierarchy import fcluster

    return np.asarray(np.unique(fcluster(tree, parts, "maxclust"), return_inverse=True)[1], np.int64)


def _refined(directions: Numbers, labels: Labels) -> Labels:
    """Each client moves to the part whose members, itself left out, point most alike, until all stay.

    A part of one has no other part to compare with, so it joins another.
    """
    for _ in range(_MOVES):
        parts = int(labels.max()) + 1
        total = np.eye(parts)[labels].T @ directions
        apart = np.repeat(total[None], len(labels), 0)
        apart[np.arange(len(labels)), labels] -= directions
        length = np.linalg.norm(apart, axis=2)
        alike = np.einsum("nkd,nd->nk", apart, directions) / np.maximum(length, 1e-12)
        alike[length < 1e-9] = -2.0
        moved = np.asarray(np.unique(alike.argmax(1), return_inverse=True)[1], np.int64)
        if np.array_equal(moved, labels):
            break
        labels = moved
    return labels


def _unit(rows: Numbers) -> Numbers:
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12), np.float64)


def _error(numbers: Numbers) -> float:
    """The standard error of a mean."""
    return float(numbers.std(ddof=1) / np.sqrt(len(numbers)))

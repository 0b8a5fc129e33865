"""How similar a peer takes others to be: by the loss of their models on its data, or by the ways they learn."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

from coterie.core.cohort import Cohort
from coterie.core.errors import CoterieError
from coterie.core.evaluation import score
from coterie.core.states import (
    Stack,
    State,
    count,
    spread,
    take,
)
from coterie.core.task import Task
from coterie.methods.p2p.base import Inbox

LossScore = Literal["inverse", "negative"]
_SMALLEST_LOSS = 1e-5
_BLOCK = 4096
_LEAST_VARIANCE = 1e-6  # of cosines
_TINY = torch.finfo(torch.float64).tiny

with warnings.catch_warnings():  # torch says once that its sparse matrices are young; nobody can act on that
    warnings.simplefilter("ignore")
    torch.sparse_csr_tensor([0, 1], [0], [1.0], (1, 1), check_invariants=False)


def losses_of(c: Cohort, inbox: Inbox) -> Tensor:
    """F_i(w_j): the loss of every received model on the peer's own training part, [C, m]; infinite where none came."""
    result = torch.full(inbox.index.shape, torch.inf, dtype=torch.float64)
    for row, (client, index, mask) in enumerate(zip(c.data, inbox.index, inbox.mask, strict=True)):
        if bool(mask.any()):
            result[row][mask] = score(c.task, take(inbox.pool.model, index[mask]), client.train).loss
    return result


def by_loss(c: Cohort, inbox: Inbox, kind: LossScore) -> Tensor:
    """Equation 3: 1 / F_i(w_j), or -F_i(w_j), [C, m]; 0 where no model came. A loss that is NaN is the worst."""
    loss = losses_of(c, inbox)
    fine = inbox.mask & torch.isfinite(loss)
    similarity = 1 / (loss + _SMALLEST_LOSS) if kind == "inverse" else -loss
    worst = torch.where(fine, similarity, 0.0).amin(1, keepdim=True).clamp_max(0.0) if loss.shape[1] else loss
    return torch.where(fine, similarity, torch.where(inbox.mask, worst, 0.0))


def by_direction(c: Cohort, inbox: Inbox, alpha: float, known: Tensor | None = None) -> Tensor:
    """`directions` from the common initial model."""
    if not bool(inbox.mask.any()):
        return torch.zeros(inbox.index.shape, dtype=torch.float64)
    return directions(c.task, c.task.init(c.seed), inbox, alpha, known)


def directions(task: Task, origin: State, inbox: Inbox, alpha: float, known: Tensor | None = None) -> Tensor:
    """Equation 6: alpha cos(theta1) + (1 - alpha) cos(theta2), [C, m]; 0 where no model came.

    theta1 is between the last local updates, theta2 between the ways from the common initial model; the cosine with
    a vector of zeros is 0. Only the pairs that met are computed, each always by the same sums, however many peers share
    the work. Where it is said who is `known`, [C, m], alpha is the most that theta1 may weigh (`discriminating`).
    """
    begins: list[Stack] = []
    if alpha > 0:
        if inbox.pool.start is None:
            raise CoterieError("The answers do not tell where local training began, which theta1 needs.")
        begins.append(inbox.pool.start)
    if alpha < 1 or known is not None:
        begins.append(spread(origin, 1))
    angles = torch.zeros(len(begins), *inbox.index.shape, dtype=torch.float64)
    angles[:, inbox.mask] = _cosines(task, inbox, begins)
    if len(begins) == 1:
        return angles[0]
    weight = alpha if known is None else discriminating(angles[0], angles[1], inbox.mask, known, alpha)[:, None]
    return weight * angles[0] + (1 - weight) * angles[1]


def discriminating(theta1: Tensor, theta2: Tensor, mask: Tensor, known: Tensor, most: float) -> Tensor:
    """What theta1 should weigh beside theta2, [C], to tell the neighbours from the others: Fisher's discriminant.

    Each cosine [C, m] is worth the distance of the two means over the variance around them, nothing if neighbours are
    farther than others. Updates of peers who have learnt their data are noise (theta1 says nothing then), and ways that
    were averaged with strangers' grow alike (theta2 says nothing then). `most` where there is nothing to compare.
    """
    near, far = mask & known, mask & ~known
    sizes = [part.sum(1).clamp_min(1) for part in (near, far)]

    def worth(angle: Tensor) -> Tensor:
        means = [_sum_in_order(angle * part) / size for part, size in zip((near, far), sizes, strict=True)]
        around = torch.where(near, means[0][:, None], means[1][:, None])
        variance = _sum_in_order((angle - around).square() * mask) / mask.sum(1).clamp_min(1)
        return (means[0] - means[1]).clamp_min(0) / variance.clamp_min(_LEAST_VARIANCE)

    first, second = worth(theta1), worth(theta2)
    compared = near.any(1) & far.any(1) & (first + second > 0)
    return torch.where(compared, first / (first + second).clamp_min(_TINY), most).clamp_max(most)


def _sum_in_order(rows: Tensor) -> Tensor:
    """Sums [C] of rows [C, m]: the same bits for one real peer as among many, whose rows are filled up with zeros."""
    return rows.cumsum(1)[:, -1]


def _cosines(task: Task, inbox: Inbox, begins: Sequence[Stack]) -> Tensor:
    """Cosines between each peer's own difference `model - begin` and those of the answers that came, [K, answers]."""
    model = inbox.pool.model
    asker, received = inbox.own[inbox.mask.nonzero()[:, 0]], inbox.index[inbox.mask]
    rows = torch.unique(torch.cat([asker, received]))
    # beside the pairs, every row with itself: its squared length
    product = _products(task, model, begins, torch.cat([asker, rows]), torch.cat([received, rows]))
    length = torch.zeros(len(begins), count(model), dtype=torch.float64)
    length[:, rows] = product[:, len(asker) :].sqrt()
    both = length[:, asker] * length[:, received]
    return torch.where(both > 0, product[:, : len(asker)] / both.clamp_min(_TINY), 0.0)


def _products(task: Task, model: Stack, begins: Sequence[Stack], first: Tensor, second: Tensor) -> Tensor:
    """(model - begin)[first] . (model - begin)[second] of every pair and every beginning, [K, pairs]."""
    math = task.row_math
    if math is None:
        return torch.stack([_by_torch(model, begin, task.parameters, first, second) for begin in begins])
    parts = [[models[name].reshape(len(models[name]), -1) for name in task.parameters] for models in (model, *begins)]
    return math.products(parts[0], parts[1:], first, second)


def _by_torch(model: Stack, begin: Stack, names: tuple[str, ...], first: Tensor, second: Tensor) -> Tensor:
    """Products of sampled pairs of rows, block by block of columns, so that the differences stay in the cache. The
    blocks do not depend on how many peers there are, hence neither do the sums."""
    rows, place = torch.unique(torch.cat([first, second]), return_inverse=True)
    left, right = place[: len(first)], place[len(first) :]
    order = torch.argsort(left, stable=True)
    crow = torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(left, minlength=len(rows)).cumsum(0)])
    product = torch.zeros(len(first), dtype=torch.float64)
    blank = torch.zeros(len(first), dtype=model[names[0]].dtype)
    wanted = torch.sparse_csr_tensor(crow, right[order], blank, (len(rows), len(rows)), check_invariants=False)
    for block in _blocks(model, begin, names, rows):
        product += torch.sparse.sampled_addmm(wanted, block, block.T, beta=0.0).values().double()
    unsorted = torch.empty_like(product)
    unsorted[order] = product
    return unsorted


def _blocks(model: Stack, start: Stack, names: tuple[str, ...], rows: Tensor) -> Iterator[Tensor]:
    """Columns of `model - start` at these rows (a `start` of one row is everyone's)."""
    whole = torch.equal(rows, torch.arange(count(model)))
    for name in names:
        end, begin = model[name].reshape(count(model), -1), start[name].reshape(len(start[name]), -1)
        for column in range(0, end.shape[1], _BLOCK):
            span = slice(column, column + _BLOCK)
            if whole:
                yield end[:, span] - begin[:, span]
            else:
                yield end[rows, span] - (begin[rows, span] if len(begin) > 1 else begin[:, span])

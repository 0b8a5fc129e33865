"""How similar a peer takes others to be by the ways they learn (PANM, section 3.2.1, equations 4 to 6)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from coterie.core.cohort import Cohort
from coterie.core.errors import CoterieError
from coterie.core.states import Stack, State, count, spread
from coterie.core.task import Task
from coterie.methods.p2p.base import Inbox
from coterie.methods.panm.ours import discriminating

_BLOCK = 4096
_TINY = torch.finfo(torch.float64).tiny

with warnings.catch_warnings():  # torch says once that its sparse matrices are new; the user cannot act on that
    warnings.simplefilter("ignore")
    torch.sparse_csr_tensor([0, 1], [0], [1.0], (1, 1), check_invariants=False)


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

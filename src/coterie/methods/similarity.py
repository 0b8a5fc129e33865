"""How similar a peer takes others to be: by the loss of their models on its data, or by the ways they learn."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from coterie.cohort import Cohort, score
from coterie.errors import CoterieError
from coterie.methods.peers import Inbox
from coterie.states import Stack, count, take

LossScore = Literal["inverse", "negative"]
_SMALLEST_LOSS = 1e-5
_BLOCK = 4096
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
    """Equation 3: 1 / F_i(w_j), or -F_i(w_j), [C, m]; 0 where no model came."""
    loss = losses_of(c, inbox)
    similarity = 1 / (loss + _SMALLEST_LOSS) if kind == "inverse" else -loss
    return torch.where(inbox.mask & torch.isfinite(loss), similarity, 0.0)


def by_direction(c: Cohort, inbox: Inbox, alpha: float) -> Tensor:
    """Equation 6: alpha cos(theta1) + (1 - alpha) cos(theta2), [C, m]; 0 where no model came.

    theta1 is between the last local updates, theta2 between the ways from the common initial model; the cosine with
    a vector of zeros is 0. Only the pairs that met are computed, each always by the same sums, however many peers share
    the work.
    """
    model, start = inbox.pool.model, inbox.pool.start
    similarity = torch.zeros(inbox.index.shape, dtype=torch.float64)
    if not bool(inbox.mask.any()):
        return similarity
    if alpha > 0:
        if start is None:
            raise CoterieError("The answers do not tell where local training began, which theta1 needs.")
        similarity += alpha * _cosines(inbox, model, start, c.task.parameters)
    if alpha < 1:
        origin = {name: tensor[None] for name, tensor in c.task.init(c.seed).items()}
        similarity += (1 - alpha) * _cosines(inbox, model, origin, c.task.parameters)
    return similarity


def _cosines(inbox: Inbox, model: Stack, start: Stack, names: tuple[str, ...]) -> Tensor:
    """Cosines between each peer's own difference `model - start` and those of its answers, [C, m].

    Products of sampled pairs of rows, block by block of columns, so that the differences stay in the cache. The blocks
    do not depend on how many peers there are, hence neither do the sums.
    """
    rows, place = torch.unique(torch.cat([inbox.own, inbox.index[inbox.mask]]), return_inverse=True)
    own, received = place[: len(inbox.own)], place[len(inbox.own) :]
    asker = own[inbox.mask.nonzero()[:, 0]]
    everyone = torch.arange(len(rows))
    # beside the pairs, every row with itself: its squared length
    first, second = torch.cat([asker, everyone]), torch.cat([received, everyone])
    order = torch.argsort(first, stable=True)
    crow = torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(first, minlength=len(rows)).cumsum(0)])
    product = torch.zeros(len(first), dtype=torch.float64)
    blank = torch.zeros(len(first), dtype=model[names[0]].dtype)
    wanted = torch.sparse_csr_tensor(crow, second[order], blank, (len(rows), len(rows)), check_invariants=False)
    for block in _blocks(model, start, names, rows):
        product += torch.sparse.sampled_addmm(wanted, block, block.T, beta=0.0).values().double()
    unsorted = torch.empty_like(product)
    unsorted[order] = product
    length = unsorted[len(asker) :].sqrt()
    both = length[asker] * length[received]
    cosine = torch.zeros(inbox.index.shape, dtype=torch.float64)
    cosine[inbox.mask] = torch.where(both > 0, unsorted[: len(asker)] / both.clamp_min(_TINY), 0.0)
    return cosine


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

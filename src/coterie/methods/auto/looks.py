"""Two looks at every client: directions of its updates from disjoint halves of its data (ours).

In a look a client trains the received model twice, on one half of its data and on the other, and sends the mean of the
two. What its few samples do by chance is independent in the two halves; what its distribution does is not. Directions
are sent as sketches: random projections of the updates of three blocks of layers, some hundred numbers each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.core.cohort import Cohort
from coterie.core.rng import rng, torch_rng
from coterie.core.samples import ClientData, ClientId
from coterie.core.states import Stack, count
from coterie.core.task import Task
from coterie.methods.auto.messages import Groups, Look

BLOCKS = 3
"""The first fully connected layer, the other layers but the last, and the last."""
_FORGOTTEN = 0.2  # of a client's earlier looks, with each new one
_ROUNDED = 1.01
_ENOUGH = 8  # so many directions make a first mean to centre on
_WIDTHS = ((200_000, 256), (20_000, 192), (0, 128))  # the more parameters, the more numbers a sketch may have


def width(task: Task) -> int:
    """Numbers in the sketch of one block: two looks of three blocks are below 4 % of what a visit sends anyway."""
    parameters = sum(task.template[name].numel() for name in task.parameters)
    return next(wide for least, wide in _WIDTHS if parameters >= least)


def halves(c: Cohort) -> tuple[Cohort, Cohort]:
    """The clients with one half of their training data each, and with the other; the same halves in every round."""
    parts: tuple[list[ClientData], list[ClientData]] = ([], [])
    for index, client in enumerate(c.data):
        # keyed without the number of samples: where data grow, the halves are drawn again
        order = torch.from_numpy(rng(c.seed, "halves", c.ids[index], "").permutation(len(client.train)))
        for half, rows in zip(parts, (order[::2], order[1::2]), strict=True):
            half.append(ClientData(client.train.take(rows), client.test, client.valid))
    one, other = (replace(c, data=tuple(half)) for half in parts)
    return one, other


def sketches(task: Task, trained: Stack, sent: Stack, seed: int) -> Tensor:
    """The directions of some updates, [C, blocks, width]: unit rows, zero where a network has no layer of the block.

    Every matrix of weights counts alike in its block, whatever its size.
    """
    wide, found = width(task), []
    for number, names in enumerate(blocks(task)):
        total = torch.zeros(count(trained), wide)
        for name in names:
            update = (trained[name] - sent[name]).reshape(count(trained), -1).float()
            generator = torch_rng(seed, "sketch", number, name)
            place = torch.randint(wide, (update.shape[1],), generator=generator)
            sign = torch.randint(2, (update.shape[1],), generator=generator).float() * 2 - 1
            total += F.normalize(torch.zeros(len(update), wide).index_add_(1, place, update * sign), dim=1)
        found.append(F.normalize(total, dim=1))
    return torch.stack(found, 1)


def middle(one: Tensor, other: Tensor) -> Tensor:
    """The mean of two models' entries; counters of BatchNorm are whole numbers."""
    return (one + other) / 2 if one.is_floating_point() else (one + other) // 2


def blocks(task: Task) -> tuple[list[str], list[str], list[str]]:
    """Matrices of weights: the first fully connected one (else the last before the classifier), the rest, the last."""
    matrices = [name for name in task.parameters if task.template[name].dim() > 1] or list(task.parameters)
    inner, last = matrices[:-1], matrices[-1:]
    linear = [name for name in inner if task.template[name].dim() == 2]
    first = linear[:1] or inner[-1:]
    return first, [name for name in inner if name not in first], last


def _unit(directions: Tensor) -> Tensor:
    """Directions as clients sent them, [n, 2, blocks, width]: of length 1 but for rounding; longer ones are made so."""
    length = directions.norm(dim=-1, keepdim=True)
    return torch.where(length > _ROUNDED, directions / length.clamp_min(1e-30), directions)


def with_looks(
    state: Groups, ids: Sequence[ClientId], directions: Tensor, shares: Tensor, losses: Sequence[float]
) -> Groups:
    """The state after some looks: directions [n, 2, blocks, width], each less the running mean of its group.

    The mean is of the last directions of as many visits as the group has members: where few come, two alone would
    always point away from each other. Until it is made of enough of them, looks only go into the mean.
    A model that fits a client already is pulled nowhere in particular. So a look counts by the loss that is left of the
    first one's, and earlier looks are forgotten only as fast as new ones count.
    """
    centre, weight, looks = state.centre.clone(), list(state.weight), dict(state.looks)
    groups = np.array([state.cluster[client] for client in ids])
    members = np.bincount(list(state.cluster.values()), minlength=len(weight))
    for group in sorted(set(groups.tolist())):
        rows = torch.from_numpy(np.flatnonzero(groups == group))
        own, new = _unit(directions[rows].float()), len(rows)
        kept = max(min(weight[group] + new, float(members[group])) - new, 0.0)
        centre[group] = (kept * centre[group] + own.mean(1).sum(0)) / (kept + new)
        weight[group] = kept + new
        if weight[group] < min(_ENOUGH, members[group]):
            continue
        for row, apart in zip(rows.tolist(), F.normalize(own - centre[group], dim=-1), strict=True):
            old = looks.get(ids[row])
            first = losses[row] if old is None else old.loss
            counts = min(losses[row] / first, 1.0) if first > 0 else 1.0
            summed = apart if old is None else (1 - _FORGOTTEN * counts) * old.sketch + counts * apart
            looks[ids[row]] = Look(summed, shares[row].float(), 1 if old is None else old.count + 1, first)
    return replace(state, centre=centre, weight=weight, looks=looks)

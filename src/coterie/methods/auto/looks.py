"""A look at a client: the pulls of its classes on the common first model, from disjoint halves of its data (ours).

For every class that a client holds, the gradient of the loss over its samples of that class alone, at the model that
all began with and that every client can make for itself. Such a direction does not depend on how often a client has
each class, nor on the round in which it comes, so clients with different labels and of different rounds can be compared
over the classes that both hold. What a client's few samples do by chance is independent in the two halves; what its
distribution does is not. Directions are sent as random projections.

Without classes, all samples are of one kind. A gradient is then mostly which samples a half happens to have, because
targets vary with the inputs. What some epochs of training lead to is not: only what they leave unexplained counts.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from coterie.core.cohort import Cohort
from coterie.core.errors import CoterieError
from coterie.core.evaluation import outputs
from coterie.core.layers import rows_of_classes, telling_matrix, weight_matrices
from coterie.core.optimiser import Optimiser
from coterie.core.rng import rng, torch_rng
from coterie.core.samples import ClientData, Samples
from coterie.core.states import Stack, count, spread
from coterie.core.task import Task
from coterie.core.training import local_sgd

_NUMBERS, _LEAST, _MOST = 640, 16, 256
"""Numbers of a client's sketch in one block of layers, over all classes; the least and the most for one class."""
_SHARE = 0.6  # so many numbers a parameter at most: a look is sent once, and again only when a client no longer fits
_FEWEST = 8
_ANSWERS, _ANSWERED = 40, 0.2
"""Answers of untrained networks that tell what a class looks like; in all so many numbers a parameter, but not below
`_FEWEST` answers."""
_NETWORKS, _WORK = (4, 20), 2_000_000
"""The fewest and the most of these networks, by the parameters that they may have together."""
MOST_RENAMED = 512
"""With more classes nobody tells what they look like: to compare them takes their number squared."""
_ONE_STEP = Optimiser(epochs=1, batch=0, lr=1.0)
_EPOCHS = 10
"""Of training where there are no classes; with 5 and 20 groups are found nearly as well (docs/results/auto.md)."""


def kinds(task: Task) -> int:
    """Kinds of samples that are looked at apart: the classes, or one."""
    return task.classes if task.has_classes else 1


def width(task: Task) -> int:
    """Numbers in the sketch of one kind of samples in one block of layers."""
    parameters = sum(task.template[name].numel() for name in task.parameters)
    wide = min(_MOST, max(_LEAST, _NUMBERS // kinds(task)))
    return max(_FEWEST, min(wide, int(_SHARE * parameters) // (2 * kinds(task) * len(blocks(task)))))


def blocks(task: Task) -> list[list[str]]:
    """Matrices of weights: the first fully connected one (else the last before the classifier), the rest, the last."""
    matrices = weight_matrices(task) or list(task.parameters)
    inner, last = matrices[:-1], matrices[-1:]
    first = [telling_matrix(task, inner)] if inner else []
    return [names for names in (first, [name for name in inner if name not in first], last) if names]


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


def pulls(c: Cohort, opt: Optimiser) -> tuple[Tensor, Tensor, Tensor]:
    """What the clients show: sketches [C, 2, kinds, blocks, width] in 16 bits, their scales [C, blocks], and how many
    samples of each kind either half has, [C, 2, kinds].

    One full-batch step of SGD at rate 1 is the gradient. Without classes it is what training with `opt` leads to.
    """
    first = spread(c.task.init(c.seed), len(c))
    how = _ONE_STEP if c.task.has_classes else replace(opt, epochs=_EPOCHS)
    found, counts = [], []
    for half in halves(c):
        rows = [_rows_by_kind(c.task, client.train) for client in half.data]
        counts.append(torch.tensor([[float(len(some)) for some in each] for each in rows]))
        of_kind = []
        for kind in range(kinds(c.task)):
            data = [ClientData(d.train.take(r[kind]), d.test) for d, r in zip(half.data, rows, strict=True)]
            some = replace(half, data=tuple(data), round=0)
            of_kind.append(sketches(c.task, local_sgd(some, first, how, purpose="look"), first, c.seed))
        found.append(torch.stack(of_kind, 1))
    sketch = torch.stack(found, 1).nan_to_num(0.0, 0.0, 0.0)
    scale = sketch.abs().amax(dim=(1, 2, 4)).clamp_min(1e-30)
    return (sketch / scale[:, None, None, :, None]).half(), scale, torch.stack(counts, 1)


def appearances(c: Cohort) -> Tensor:
    """What their classes look like: mean answers of untrained networks, [C, 2, kinds, answers]; 0 where one is lacked.

    Untrained networks are random features of any kind of input. The first is not the one that training begins with.
    """
    task, wide = c.task, _answers(c.task)
    found = torch.zeros(len(c), 2, kinds(task), wide)
    for first in range(0, wide, task.classes):
        network, few = spread(task.init(c.seed, 1 + first // task.classes), 1), min(task.classes, wide - first)
        for number, half in enumerate(halves(c)):
            for index, client in enumerate(half.data):
                known = (client.train.y >= 0) & (client.train.y < task.classes)
                samples = client.train.take(torch.nonzero(known)[:, 0])
                if len(samples):
                    said = outputs(task, network, samples).float()[:, :few]
                    each = torch.bincount(samples.y, minlength=task.classes).clamp_min(1)
                    means = torch.zeros(task.classes, few).index_add_(0, samples.y, said) / each[:, None]
                    found[index, number, :, first : first + few] = means
    return found.nan_to_num(0.0, 0.0, 0.0)


def _answers(task: Task) -> int:
    """How many answers; none where the network's are not one for each class, or it cannot be drawn again."""
    if not task.has_classes or task.classes > MOST_RENAMED or not rows_of_classes(task):
        return 0
    try:
        task.init(0, 1)
    except CoterieError:
        return 0
    parameters = sum(task.template[name].numel() for name in task.parameters)
    networks = max(_NETWORKS[0], min(_NETWORKS[1], _WORK // parameters))
    wide = min(max(_ANSWERS, min(task.classes, _MOST)), networks * task.classes)
    return max(min(_FEWEST, wide), min(wide, int(_ANSWERED * parameters) // (2 * task.classes)))


def sketches(task: Task, trained: Stack, sent: Stack, seed: int) -> Tensor:
    """Random projections of some updates, [C, blocks, width]."""
    wide, found = width(task), []
    for number, names in enumerate(blocks(task)):
        total = torch.zeros(count(trained), wide)
        for name in names:
            update = (trained[name] - sent[name]).reshape(count(trained), -1).float()
            generator = torch_rng(seed, "sketch", number, name)
            place = torch.randint(wide, (update.shape[1],), generator=generator)
            sign = torch.randint(2, (update.shape[1],), generator=generator).float() * 2 - 1
            total.index_add_(1, place, update * sign)
        found.append(total)
    return torch.stack(found, 1)


def _rows_by_kind(task: Task, samples: Samples) -> list[Tensor]:
    if not task.has_classes or samples.y.dim() != 1:
        return [torch.arange(len(samples)), *[torch.arange(0)] * (kinds(task) - 1)]
    return [torch.nonzero(samples.y == kind)[:, 0] for kind in range(task.classes)]

"""Ours, not in the paper: a teacher that uses all domains alike, without seeing the samples (the setting `balance`).

This is the equipartition of self-labelling (Asano et al. 2020, the paper's reference 45, of which the paper leaves it
out), federated: offsets of a classifier's outputs are found from sums over clients. A sample has the soft assignment
softmax(sharpness * (output + offset)); clients sum it over their samples, and the server lowers the offset of what has
too much. A client with one domain stays whole: only the sums over all clients are made equal. The offsets are the
minimum of a convex function (the dual that Sinkhorn's steps descend); with sums of products of the assignments the
server makes Newton's steps, which take 4 to 8 passes on multi-source digits and PACS where Sinkhorn's take 15 to 20.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from coterie.core.federation import Federation
from coterie.core.states import State
from coterie.methods.fedcg.messages import Assigned, Weigh

if TYPE_CHECKING:
    from coterie.methods.fedcg.method import FedCG

MOST_PASSES = 20
"""A last pass more or less hardly matters, and each one asks all clients."""
_CERTAIN = 10.0
"""The deviation of the outputs, once they are made sharp. With outputs as they are the soft sums are even and the
labels are not: untrained networks leave a domain of multi-source digits with 0 to 1 % of the samples on two of three
seeds."""
_CLOSE = 0.05
_LONGEST_STEP = 3.0
_STEADY = 1e-3
"""Added to the curvature: where all assignments are certain it has none, and the step is along the slope."""
_TINY = 1e-12


def balanced_offsets(method: FedCG, teacher: State, fed: Federation) -> Tensor | None:
    """Offsets of the teacher's outputs, [D]; None where no client answered."""
    message = Weigh(teacher, torch.zeros(method.domains, dtype=torch.float64), torch.zeros(()).double())
    ids, known = sorted(fed.ids), False
    for _ in range(MOST_PASSES):
        value = fed.ask(method.weigh, ids, same=message).value
        if value is None:
            break
        if not known:
            total, squares = value.total.sum(0), value.squares.sum(0)
            offsets, sharpness = first_offsets(total, squares, float(value.size.sum()))
            known = True
        else:
            soft = value.soft.sum(0)
            if is_even(soft):
                break
            offsets = next_offsets(offsets, soft, value.products.sum(0), sharpness)
        message = Weigh(teacher, offsets, sharpness)
    return message.offsets if known else None


def weighed(said: Sequence[Tensor], sent: Weigh, size: Tensor) -> Assigned:
    """What clients answer: sums over their samples, from the logarithms [n, D] of what the teacher says to each."""
    soft, products, total, squares = [], [], [], []
    for own in said:
        outputs = own - own.mean(1, keepdim=True)
        each = soft_assignments(outputs, sent.offsets, sent.sharpness)
        soft.append(each.sum(0))
        products.append(each.T @ each)
        total.append(outputs.sum(0))
        squares.append((outputs**2).sum(0))
    sums = [torch.stack(each) for each in (soft, products, total, squares)]
    return Assigned(sums[0], sums[1], sums[2], sums[3], size)


def first_offsets(total: Tensor, squares: Tensor, number: float) -> tuple[Tensor, Tensor]:
    """Offsets that centre the outputs, and how sharp to make them; from sums over all samples, [D] each."""
    centre = total.double() / max(number, 1.0)
    variance = (squares.double() / max(number, 1.0) - centre**2).clamp_min(0).mean()
    return -centre, _CERTAIN / variance.sqrt().clamp_min(_TINY)


def soft_assignments(outputs: Tensor, offsets: Tensor, sharpness: Tensor) -> Tensor:
    """How much of each sample is in each cluster, [n, D]; rows sum to 1."""
    return torch.softmax(sharpness * (outputs.double() + offsets), 1)


def is_even(soft: Tensor) -> bool:
    """Whether no cluster has more than a twentieth too much or too little."""
    share = soft.double() / soft.sum().clamp_min(_TINY)
    return bool(((share * len(soft) - 1).abs() <= _CLOSE).all())


def next_offsets(offsets: Tensor, soft: Tensor, products: Tensor, sharpness: Tensor) -> Tensor:
    """A step of Newton's, from sums of assignments [D] and of their products [D, D] over all samples.

    With the shares f = E[p] the slope is f - 1 / D and the curvature diag(f) - E[p p^T].
    """
    number = soft.double().sum().clamp_min(_TINY)
    share = soft.double() / number
    curvature = torch.diag(share + _STEADY) - products.double() / number
    step: Tensor = torch.linalg.solve(curvature, share - 1 / len(soft))
    shorter: Tensor = step * (_LONGEST_STEP / step.abs().max().clamp_min(_LONGEST_STEP))
    return offsets - shorter / sharpness

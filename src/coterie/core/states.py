"""The algebra of model states.

A `State` is one model: parameters and buffers by name. A `Stack` is many: the same names, each tensor with a leading
axis. Averages, cluster means, gossip and personalised mixtures are all one operation, `mix`.

Integer buffers (BatchNorm's batch counter) are part of the state everywhere: they are averaged and rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.devices import there
from coterie.core.rows import RowMath
from coterie.core.spill import column_blocks

State = dict[str, Tensor]
Stack = dict[str, Tensor]
Seen = Callable[[str, slice], Tensor]
"""(entry, columns) -> these numbers of the entry, of every model: [C, width]."""


@dataclass(frozen=True)
class Picked:
    """The models at some rows of a stack, which may repeat. Nothing is copied but what is looked at."""

    models: Stack
    index: Tensor


def part(models: Stack | Picked, name: str, rows: slice) -> Tensor:
    """Some rows of one entry."""
    return models[name][rows] if isinstance(models, dict) else models.models[name][models.index[rows]]


def stack(states: Sequence[State]) -> Stack:
    """Put models side by side: [State, ...] -> Stack."""
    return {name: torch.stack([state[name] for state in states]) for name in states[0]}


def concat(stacks: Sequence[Stack]) -> Stack:
    """Join stacks along their leading axis."""
    return {name: torch.cat([part[name] for part in stacks]) for name in stacks[0]}


def count(models: Stack) -> int:
    """How many models a stack holds."""
    return next(iter(models.values())).shape[0]


def row(models: Stack, index: int) -> State:
    """One model of a stack (a view)."""
    return {name: tensor[index] for name, tensor in models.items()}


def take(models: Stack, index: Tensor) -> Stack:
    """The models at the given rows, in that order; rows may repeat."""
    return {name: tensor[index] for name, tensor in models.items()}


def split(models: Stack, rows: int) -> list[Stack]:
    """The stack in parts of so many rows (views); the last may have fewer."""
    starts = range(0, count(models), rows)
    return [{name: tensor[start : start + rows] for name, tensor in models.items()} for start in starts]


def spread(state: State, copies: int) -> Stack:
    """The same model for everyone, without copying it."""
    return {name: tensor.expand(copies, *tensor.shape) for name, tensor in state.items()}


def clone(models: Stack) -> Stack:
    """A copy that shares nothing."""
    return {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in models.items()}


def mix(weights: Tensor, models: Stack, seen: Seen | None = None) -> Stack:
    """Weighted sums of models: [R, C] x [C, ...] -> [R, ...]. With `seen`, of what it makes of the models."""
    seen = seen or columns_of(models)
    return {name: _mix(weights, name, tensor, seen) for name, tensor in models.items()}


def _mix(weights: Tensor, name: str, like: Tensor, seen: Seen) -> Tensor:
    parts = []
    for columns in column_blocks(weights.shape[1], like[:1].numel()):
        numbers = seen(name, columns)
        exact = there(numbers) if like.is_floating_point() else numbers.double()
        parts.append((weights.to(exact.dtype).to(exact.device) @ exact).to(like.device))
    mixed = (torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]).reshape(weights.shape[0], *like.shape[1:])
    return mixed if like.is_floating_point() else mixed.round().to(like.dtype)


def columns_of(models: Stack, rows: Tensor | None = None) -> Seen:
    """The numbers of the models as they are; of some rows only, where these are given."""
    flats = {name: tensor.reshape(len(tensor), -1) for name, tensor in models.items()}

    def seen(name: str, columns: slice) -> Tensor:
        numbers = flats[name][:, columns]
        return numbers if rows is None else numbers[rows]

    return seen


def mean(models: Stack, weights: Tensor) -> State:
    """The average of the models, weighted (the weights are normalised here); where all weigh nothing, the plain one."""
    exact = weights.double() if bool(weights.any()) else torch.ones(len(weights), dtype=torch.float64)
    shares = exact / exact.sum()
    return row(mix(shares[None], models), 0)


def group_means(models: Stack, weights: Tensor, groups: Tensor, previous: Stack, seen: Seen | None = None) -> Stack:
    """One weighted mean per group; a group without members keeps its previous model.

    `groups` holds the group of each model, 0 .. K-1, where K is the number of models in `previous`. With `seen`, the
    means are of what it makes of the models.
    """
    k = count(previous)
    shares = torch.zeros(k, len(groups), dtype=torch.float64)
    shares[groups, torch.arange(len(groups))] = weights.double()
    total = shares.sum(1, keepdim=True)
    met = total[:, 0] > 0
    mixed = mix(shares / total.clamp_min(torch.finfo(torch.float64).tiny), models, seen)
    return {
        name: torch.where(met.view(-1, *[1] * (tensor.dim() - 1)), tensor, previous[name])
        for name, tensor in mixed.items()
    }


def bag_means(models: Stack, members: Tensor, sizes: Tensor, math: RowMath | None = None) -> Stack:
    """Plain means of a few models each: of those at the first `sizes[0]` rows in `members`, at the next `sizes[1]`, ...

    Computed by `math` where there is some and it takes the numbers, else by torch.
    """
    return {name: _bag_means(tensor, members, sizes, math) for name, tensor in models.items()}


def _bag_means(tensor: Tensor, members: Tensor, sizes: Tensor, math: RowMath | None) -> Tensor:
    exact = tensor if tensor.is_floating_point() else tensor.double()
    rows = exact.reshape(len(exact), -1)
    if math is not None and math.takes(rows):
        means = math.means(rows, members, sizes)
    else:
        starts = sizes.cumsum(0) - sizes
        means = torch.nn.functional.embedding_bag(members, rows, starts, mode="mean")
    shaped = means.reshape(len(sizes), *tensor.shape[1:])
    return shaped if tensor.is_floating_point() else shaped.round().to(tensor.dtype)


def axpy(a: float, x: Stack, y: Stack) -> Stack:
    """Entry by entry, a * x + y."""
    return {name: y[name] + a * tensor if tensor.is_floating_point() else y[name] for name, tensor in x.items()}


def minus(x: Stack, y: Stack) -> Stack:
    """The difference x - y of the floating-point entries (a change of a model; counters have none)."""
    return {name: tensor - y[name] for name, tensor in x.items() if tensor.is_floating_point()}


def zeros(models: Stack) -> Stack:
    """Zeros in the shape of the floating-point entries."""
    return {name: torch.zeros_like(tensor) for name, tensor in models.items() if tensor.is_floating_point()}


def flat(models: Stack) -> Tensor:
    """All floating-point entries of each model in one row: [C, D]."""
    rows = count(models)
    return torch.cat([t.reshape(rows, -1) for t in models.values() if t.is_floating_point()], dim=1)


def unflat(matrix: Tensor, like: Stack) -> Stack:
    """The inverse of `flat`: rows of numbers -> models named and shaped as `like` (one model's shapes after row 0).

    Entries that `flat` leaves out are taken from `like`, which must then have as many rows as `matrix`.
    """
    result: Stack = {}
    start = 0
    for name, tensor in like.items():
        if not tensor.is_floating_point():
            result[name] = tensor
            continue
        width = tensor[0].numel()
        result[name] = matrix[:, start : start + width].reshape(-1, *tensor.shape[1:])
        start += width
    return result


def distance(a: Stack, b: Stack) -> Tensor:
    """Euclidean distances between all models of `a` and all of `b`: [A, B]."""
    x, y = flat(a).double(), flat(b).double()
    squared = (x * x).sum(1)[:, None] + (y * y).sum(1)[None] - 2 * x @ y.T
    return squared.clamp_min(0).sqrt()


def cosine(matrix: Tensor) -> Tensor:
    """Cosines between all rows, by one product; a zero row has cosine 0 with everything."""
    unit = _unit(there(matrix, double=matrix.dtype is torch.float64))
    return (unit @ unit.T).to(matrix.device)


def _unit(matrix: Tensor) -> Tensor:
    norm = matrix.norm(dim=1, keepdim=True)
    return torch.where(norm > 0, matrix / norm.clamp_min(torch.finfo(matrix.dtype).tiny), 0.0)

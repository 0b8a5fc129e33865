"""Which replies a server can use: the right shapes, finite numbers, no absurd length, the size that was announced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from coterie.core.federation import Failure
from coterie.core.samples import ClientId
from coterie.core.spill import row_blocks
from coterie.core.states import State

Rows = Mapping[str, Tensor]
_LARGEST_RATIO = 1e3
_LARGEST_NORM = 1e10
"""Longer than any honest sum or model, and so short that float32 can still average thousands of it."""


def largest_norm(norms: Tensor) -> float:
    """How long a model in a reply may be: a thousand times the median of those that came together with it.

    Large inputs make the models of all clients long; one that is far longer than the others is broken. What stops a
    single reply, or many that are equally broken, is the limit for all numbers.
    """
    usual = norms[torch.isfinite(norms)]
    middle = float(usual.median()) if len(usual) else 0.0  # of an even number the lower one
    return min(_LARGEST_NORM, _LARGEST_RATIO * (1 + middle))


def model_norms(reply: Rows, template: State) -> Tensor:
    """The length of the model (or models) in every row of a stacked reply whose shapes are right."""
    squares = [_squares(tensor) for path, tensor in reply.items() if _part_of_model(path, template) is not None]
    return torch.stack(squares).sum(0).sqrt() if squares else torch.zeros(0, dtype=torch.float64)


def _part_of_model(path: str, template: State) -> Tensor | None:
    """The entry of the template that an entry of a reply is, if its path ends in the name of one."""
    return template.get(path.split("/", 1)[-1]) if "/" in path else None


def _squares(tensor: Tensor) -> Tensor:
    """The sum of squares of every row; of numbers that are not floating-point ones, zero."""
    if not tensor.is_floating_point():
        return torch.zeros(len(tensor), dtype=torch.float64)
    numbers = tensor.reshape(len(tensor), -1)
    lengths = []
    for rows in row_blocks(*numbers.shape):
        some = numbers[rows]
        lengths.append((some.double() if some.dtype == torch.float16 else some).norm(dim=1).double())
    return torch.cat(lengths).square() if lengths else torch.zeros(0, dtype=torch.float64)


def check_reply(
    names: Sequence[ClientId],
    reply: Rows,
    template: State,
    limit: float | None = None,
    like: Rows | None = None,
    unbounded: Sequence[str] = (),
    said: Tensor | None = None,
) -> tuple[list[int], dict[ClientId, Failure]]:
    """Which rows of a stacked reply are usable, and what is wrong with the others.

    Entries that carry a model (their path ends in a name of the template) must have its shape, others that of `like`;
    every number must be finite, but for those of the entries in `unbounded`; no model may be longer than `limit`
    (without one, `largest_norm` of these rows), and nothing else longer than any honest sum. A `size`, by which a
    reply weighs, must be what the client `said` when it joined.
    """
    bad: dict[ClientId, Failure] = {}
    norms = torch.zeros(len(names), dtype=torch.float64)
    for path, tensor in reply.items():
        wanted = _part_of_model(path, template)
        usual = tensor.shape if like is None else like[path].shape
        right = usual if wanted is None else (len(names), *wanted.shape)
        if tensor.shape != right:
            found, proper = tuple(tensor.shape[1:]), tuple(right[1:])
            for name in names:
                bad.setdefault(name, Failure("wrong shape", f"{path} has shape {found} instead of {proper}"))
            continue
        if not tensor.is_floating_point() or path in unbounded:
            continue
        squares = _squares(tensor)  # one pass: finite only if every number is, and what the norm needs
        most = float("inf") if wanted is not None else _LARGEST_NORM**2
        for index in torch.nonzero(~(torch.isfinite(squares) & (squares <= most))).flatten().tolist():
            kind = "too large" if bool(torch.isfinite(tensor[index]).all()) else "not finite"
            text = "is too large to be true" if kind == "too large" else "has NaN or infinite numbers"
            bad.setdefault(names[index], Failure(kind, f"{path} {text}"))  # type: ignore[arg-type]
        if wanted is not None:
            norms += squares
    norms = norms.sqrt()
    most = largest_norm(norms) if limit is None else limit
    for index in torch.nonzero(norms > most).flatten().tolist():
        size = float(norms[index])
        bad.setdefault(
            names[index], Failure("too large", f"its model has norm {size:.3g}, more than the {most:.3g} allowed")
        )
    if said is not None and "size" in reply:
        bad = {**_false_sizes(names, reply["size"], said), **bad}
    return [index for index, name in enumerate(names) if name not in bad], bad


def _false_sizes(names: Sequence[ClientId], size: Tensor, said: Tensor) -> dict[ClientId, Failure]:
    """Who claims another number of samples than when it joined."""
    if size.numel() != len(names):
        return {name: Failure("wrong shape", "its size is not one number") for name in names}
    claimed, known, false = size.flatten().double(), said.flatten().double(), {}
    for index in torch.nonzero((claimed != known) | (claimed < 0)).flatten().tolist():
        text = f"it claims {claimed[index]:g} samples and said {known[index]:g} when it joined"
        false[names[index]] = Failure("refused", text)
    return false

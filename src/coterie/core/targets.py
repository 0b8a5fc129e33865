"""What is predicted: the kind of the targets, and the common scale of targets that are numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from coterie.core.errors import CoterieError, unknown

TaskKind = Literal["classification", "binary", "multilabel", "regression"]
"""One class of several, one of two, any number of labels at once, or numbers."""
TaskName = Literal["auto", "classification", "binary", "multilabel", "regression"]
"""The setting `task`: a kind, or "auto" for what the targets clearly are."""
TASKS: tuple[str, ...] = get_args(TaskName)
KINDS: tuple[TaskKind, ...] = get_args(TaskKind)


@dataclass(frozen=True)
class TargetScale:
    """Mean and deviation of the training targets of all clients, one pair for each number that is predicted.

    A network learns (y - mean) / std, so that targets of any size (house prices) train at the usual rates; its outputs
    are brought back to the user's units before anybody sees them.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def measured(cls, targets: Sequence[Tensor]) -> TargetScale:
        """The scale of all these targets together; a number that never changes keeps its size."""
        count, total, squares = 0, torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
        shift = next((_columns(y)[:1] for y in targets if len(y)), torch.zeros(1, 1, dtype=torch.float64))
        for y in targets:
            near = _columns(y) - shift  # large numbers that lie close together lose no digits
            count, total, squares = count + len(near), total + near.sum(0), squares + near.square().sum(0)
        mean = total / max(count, 1)
        deviation = (squares / max(count, 1) - mean.square()).clamp_min(0).sqrt()
        std = torch.where(deviation > 0, deviation, torch.ones_like(deviation))
        return cls(tuple((mean + shift[0]).tolist()), tuple(std.tolist()))

    def standardised(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        """What the network learns, in the form of `y`."""
        mean, std = self._tensors()
        return ((_columns(y) - mean) / std).to(dtype).reshape(y.shape)

    def restored(self, output: Tensor) -> Tensor:
        """Outputs of the network [n, d] in the user's units."""
        mean, std = (part.to(output.dtype) for part in self._tensors())
        return output * std + mean

    def _tensors(self) -> tuple[Tensor, Tensor]:
        return torch.tensor(self.mean, dtype=torch.float64), torch.tensor(self.std, dtype=torch.float64)


def _columns(y: Tensor) -> Tensor:
    """Targets as [n, d] in double precision."""
    return y.double().reshape(len(y), -1)


def chosen_kind(task: TaskName, found: TaskKind, classes: int, squares: bool = False) -> TaskKind:
    """The kind of a run: what the user says, if the targets can be that, or what they are.

    Squared errors (`squares`) are those of numbers, so they make a task with whole numbers one of regression.
    """
    if task not in TASKS:
        raise unknown("task", str(task), TASKS)
    if task == "auto":
        return "regression" if squares and found in ("classification", "binary") else found
    counts_as_classes = {task, found} == {"classification", "binary"} and (task == "classification" or classes <= 2)
    if task in ("regression", found) or counts_as_classes:
        return task
    told = {"classification": f"{classes} classes", "binary": "two classes", "multilabel": f"{classes} labels a sample"}
    raise CoterieError(
        f"The task is to be {task}, but the targets are {told.get(found, 'numbers')}; "
        f"set task = {found}, or give other targets."
    )

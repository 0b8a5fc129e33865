"""Between stacks of models and the compiled kernel, which works on flat rows of numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from coterie.data.samples import Normalise, Samples
from coterie.kernel import Net
from coterie.kernel.library import Library
from coterie.states import Stack, count
from coterie.task import Task


def library_of(task: Task) -> Library | None:
    """The compiled kernel where it is used for this task."""
    return task.net.library if isinstance(task.net, Net) else None


def vectors(net: Net, models: Stack) -> Tensor:
    """A fresh matrix with one model per row, in the kernel's order of parameters."""
    rows = count(models)
    return torch.cat([models[name].reshape(rows, -1) for name in net.parameters], dim=1)


def models_of(net: Net, matrix: Tensor, like: Stack) -> Stack:
    """The inverse of `vectors` (views of the matrix)."""
    widths = [like[name][0].numel() for name in net.parameters]
    columns = matrix.split(widths, dim=1)
    named = dict(zip(net.parameters, columns, strict=True))
    return {name: named[name].reshape(-1, *tensor.shape[1:]) for name, tensor in like.items()}


def inputs(task: Task, samples: Samples) -> Tensor:
    """What the kernel reads: bytes as they are, other numbers in the task's precision."""
    x = samples.x if samples.x.dtype == torch.uint8 else samples.x.to(task.dtype)
    return x.contiguous()


def scaling(normalise: Normalise) -> dict[str, Any]:
    """How the kernel normalises while it reads."""
    return {"mean": normalise.mean, "std": normalise.std, "scale": normalise.scale}


def target(task: Task, samples: Samples) -> Tensor | None:
    """What the kernel compares outputs with; None is the input itself."""
    if task.loss == "reconstruction":
        return None
    return samples.y.to(task.dtype if task.loss == "mse" else torch.int64).contiguous()

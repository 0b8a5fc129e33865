"""Between stacks of models and the compiled kernel, which works on flat rows of numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from coterie.core.samples import Normalise, Samples
from coterie.core.states import Stack, State, count
from coterie.core.task import Task
from coterie.kernel import Net, Routing
from coterie.kernel.library import Library


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
    return {
        # what is no parameter (how domains borrow from each other) is not trained
        name: named[name].reshape(-1, *tensor.shape[1:]) if name in named else tensor.clone()
        for name, tensor in like.items()
    }


def takes(net: Net, samples: Samples) -> bool:
    """Whether the kernel can compute with these samples: a network with domains needs one domain for each."""
    return not net.domains or (samples.side is not None and not samples.side.is_floating_point())


def routing(net: Net, model: State, samples: Samples) -> Routing | None:
    """The samples' domains and how these borrow from each other in this model."""
    if not net.domains:
        return None
    assert samples.side is not None
    mix = model.get("adjacency")
    return Routing(samples.side.to(torch.int64).contiguous(), None if mix is None else mix.contiguous())


def grouped(order: Tensor, epochs: int, batch: int, domains: Tensor) -> Tensor:
    """The same batches with the samples of each domain side by side."""
    rows = order.view(epochs, -1)
    keys = torch.arange(rows.shape[1]) // batch * (int(domains.max()) + 1) + domains[rows]
    return rows.gather(1, keys.argsort(dim=1, stable=True)).flatten()


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

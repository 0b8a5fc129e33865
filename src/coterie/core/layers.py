"""Which layers of a network have weights, and which of them tells most of the data that it was trained on."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from coterie.core.task import Task


def weight_matrices(task: Task) -> list[str]:
    """The names of all weights (biases and norms are vectors), in the order in which the network lists them."""
    return [name for name in task.parameters if task.template[name].dim() > 1]


def telling_matrix(task: Task, names: Sequence[str]) -> str:
    """The first fully connected one of some weights; else the last of them.

    The names are those before the classifier, whose updates follow the labels rather than the inputs.
    """
    return next((name for name in names if task.template[name].dim() == 2), names[-1])


def in_order_of_use(task: Task, names: Sequence[str]) -> list[str]:
    """The parameters, in the order in which a forward pass is done with their layers.

    The order in which a network lists its parameters says less: a head may be written down before the body.
    """
    module, calls = task.module.eval(), []
    hooks = [
        layer.register_forward_hook(lambda *_, name=name: calls.append(name)) for name, layer in module.named_modules()
    ]
    try:
        with torch.no_grad():
            module(task.inputs(torch.zeros(1, *task.shape, device=task.device)))
    finally:
        for hook in hooks:
            hook.remove()
    last = {layer: place for place, layer in enumerate(calls)}
    used = [name for name in names if name.rpartition(".")[0] in last]
    return sorted(used, key=lambda name: last[name.rpartition(".")[0]])


def rows_of_classes(task: Task) -> list[str]:
    """The weights and biases whose rows are the classes, one each: those of the last layer; none where there are none.

    That is tried out: a network whose rows are moved on by one must answer as before, each answer moved on by one.
    """
    matrices = in_order_of_use(task, weight_matrices(task)) if task.has_classes else []
    last = matrices[-1].rpartition(".")[0] if matrices else ""
    own = [name for name in task.parameters if name.rpartition(".")[0] == last]
    if not own or any(task.template[name].shape[0] != task.classes for name in own):
        return []
    first = task.init(0)
    inputs = task.inputs(torch.rand(2, *task.shape, generator=torch.Generator().manual_seed(0)).to(task.device))
    with torch.no_grad():
        before = task.answers(task.loaded(first).eval(), inputs).clone()
        moved = {name: tensor.roll(1, 0) if name in own else tensor for name, tensor in first.items()}
        after = task.answers(task.loaded(moved).eval(), inputs)
    if before.shape != (2, task.classes):
        return []
    return own if torch.allclose(before.roll(1, 1), after, rtol=1e-4) and bool(before.std(1).min() > 0) else []

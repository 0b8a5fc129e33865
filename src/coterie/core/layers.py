"""Which layers of a network have weights, and which of them tells most of the data that it was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from coterie.core.states import State
from coterie.core.task import Task

_ROWS_OF_CLASSES: WeakKeyDictionary[Task, list[str]] = WeakKeyDictionary()


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
    """The weights and biases whose rows are the classes, one each: those of a last layer; none where there are none.

    That is tried out: a network whose rows are moved on by one must answer as before, each answer moved on by one. The
    weights are disturbed for it, for what begins with zeros or ones (a bias, a norm of the answers) will not stay so.
    A network that does not take numbers between 0 and 1 has no such rows. It is found out once for a task.
    """
    if task not in _ROWS_OF_CLASSES:
        _ROWS_OF_CLASSES[task] = _tried_out(task) if task.has_classes else []
    return _ROWS_OF_CLASSES[task]


def _tried_out(task: Task) -> list[str]:
    generator = torch.Generator().manual_seed(0)
    state = task.init(0)
    for name, tensor in state.items():
        if tensor.is_floating_point():
            state[name] = tensor + 0.1 * torch.rand(tensor.shape, generator=generator).to(tensor)
    try:
        inputs = task.inputs(torch.rand(2, *task.shape, generator=generator).to(task.device))
        for matrix in reversed(in_order_of_use(task, weight_matrices(task))):
            layer = matrix.rpartition(".")[0]
            own = [name for name in task.parameters if name.rpartition(".")[0] == layer]
            own = [name for name in own if task.template[name].shape[:1] == (task.classes,)]
            if own and _moves_the_answers(task, state, own, inputs):
                return own
    except Exception:  # the user's code can fail in any way on inputs that are not its own
        return []
    return []


def _moves_the_answers(task: Task, state: State, rows: Sequence[str], inputs: Tensor) -> bool:
    with torch.no_grad():
        before = task.answers(task.loaded(state).eval(), inputs).clone()
        moved = {name: tensor.roll(1, 0) if name in rows else tensor for name, tensor in state.items()}
        after = task.answers(task.loaded(moved).eval(), inputs)
    differ = before.shape == (len(inputs), task.classes) and bool(before.std(1).min() > 0)
    return differ and torch.allclose(before.roll(1, 1), after, rtol=1e-4, atol=1e-6)

"""What a change of its input does to a network: by the compiled backend where it can, else by torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from coterie.core.compiled import InputGradients, Refusal
from coterie.core.states import Stack, count, row
from coterie.core.task import Task


def input_gradients(task: Task, models: Stack) -> InputGradients:
    """The models as they are now, in evaluation mode, as functions of their ready inputs.

    `gradients(model, inputs, labels)` is the summed cross-entropy of that model and its gradient with respect to the
    inputs. Every model has a pass of its own: on CPUs plain convolutions beat one grouped convolution.
    """
    compiled = None if isinstance(task.compiled, Refusal) else task.compiled.input_gradients(models)
    if compiled is not None:
        return compiled
    module = task.module.eval()
    states = [
        {name: _laid_out(tensor.detach().to(task.device)) for name, tensor in row(models, j).items()}
        for j in range(count(models))
    ]

    def gradients(model: int, inputs: Tensor, labels: Tensor) -> tuple[float, Tensor]:
        x = _laid_out(inputs.to(task.device)).requires_grad_()
        with torch.enable_grad():
            logits = functional_call(module, states[model], (x,))
            loss = F.cross_entropy(logits, labels.to(task.device), reduction="sum")
            (gradient,) = torch.autograd.grad(loss, x)
        return float(loss.detach()), gradient.to(inputs.device)

    return gradients


def _laid_out(tensor: Tensor) -> Tensor:
    """The layout in which torch's convolutions need no copies."""
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor.contiguous()

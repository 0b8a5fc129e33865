"""What is learnt: a network, its loss and how raw inputs reach it."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.core import user_code
from coterie.core.compiled import BACKENDS, Compiled, Refusal
from coterie.core.errors import CoterieError
from coterie.core.rng import key64
from coterie.core.rows import RowMath
from coterie.core.samples import Normalise, Population, Samples
from coterie.core.states import State

LossName = Literal["cross_entropy", "mse", "reconstruction"]
LossFn = Callable[[Tensor, Tensor], Tensor]
_LOSSES: dict[LossName, LossFn] = {
    "cross_entropy": F.cross_entropy,
    "mse": lambda output, target: F.mse_loss(output, target.reshape(output.shape)),
    "reconstruction": lambda output, target: F.mse_loss(output, target.reshape(output.shape)),
}
DRAWING = threading.Lock()
"""Held while a network is built: layers draw from torch's one generator, which all threads share."""


@dataclass(frozen=True, eq=False)
class Task:
    """A network that clients can train and judge, as functions of its state.

    `model` is a function that builds a fresh network, or a ready one whose weights are then the common start. `loss` is
    a name or any function (output, target) -> mean loss; with "reconstruction" the target is the input itself.
    """

    model: nn.Module | Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int
    normalise: Normalise = field(default_factory=Normalise)
    loss: LossName | LossFn = "cross_entropy"
    dtype: torch.dtype = torch.float32
    use_kernel: bool = True
    _local: threading.local = field(default_factory=threading.local, repr=False)

    @classmethod
    def of(
        cls,
        model: nn.Module | Callable[[], nn.Module],
        population: Population,
        *,
        loss: LossName | LossFn = "cross_entropy",
        dtype: torch.dtype = torch.float32,
    ) -> Task:
        """The task of training `model` (a builder, or a ready network) on a population's data."""
        if not isinstance(model, nn.Module):
            first = user_code.build(model)
            model = (
                first if user_code.build(model) is first else model
            )  # `lambda: ready` is a ready network, not a builder
        user_code.check_loss(loss, _LOSSES)
        task = cls(model, tuple(population.shape), population.classes, population.normalise, loss, dtype)
        task._check(population)
        return task

    def init(self, seed: int, which: int = 0) -> State:
        """A fresh model. `which` tells apart the several initial models of one run; 0 is the shared one."""
        with DRAWING, torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(key64(seed, "init", which) >> 1)
            module = self._build()
            if which and isinstance(self.model, nn.Module):
                _redraw(module)
        return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}

    @cached_property
    def template(self) -> State:
        """One state, for its names, shapes and dtypes only."""
        return self.init(0)

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """Names of what is trained; the other entries of the state are buffers."""
        return tuple(name for name, _ in self.module.named_parameters())

    @property
    def module(self) -> nn.Module:
        """This thread's scratch network: the next use overwrites its contents."""
        if not hasattr(self._local, "module"):
            with DRAWING:
                module = self._build()
            if any(isinstance(layer, nn.Conv2d) for layer in module.modules()):
                # 1.25-1.35 times as fast on CPUs, and the same numbers
                module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self._local.module = module
        ready: nn.Module = self._local.module
        return ready

    def loaded(self, state: State) -> nn.Module:
        """This thread's scratch network with this state in it."""
        module = self.module
        with torch.no_grad():
            for name, tensor in module.state_dict().items():
                tensor.copy_(state[name])
        return module

    @cached_property
    def compiled(self) -> Compiled | Refusal:
        """The backend that computes this task, or why torch does it instead."""
        if not self.use_kernel:
            return Refusal("the kernel is switched off")
        if not isinstance(self.loss, str):
            return Refusal("the loss is a function of the user's")
        answer: Compiled | Refusal = Refusal("there is no compiled backend")
        for backend in BACKENDS:
            answer = import_module(backend).compile_task(self)
            if not isinstance(answer, Refusal):
                break
        return answer

    @property
    def row_math(self) -> RowMath | None:
        """What the backend computes of many models as rows of numbers; None where torch does."""
        return None if isinstance(self.compiled, Refusal) else self.compiled.row_math

    def inputs(self, x: Tensor) -> Tensor:
        """Raw samples -> what the network sees."""
        ready = self.normalise(x, self.dtype)
        return ready.to(memory_format=torch.channels_last) if ready.dim() == 4 else ready

    def outputs(self, module: nn.Module, batch: Samples, inputs: Tensor) -> Tensor:
        """What the network answers; one that says `wants_side` also gets what stands beside the samples."""
        wanted = batch.side is not None and getattr(module, "wants_side", False)
        return self.answers(module, inputs, *([batch.side] if wanted else []))

    def answers(self, module: nn.Module, inputs: Tensor, *beside: Tensor | None) -> Tensor:
        """What the network answers to ready inputs; what it fails with is one sentence."""
        try:
            answer: Tensor = module(inputs, *beside)
        except CoterieError:
            raise
        except Exception as error:  # the user's code can fail in any way
            raise user_code.failed_forward(error, inputs) from error
        return answer

    def targets(self, batch: Samples, inputs: Tensor) -> Tensor:
        """What the outputs are compared with."""
        if self.loss == "reconstruction":
            return inputs
        return batch.y.to(self.dtype) if self.loss == "mse" else batch.y

    def loss_of(self, output: Tensor, target: Tensor) -> Tensor:
        """The mean loss over a batch."""
        return user_code.loss_of(_LOSSES[self.loss] if isinstance(self.loss, str) else self.loss, output, target)

    def _build(self) -> nn.Module:
        made = copy.deepcopy(self.model) if isinstance(self.model, nn.Module) else user_code.build(self.model)
        return made.to(self.dtype)

    def _check(self, population: Population) -> None:
        """Find out before the first round that the network does not fit the data."""
        first = population.client(population.ids[0]).train
        sample = first.take(torch.arange(min(2, len(first))))  # two, or a mean over the batch looks like its only entry
        module = self._build().eval()
        if not any(True for _ in module.parameters()):
            raise CoterieError("The model has no parameters, so nothing can be learnt; give it a layer with weights.")
        inputs = self.inputs(sample.x)
        output = self.outputs(module, sample, inputs)
        if not isinstance(output, Tensor) or not output.dim():
            what = "a single number" if isinstance(output, Tensor) else f"a {type(output).__name__}"
            raise CoterieError(f"The model returns {what}; let its forward return one tensor, a row for each sample.")
        trained = [weight for weight in module.parameters() if weight.requires_grad]
        if not trained:
            raise CoterieError("All of the model's parameters are frozen; let some have requires_grad = True.")
        if self.loss == "cross_entropy" and output.shape[-1] < self.classes:
            raise CoterieError(
                f"The model has {output.shape[-1]} outputs but the data have {self.classes} classes; "
                f"give it {self.classes} outputs."
            )
        if len(sample):
            loss = self.loss_of(output, self.targets(sample, inputs))
            user_code.gradients(loss, trained, inputs)


def _redraw(module: nn.Module) -> None:
    """Draw all weights again, as when the layers were made."""
    for layer in module.modules():
        reset = getattr(layer, "reset_parameters", None)
        if callable(reset):
            reset()
        elif any(True for _ in layer.parameters(recurse=False)):
            raise CoterieError(
                f"Several different initial models are needed, but {type(layer).__name__} cannot be drawn again; "
                "pass a function that builds the model instead of a ready model."
            )

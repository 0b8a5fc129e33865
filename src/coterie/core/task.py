"""What is learnt: a network, its loss and how raw inputs reach it."""

from __future__ import annotations

import copy
import dataclasses
import math
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields
from functools import cached_property
from importlib import import_module
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from coterie.core import user_code
from coterie.core.compiled import BACKENDS, Compiled, Refusal
from coterie.core.devices import CPU
from coterie.core.errors import CoterieError
from coterie.core.losses import LOSSES, LossChoice, LossFn, LossName
from coterie.core.metrics import METRICS, Metric, MetricFn, chosen_metric
from coterie.core.rng import key64
from coterie.core.rows import RowMath
from coterie.core.samples import Normalise, Population, Samples, kind_of, target_scale_of, tests_alike_of
from coterie.core.states import State
from coterie.core.targets import TargetScale, TaskKind, TaskName, chosen_kind

Precision = Literal["full", "bfloat16"]
DRAWING = threading.RLock()
"""Held while a network is built, tried or traced: all threads share torch's generator, which layers draw from, and the
calls of modules, which torch.fx replaces while it traces."""


@dataclass(frozen=True, eq=False)
class Task:
    """A network that clients can train and judge, as functions of its state.

    `model` is a function that builds a fresh network, or a ready one whose weights are then the common start. `loss` is
    a name or any function (output, target) -> mean loss; with "reconstruction" the target is the input itself. `kind`
    says what the targets are; with a `target_scale` the network learns targets of mean 0 and deviation 1.
    """

    model: nn.Module | Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int
    normalise: Normalise = field(default_factory=Normalise)
    loss: LossName | LossFn = "cross_entropy"
    dtype: torch.dtype = torch.float32
    use_kernel: bool = True
    kind: TaskKind = "classification"
    target_scale: TargetScale | None = None
    metric: Metric | None = None
    """What clients are judged by, if not by what tasks of this kind usually are."""
    device: torch.device = CPU
    """Where networks are trained and judged; states are always on the CPU."""
    precision: Precision = "full"
    tests_alike: bool = False
    """Whether clients are asked for labels as often as they have them in training, or for all labels."""
    _local: threading.local = field(default_factory=threading.local, repr=False)

    @classmethod
    def of(
        cls,
        model: nn.Module | Callable[[], nn.Module],
        population: Population,
        *,
        task: TaskName = "auto",
        loss: LossChoice | LossFn | str = "auto",
        metric: str | Metric | MetricFn = "auto",
        dtype: torch.dtype = torch.float32,
    ) -> Task:
        """The task of training `model` (a builder, or a ready network) on a population's data.

        With `task="auto"` it is of the kind that the population's targets are, with `loss="auto"` the loss is that of
        the kind. A loss that the user gives gets the targets as they are: the scale is then the user's, too. Loss and
        metric may also be named as code, `file.py:NAME`.
        """
        loss, metric = user_code.loaded_if_code(loss, "loss"), user_code.loaded_if_code(metric, "metric")
        if not isinstance(model, nn.Module):
            with DRAWING:
                first = user_code.build(model)
                # `lambda: ready` is a ready network, not a builder
                model = first if user_code.build(model) is first else model
        user_code.check_loss(loss, get_args(LossChoice))
        found = kind_of(population)
        kind = chosen_kind(task, found, population.classes, squares=loss == "mse")
        numbers = kind == "regression" and loss == "auto"
        made = cls(
            model,
            tuple(population.shape),
            population.classes if kind != "regression" or found in ("regression", "multilabel") else 1,
            population.normalise,
            dtype=dtype,
            kind=kind,
            metric=chosen_metric(metric, kind),
            target_scale=(target_scale_of(population) or _measured(population)) if numbers else None,
            tests_alike=tests_alike_of(population),
        )
        own = population.client(population.ids[0]).train  # two of it: the mean of one looks like its only entry
        return made.settled(loss, own.take(torch.arange(min(2, len(own)))))

    def settled(self, loss: Any, sample: Samples) -> Task:
        """The task with this loss, once the network has answered a sample: "auto" is what fits its outputs."""
        with DRAWING:
            module = self._build().eval()
            output = self._first_output(module, sample)
            chosen = self._fitting_loss(output) if isinstance(loss, str) and loss == "auto" else loss
            made = dataclasses.replace(self, loss=chosen)
            made._check_loss(module, sample, output)
        return made

    def with_model(self, model: nn.Module | Callable[[], nn.Module]) -> Task:
        """The same task with another network."""
        return dataclasses.replace(self, model=model, _local=threading.local())

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs to make the same task: all but what this one has made of it."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "_local"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _local=threading.local())

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
            module = self._build()
            if any(isinstance(layer, nn.Conv2d) for layer in module.modules()):
                # 1.25-1.35 times as fast on CPUs, and the same numbers
                module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self._local.module = module.to(self.device)
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
        if self.device.type != "cpu" or self.precision != "full":
            return Refusal(f"the device is {self.device}, the precision {self.precision}")
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
        """What the network answers; one that says `wants_extra` also gets what else is known of the samples."""
        wanted = batch.extra is not None and getattr(module, "wants_extra", False)
        return self.answers(module, inputs, *([batch.extra] if wanted else []))

    def mixed(self) -> AbstractContextManager[Any]:
        """Computing forward in mixed precision, where that is wanted."""
        if self.precision == "full":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def answers(self, module: nn.Module, inputs: Tensor, *extra: Tensor | None) -> Tensor:
        """What the network answers to ready inputs; what it fails with is one sentence."""
        try:
            with self.mixed():
                answer: Tensor = module(inputs, *extra)
        except CoterieError:
            raise
        except Exception as error:  # the user's code can fail in any way
            raise user_code.failed_forward(error, inputs) from error
        return answer

    def targets(self, batch: Samples, inputs: Tensor) -> Tensor:
        """What the outputs are compared with."""
        return inputs if self.loss == "reconstruction" else self.learnt(batch.y)

    def learnt(self, y: Tensor) -> Tensor:
        """Targets as the loss takes them: numbers on the common scale, whole numbers for classes."""
        if self.target_scale is not None:
            # in double precision, which not every device has
            return self.target_scale.standardised(y.cpu(), self.dtype).to(y.device)
        return y.to(self.dtype) if self.loss in ("mse", "bce") or y.is_floating_point() else y

    @property
    def has_classes(self) -> bool:
        """Whether targets are classes, so that there are label shares to take into account."""
        return self.loss == "cross_entropy" and self.classes > 1

    def predictions(self, output: Tensor, target: Tensor) -> Tensor:
        """Outputs of the network as predictions of these targets; see `core.metrics`."""
        found = output.double()
        if not self.predicts(output):
            return found  # only the loss and the metric of the user's know what these outputs are
        if self.kind == "regression":
            if self.target_scale is not None:
                found = self.target_scale.restored(found.reshape(len(found), -1))
            return found.reshape(target.shape)
        if self.kind == "multilabel":
            return found.sigmoid()
        if self.kind == "binary" and found[:1].numel() == 1:
            found = found.reshape(-1, 1).sigmoid()
            return torch.cat([1 - found, found], dim=1)
        return found.softmax(-1)

    def predicts(self, output: Tensor) -> bool:
        """Whether outputs [n, ...] are predictions of such targets: one a class, a label or a number."""
        width = math.prod(output.shape[1:])
        if self.loss == "reconstruction":
            return False
        if self.kind in ("multilabel", "regression"):
            return width == self.classes
        return (output.dim() == 2 and width >= max(self.classes, 2)) or (self.kind == "binary" and width == 1)

    @property
    def primary(self) -> Metric:
        """What clients are judged by."""
        return self.metric or chosen_metric("auto", self.kind)

    def loss_of(self, output: Tensor, target: Tensor) -> Tensor:
        """The mean loss over a batch."""
        # a loss is a sum over the batch: in full precision, also of outputs that are not
        output = output if self.precision == "full" else output.to(self.dtype)
        return user_code.loss_of(LOSSES[self.loss] if isinstance(self.loss, str) else self.loss, output, target)

    def _build(self) -> nn.Module:
        with DRAWING:
            made = copy.deepcopy(self.model) if isinstance(self.model, nn.Module) else user_code.build(self.model)
        return made.to(self.dtype)

    def _first_output(self, module: nn.Module, sample: Samples) -> Tensor:
        """Find out before the first round that the network does not fit the data."""
        if not any(True for _ in module.parameters()):
            raise CoterieError("The model has no parameters, so nothing can be learnt; give it a layer with weights.")
        output = self.outputs(module, sample, self.inputs(sample.x))
        if not isinstance(output, Tensor) or not output.dim():
            what = "a single number" if isinstance(output, Tensor) else f"a {type(output).__name__}"
            raise CoterieError(f"The model returns {what}; let its forward return one tensor, a row for each sample.")
        if not any(weight.requires_grad for weight in module.parameters()):
            raise CoterieError("All of the model's parameters are frozen; let some have requires_grad = True.")
        return output

    def _fitting_loss(self, output: Tensor) -> LossName:
        """The loss of this kind of task; a binary one has two outputs, or one."""
        width = output[0].numel() if output.dim() > 1 and len(output) else 1
        if self.kind == "binary" and width == 1:
            return "bce"
        if self.kind in ("multilabel", "regression"):
            if width != self.classes:
                what = "labels" if self.kind == "multilabel" else "numbers to predict"
                raise CoterieError(
                    f"The model has {_counted(width, 'output')} but the data have {self.classes} {what}; "
                    f"give it {_counted(self.classes, 'output')}."
                )
            return "bce" if self.kind == "multilabel" else "mse"
        return "cross_entropy"

    def _check_loss(self, module: nn.Module, sample: Samples, output: Tensor) -> None:
        """Find out before the first round that the loss does not fit the network."""
        if self.loss == "cross_entropy" and output.shape[-1] < self.classes:
            raise CoterieError(
                f"The model has {output.shape[-1]} outputs but the data have {self.classes} classes; "
                f"give it {self.classes} outputs."
            )
        if self.kind in ("multilabel", "regression") and not self.predicts(output) and self.primary.name in METRICS:
            raise CoterieError(
                f"The model's outputs of shape {tuple(output.shape[1:])} do not predict {self.classes} targets a "
                f"sample, so {self.primary.measure.title} cannot be measured; give a metric of your own, too."
            )
        if len(sample):
            inputs = self.inputs(sample.x)
            trained = [weight for weight in module.parameters() if weight.requires_grad]
            target = self.targets(sample, inputs)
            loss = self.loss_of(output, target)
            if not isinstance(self.loss, str) and output.shape == (*target.shape, 1):
                user_code.check_shapes(self.loss, target.dtype)
            user_code.gradients(loss, trained, inputs)


def _measured(population: Population) -> TargetScale:
    """The scale of whole numbers that are to be predicted as numbers."""
    return TargetScale.measured([population.client(client).train.y for client in population.ids])


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"


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

"""Between tasks and stacks of models and the compiled kernel, which works on flat rows of numbers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from coterie.core.compiled import Compiled, InputGradients, Refusal
from coterie.core.losses import LossFn, LossName
from coterie.core.optimiser import Optimiser
from coterie.core.samples import Normalise, Samples
from coterie.core.states import Stack, count
from coterie.core.task import Task
from coterie.kernel.net import Net, Routing
from coterie.kernel.noise import masks
from coterie.kernel.rows import KernelRows
from coterie.kernel.translate import plan


def compile_task(task: Task) -> Compiled | Refusal:
    """The kernel for this task's network, or why it does not take it."""
    if task.loss == "bce":
        return Refusal("the kernel does not know the loss bce")
    net = plan(task.module, task.shape, "cross_entropy" if task.loss == "cross_entropy" else "mse")
    return net if isinstance(net, Refusal) else KernelTask(net, task.loss, task.normalise, task.dtype, task.learnt)


@dataclass(frozen=True)
class KernelTask:
    """A task that the kernel computes: a translated network with the task's loss, normalisation and precision."""

    net: Net
    loss: LossName | LossFn
    normalise: Normalise
    dtype: torch.dtype
    learnt: Callable[[Tensor], Tensor]
    """Targets as the loss takes them."""

    @property
    def row_math(self) -> KernelRows:
        """Means and products of rows by the same library."""
        return KernelRows(self.net.library)

    def takes(self, extra: Tensor | None, models: int = 1) -> bool:
        """A network with domains needs one for each sample, and takes one model a call: each has its own graph."""
        return not self.net.domains or (models == 1 and extra is not None and not extra.is_floating_point())

    def train(
        self,
        start: Stack,
        clients: Sequence[Samples],
        order: Callable[[int], Tensor],
        generator: Callable[[int], torch.Generator],
        opt: Optimiser,
        rate: float,
        *,
        mu: float = 0.0,
        prox: Stack | None = None,
        correction: Stack | None = None,
        only: Collection[str] | None = None,
    ) -> tuple[Stack, dict[int, float]]:
        """Every client in one call of the kernel each, in place on a fresh matrix of models."""
        net, weights = self.net, vectors(self.net, start)
        # BatchNorm has no statistics of a single sample (core/training.py)
        smallest = 2 if net.mixes_samples and opt.batch != 1 else 1
        steps = [0] * len(clients)
        anchors = vectors(net, prox) if prox is not None and mu else None
        pulls = vectors(net, correction) if correction is not None else None
        chosen = None if only is None else _chosen(net, start, only)
        losses: dict[int, float] = {}
        for index, samples in enumerate(clients):
            if len(samples) < smallest or not opt.epochs:
                continue
            batch, own, route = opt.batch_of(len(samples)), order(index), routing(net, start, index, samples)
            steps[index] = opt.epochs * (len(samples) // batch + (len(samples) % batch >= smallest))
            losses[index] = net.train(
                weights[index],
                self._inputs(samples),
                self._target(samples),
                own if route is None else grouped(own, opt.epochs, batch, route.domains),
                epochs=opt.epochs,
                batch=batch,
                optimiser=opt.kind,
                lr=rate,
                momentum=opt.momentum,
                weight_decay=opt.weight_decay,
                mu=mu if anchors is not None else 0.0,
                anchor=anchors[index] if anchors is not None else None,
                correction=pulls[index] if pulls is not None else None,
                trained=chosen,
                **self._scaling(samples),
                route=route,
                masks=masks(net, partial(generator, index), len(samples), opt.epochs, batch, self.dtype, smallest),
                smallest=smallest,
            )
        trained = models_of(net, weights, start)
        for name in net.counters:
            trained[name] += torch.tensor(steps).view(-1, *[1] * (trained[name].dim() - 1))
        return trained, losses

    def score(self, models: Stack, samples: Samples) -> tuple[Tensor, Tensor]:
        """Mean loss and share of correct answers of every model."""
        return self.net.evaluate(
            vectors(self.net, models),
            self._inputs(samples),
            self._target(samples),
            **self._scaling(samples),
            route=routing(self.net, models, 0, samples),
        )

    def outputs(self, models: Stack, samples: Samples) -> Tensor:
        """What the networks return, without a softmax."""
        route = routing(self.net, models, 0, samples)
        return self.net.logits(vectors(self.net, models), self._inputs(samples), route, **self._scaling(samples))

    def probabilities(self, models: Stack, inputs: Tensor) -> Tensor:
        """Class probabilities of every model for ready inputs."""
        return self.net.predict(vectors(self.net, models), inputs.to(self.dtype).contiguous())

    def input_gradients(self, models: Stack) -> InputGradients | None:
        """The gradients of the loss with respect to the inputs."""
        if not self.net.has_input_gradient:
            return None
        rows = vectors(self.net, models)
        return lambda model, x, y: self.net.input_gradient(rows[model], x.contiguous(), y.contiguous())

    def _inputs(self, samples: Samples) -> Tensor:
        """What the kernel reads: bytes as they are, which it normalises; other numbers normalised already."""
        if samples.x.dtype == torch.uint8:
            return samples.x.contiguous()
        plain = self.normalise == Normalise()  # token ids are not normalised
        return (samples.x if plain else self.normalise(samples.x, self.dtype)).to(self.dtype).contiguous()

    def _target(self, samples: Samples) -> Tensor | None:
        """What the kernel compares outputs with; None is the input itself."""
        if self.loss == "reconstruction":
            return None
        return (self.learnt(samples.y) if self.loss == "mse" else samples.y.to(torch.int64)).contiguous()

    def _scaling(self, samples: Samples) -> dict[str, Any]:
        """How the kernel normalises bytes while it reads; of other numbers it knows no features but channels alone."""
        if samples.x.dtype != torch.uint8:
            return {}
        return {"mean": self.normalise.mean, "std": self.normalise.std, "scale": self.normalise.scale}


def vectors(net: Net, models: Stack) -> Tensor:
    """A fresh matrix with one model per row, in the kernel's order of parameters and running statistics.

    What is about parameters alone (an anchor, a correction) has zeros instead of statistics, which are not read.
    """
    rows = count(models)
    parts = [models[name].reshape(rows, -1) for name in (*net.parameters, *net.buffers) if name in models]
    missing = net.size - sum(part.shape[1] for part in parts)
    return torch.cat([*parts, *([parts[0].new_zeros(rows, missing)] if missing else [])], dim=1)


def _chosen(net: Net, models: Stack, only: Collection[str]) -> Tensor:
    """1 for the parameters of these names, 0 for the others, in the kernel's order."""
    entries = {name: torch.full_like(models[name][:1], name in only) for name in net.parameters}
    return vectors(net, entries)[0]


def models_of(net: Net, matrix: Tensor, like: Stack) -> Stack:
    """The inverse of `vectors` (views of the matrix)."""
    names = (*net.parameters, *net.buffers)
    columns = matrix.split([like[name][0].numel() for name in names], dim=1)
    named = dict(zip(names, columns, strict=True))
    return {
        # what is neither (how domains borrow from each other) is not trained
        name: named[name].reshape(-1, *tensor.shape[1:]) if name in named else tensor.clone()
        for name, tensor in like.items()
    }


def routing(net: Net, models: Stack, index: int, samples: Samples) -> Routing | None:
    """The samples' domains and how these borrow from each other in one of the models."""
    if not net.domains:
        return None
    assert samples.extra is not None
    mix = models[net.mix][index] if net.mix in models else None
    return Routing(samples.extra.to(torch.int64).contiguous(), None if mix is None else mix.contiguous())


def grouped(order: Tensor, epochs: int, batch: int, domains: Tensor) -> Tensor:
    """The same batches with the samples of each domain side by side."""
    rows = order.view(epochs, -1)
    keys = torch.arange(rows.shape[1]) // batch * (int(domains.max()) + 1) + domains[rows]
    return rows.gather(1, keys.argsort(dim=1, stable=True)).flatten()

"""Several clients at once on an accelerator: the steps of each, as one batch of networks (`torch.func.vmap`).

An accelerator does the work of a small network in less time than it takes to order it. Here the networks of a cohort
share every order: one gather of samples, one forward and backward pass, one update. Sums are made in another sequence
than client after client, so results agree but for their last digits, as they do between accelerators anyway. On the
CPU, where a result is the same bit for bit however clients are shared out, it is not used.

Whether it pays is found by a trial, never by the user: the first cohort of a size is trained both ways for two batches.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from coterie.core.cohort import Cohort
from coterie.core.losses import LOSSES
from coterie.core.optimiser import Optimiser
from coterie.core.samples import ClientData
from coterie.core.states import Stack, row, take
from coterie.core.task import Task

_log = logging.getLogger(__name__)
_MOST_BYTES = 2 << 30
"""Of weights, gradients and momentum that are on the device at once."""
_TRIAL_BATCHES = 2
_DRAWING = (nn.modules.dropout._DropoutNd, nn.RNNBase, nn.modules.batchnorm._BatchNorm)
"""Layers that draw by client, that vmap does not know, or that change statistics."""
_known: WeakKeyDictionary[Task, dict[tuple[int, int], bool]] = WeakKeyDictionary()

Plain = Callable[[Cohort, Optimiser], object]
"""Trains a cohort, client after client."""
Order = Callable[[Cohort, int, int], Tensor]
"""The order in which a client of a cohort sees its samples, so many epochs after each other."""


@dataclass(frozen=True)
class Extra:
    """What is added to each gradient: `correction` + mu (w - `prox`), with a row for each client, or of one client."""

    prox: Stack | None = None
    mu: float = 0.0
    correction: Stack | None = None

    def rows(self, index: Tensor) -> Extra:
        """That of some of the clients."""
        prox, correction = (None if part is None else take(part, index) for part in (self.prox, self.correction))
        return Extra(prox, self.mu, correction)

    def of(self, index: int) -> Extra:
        """That of one client; without a pull (mu = 0) it needs no anchor."""
        prox = row(self.prox, index) if self.prox is not None and self.mu else None
        return Extra(prox, self.mu, None if self.correction is None else row(self.correction, index))


def takes(c: Cohort, opt: Optimiser, only: Collection[str] | None) -> bool:
    """Whether this is a training that can be done so."""
    if c.task.device.type == "cpu" or len(c) < 2 or only is not None or opt.kind != "sgd":
        return False
    module = c.task.module
    return (
        not any(isinstance(layer, _DRAWING) for layer in module.modules())
        and all(weight.requires_grad for weight in module.parameters())
        and set(module.state_dict()) == {name for name, _ in module.named_parameters()}
        and not any(client.train.extra is not None for client in c.data)
    )


def pays(c: Cohort, start: Stack, opt: Optimiser, plain: Plain, order: Order) -> bool:
    """Whether it is faster, by a trial of the first cohort of this size; a network that vmap does not know says no."""
    found = _known.setdefault(c.task, {})
    key = (len(c), opt.batch)
    if key not in found:
        first = torch.arange(_TRIAL_BATCHES * max(opt.batch, 1))
        data = [ClientData(d.train.take(first[: len(d.train)]), d.test, d.valid) for d in c.data]
        some, once = replace(c, data=tuple(data)), replace(opt, epochs=1)
        found[key] = False
        try:
            seconds = [
                _timed(lambda: plain(some, once)),
                _timed(lambda: trained(some, start, once, Extra(), order)),
            ]
            found[key] = seconds[1] < seconds[0]
        except Exception:  # whatever the user's network does that cannot be done for several at once
            _log.debug("clients are trained one after the other", exc_info=True)
    return found[key]


def _timed(work: Callable[[], object]) -> float:
    """The shorter of two times; results are brought to the CPU, so that the device has finished."""
    times = []
    for _ in range(2):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return min(times)


def trained(c: Cohort, start: Stack, opt: Optimiser, extra: Extra, order: Order) -> tuple[Stack, dict[int, float]]:
    """The clients' models after local training, and the mean loss over the samples that each saw."""
    size = sum(tensor.numel() * tensor.element_size() for tensor in c.task.template.values())
    many = max(1, _MOST_BYTES // (3 * size))
    models: list[Stack] = []
    losses: dict[int, float] = {}
    for begin in range(0, len(c), many):
        index = torch.arange(begin, min(begin + many, len(c)))
        run = _Run(c, index.tolist(), take(start, index), opt, extra.rows(index), order)
        run.train()
        models.append(run.models())
        losses |= run.losses()
    return {name: torch.cat([model[name] for model in models]) for name in models[0]}, losses


class _Run:
    """The networks of some clients of a cohort on the device, in the midst of their training."""

    def __init__(self, c: Cohort, places: list[int], start: Stack, opt: Optimiser, extra: Extra, order: Order) -> None:
        self._task, self._opt, self._places = c.task, opt, places
        self._module, device = c.task.module.train(), c.task.device
        self._rate = opt.rate(c.round)
        self._weights = {name: tensor.to(device, copy=True) for name, tensor in start.items()}
        self._momentum = {name: torch.zeros_like(tensor) for name, tensor in self._weights.items()}
        self._prox = _moved(extra.prox, device) if extra.mu else None
        self._mu, self._correction = extra.mu, _moved(extra.correction, device)
        samples = [c.data[place].train for place in places]
        self._x = torch.cat([some.x for some in samples]).to(device)
        self._y = torch.cat([some.y for some in samples]).to(device)
        self._batches, offset = [], 0
        for place, some in zip(places, samples, strict=True):
            self._batches.append(
                list(_batches(order(c, place, opt.epochs) + offset, len(some), opt)) if len(some) else []
            )
            offset += len(some)
        loss = c.task.loss
        self._loss = LOSSES[loss] if isinstance(loss, str) else loss
        self._step = vmap(grad_and_value(self._judged), randomness="error")
        self._seen: list[tuple[list[int], int, Tensor]] = []

    def train(self) -> None:
        """Step by step; clients whose batches have the same length take a step together."""
        for number in range(max(map(len, self._batches), default=0)):
            by_length: dict[int, list[int]] = {}
            for client, batches in enumerate(self._batches):
                if number < len(batches):
                    by_length.setdefault(len(batches[number]), []).append(client)
            for length, rows in by_length.items():
                samples = torch.stack([self._batches[row][number] for row in rows]).to(self._x.device)
                self._seen.append((rows, length, self._stepped(rows, samples)))

    def _stepped(self, rows: list[int], samples: Tensor) -> Tensor:
        """One step of these clients, [R, length] samples; their losses, [R]."""
        inputs = self._task.normalise(self._x[samples].flatten(0, 1), self._task.dtype)
        learnt = self._task.loss != "reconstruction"
        targets = self._task.learnt(self._y[samples].flatten(0, 1)) if learnt else inputs
        # all clients as they lie, some of them as a copy
        index = slice(None) if len(rows) == len(self._places) else torch.tensor(rows, device=self._x.device)
        weights = {name: tensor[index] for name, tensor in self._weights.items()}
        shape = samples.shape
        gradients, losses = self._step(weights, inputs.unflatten(0, shape), targets.unflatten(0, shape))
        for name, weight in weights.items():
            gradient = gradients[name]
            if self._correction is not None:
                gradient = gradient + self._correction[name][index]
            if self._prox is not None:
                gradient = gradient + self._mu * (weight - self._prox[name][index])
            if self._opt.weight_decay:
                gradient = gradient + self._opt.weight_decay * weight
            if self._opt.momentum:
                gradient = self._opt.momentum * self._momentum[name][index] + gradient
                self._momentum[name][index] = gradient
            self._weights[name][index] = weight - self._rate * gradient
        found: Tensor = losses
        return found

    def _judged(self, weights: Stack, inputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of one client's network over a batch."""
        with self._task.mixed():
            output: Tensor = functional_call(self._module, weights, (inputs,))
        loss: Tensor = self._loss(output.to(self._task.dtype), targets)
        return loss

    def models(self) -> Stack:
        """The weights so far, on the CPU."""
        return {name: tensor.cpu() for name, tensor in self._weights.items()}

    def losses(self) -> dict[int, float]:
        """The mean loss of each client by its place in the cohort."""
        total = dict.fromkeys(range(len(self._places)), 0.0)
        numbers = dict.fromkeys(range(len(self._places)), 0)
        for rows, length, losses in self._seen:
            for client, loss in zip(rows, losses.tolist(), strict=True):
                total[client] += length * loss
                numbers[client] += length
        return {self._places[row]: total[row] / number for row, number in numbers.items() if number}


def _batches(order: Tensor, samples: int, opt: Optimiser) -> Iterator[Tensor]:
    for epoch in order.view(-1, samples) if samples else ():
        yield from epoch.split(opt.batch_of(samples))


def _moved(part: Stack | None, device: torch.device) -> Stack | None:
    return None if part is None else {name: tensor.to(device) for name, tensor in part.items()}

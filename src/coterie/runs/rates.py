"""A learning rate for data or an optimiser that have none: a short test on a few clients before the run.

The test is ours. It trains a few clients as FedAvg does, for two short rounds at each of eleven rates, and looks at the
loss of the averaged model on their training samples. The rate is the smallest whose loss is nearly the best: a smaller
one is as fast and further from where training diverges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from coterie.core.cohort import Cohort
from coterie.core.evaluation import losses
from coterie.core.optimiser import Optimiser
from coterie.core.rng import rng
from coterie.core.samples import ClientData, Population
from coterie.core.states import mean, spread
from coterie.core.task import Task
from coterie.core.threads import one_thread_everywhere
from coterie.core.training import local_sgd

RATES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001, 0.00003, 0.00001)
_CLIENTS, _ROUNDS = 4, 2
_STEPS, _STEPS_LARGE, _LARGE = 20, 5, 1_000_000
"""Steps of a client in a round of the test; fewer where a model has a million parameters or more."""
_NEARLY = 0.05
"""Which share of what the best rate gains may be missing."""


@dataclass(frozen=True)
class FoundRate:
    """A learning rate, and how it was found."""

    rate: float
    before: float
    """The loss of the untrained model."""
    after: float
    """The loss after the test with this rate."""
    clients: int

    @property
    def said(self) -> str:
        """One line for the user."""
        if not self.after < self.before:
            return f"lr = {self.rate:g}: no rate of the test lowered the loss ({self.before:.3g}); set lr yourself"
        return (
            f"lr = {self.rate:g}, found by a test on {self.clients} clients (loss {self.before:.3g} -> "
            f"{self.after:.3g}); set lr for another"
        )


def found_rate(task: Task, population: Population, opt: Optimiser, seed: int) -> FoundRate:
    """The rate for this network on these clients with this optimiser; the same for the same seed."""
    with one_thread_everywhere():
        trial = _trial(task, population, opt, seed)
        before = _loss(trial, [])
        after = {rate: _loss(trial, [replace(opt, lr=rate, lr_decay=1.0)] * _ROUNDS) for rate in RATES}
    best = min(after.values())
    if not best < before:
        usual = replace(opt, lr=None).rate(0)
        return FoundRate(usual, before, math.inf, len(trial))
    rate = min(rate for rate, loss in after.items() if loss <= best + _NEARLY * (before - best))
    return FoundRate(rate, before, after[rate], len(trial))


def _trial(task: Task, population: Population, opt: Optimiser, seed: int) -> Cohort:
    """A few clients, drawn by their names, with as many of their samples as the steps of the test take."""
    names = sorted(population.ids)
    chosen = sorted(names[i] for i in rng(seed, "rate-clients").permutation(len(names))[:_CLIENTS])
    size = sum(tensor.numel() for tensor in task.template.values())
    steps = max(1, (_STEPS if size < _LARGE else _STEPS_LARGE) // opt.epochs)
    data = []
    for client in chosen:
        train = population.client(client).train
        most = steps * opt.batch_of(len(train))
        rows = torch.from_numpy(rng(seed, "rate-samples", client).permutation(len(train))[:most])
        some = train.take(rows.sort().values)
        data.append(ClientData(some, some))
    return Cohort(tuple(chosen), task, tuple(data), 0, seed)


def _loss(trial: Cohort, rounds: Sequence[Optimiser]) -> float:
    """The mean loss of the averaged model after these rounds; infinite where training has diverged."""
    state = trial.task.init(trial.seed)
    for number, opt in enumerate(rounds):
        cohort = replace(trial, round=number)
        state = mean(local_sgd(cohort, spread(state, len(trial)), opt, purpose="rate"), trial.size)
    loss = float(losses(trial, spread(state, 1), "train").double().mean())
    return loss if math.isfinite(loss) else math.inf

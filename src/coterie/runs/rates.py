"""The learning rate of own data: a short test on a few clients before the run, once for each kind of optimiser.

The test is ours. It trains a few clients as FedAvg does, for two short rounds at each of eleven rates, and looks at the
loss of the averaged model on their training samples. The rate is the smallest whose loss is nearly the best: a smaller
one is as fast and further from where training diverges.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coterie.core.cohort import Cohort
from coterie.core.federation import Federation
from coterie.core.optimiser import Optimiser
from coterie.core.samples import Population
from coterie.core.states import State, mean, stack
from coterie.core.task import Task
from coterie.core.threads import one_thread_everywhere
from coterie.methods.base import Models
from coterie.methods.fedavg import FedAvg
from coterie.methods.rate_trial import RateTrial, trial_clients, trial_cohort, trial_losses, trial_steps

RATES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001, 0.00003, 0.00001)
_ROUNDS = 2
_DIVERGED = ("not finite", "too large")
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
    chosen = trial_clients(list(population.ids), seed)
    data = tuple(population.client(client) for client in chosen)
    with one_thread_everywhere():
        trial = trial_cohort(Cohort(tuple(chosen), task, data, 0, seed), opt)

        def trained(state: State, rate: float, turn: int) -> State:
            return mean(trial_steps(trial, state, opt, rate, turn), trial.size)

        return _found(
            task.init(seed), opt, len(chosen), trained, lambda state: trial_losses(trial, stack([state])).mean()
        )


def found_with(fed: Federation, method: FedAvg) -> FoundRate:
    """The same test with clients on other machines; `method` has the local training of the run."""
    chosen = trial_clients(list(fed.ids), fed.seed)

    def trained(state: State, rate: float, turn: int) -> State | None:
        replies = fed.ask(method.try_rate, chosen, same=RateTrial(state, rate, turn))
        if replies.value is None or any(failure.kind in _DIVERGED for failure in replies.failed.values()):
            return None
        return mean(replies.value.model, replies.value.size)

    def judged(state: State) -> Tensor:
        value = fed.ask(method.tell_trial_losses, chosen, same=Models(stack([state]))).value
        return torch.tensor(math.inf) if value is None else value.losses.mean()

    return _found(fed.task.init(fed.seed), method.opt, len(chosen), trained, judged)


def _found(
    start: State,
    opt: Optimiser,
    clients: int,
    trained: Callable[[State, float, int], State | None],
    judged: Callable[[State], Tensor],
) -> FoundRate:
    """The smallest rate whose loss after the rounds of the test is nearly the best; infinite where it diverges."""

    def loss(rate: float | None) -> float:
        state: State | None = start
        for turn in range(_ROUNDS if rate is not None else 0):
            state = None if state is None else trained(state, rate or 0.0, turn)
        found = math.inf if state is None else float(judged(state))
        return found if math.isfinite(found) else math.inf

    before = loss(None)
    after = {rate: loss(rate) for rate in RATES}
    best = min(after.values())
    if not best < before:
        return FoundRate(replace(opt, lr=None).rate(0), before, math.inf, clients)
    rate = min(rate for rate, value in after.items() if value <= best + _NEARLY * (before - best))
    return FoundRate(rate, before, after[rate], clients)

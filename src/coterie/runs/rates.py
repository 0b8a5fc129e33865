"""The learning rate of a run: the user's, the scenario's, or one that a short test on a few clients finds before it.

Who asks for one: `simulate` and `advise` for a method (`rated`), `experiment.rated_config` for a configuration,
`compare` once for all methods with the same optimiser, `serve` with clients on other machines (`found_with`), and every
real peer by itself (`peer`). They differ in where the rate is kept. What clients do in the test is in
`methods.rate_trial`.

The test is ours. It trains a few clients as FedAvg does, for two short rounds at each of eleven rates, and looks at the
loss of the averaged model on their training samples. The rate is the smallest whose loss is nearly the best: a smaller
one is as fast and further from where training diverges.

A mean of models hides that the rate is too high for some clients: in a group of their own their network dies in the
next rounds. So a few more clients then train alone for four rounds. While they get further at the next smaller rate,
that one is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from coterie.core.cohort import Cohort
from coterie.core.federation import Federation
from coterie.core.notes import Note
from coterie.core.optimiser import Optimiser
from coterie.core.samples import ClientId, Population
from coterie.core.states import flat, mean, stack
from coterie.core.task import Task
from coterie.core.threads import one_thread_everywhere
from coterie.methods.fedavg import FedAvg
from coterie.methods.local_training import LocalTraining
from coterie.methods.rate_trial import (
    AloneTrial,
    ModelRows,
    RateTrial,
    alone_losses,
    trial_clients,
    trial_cohort,
    trial_losses,
    trial_steps,
)

L = TypeVar("L", bound=LocalTraining)
RATES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001, 0.00003, 0.00001)
_ROUNDS = 2
_LARGEST = 1 << 26  # bytes of models in a message
_NEARLY = 0.05
"""Which share of what the best rate gains may be missing."""
_ROUNDS_ALONE = 4
_FURTHER, _SAVED = 0.1, 0.3
"""What speaks for the smaller rate: so much more of what each can gain alone, in the mean of the clients; or so much
more for the client that gains least, if the mean is not less by `_FURTHER`.

Where the rate is too high it is 0.15 to 0.6, and 0.4 to 1 for the one; elsewhere both are below 0
(docs/results/auto.md).
"""


def rated(method: L, population: Population, test: Callable[[], float]) -> L:
    """The method with a rate: its own, the scenario's, or, where neither is for its optimiser, that of the test."""
    method = with_scenario_rate(method, population)
    return replace(method, lr=test()) if needs_rate(method, population) else method


def tested_rate(task: Task, population: Population, opt: Optimiser, seed: int, note: Note) -> float:
    """The rate that the test finds, and a line for the user that says so."""
    found = found_rate(task, population, opt, seed)
    note(found.said)
    return found.rate


def with_scenario_rate(method: L, population: Population) -> L:
    """The method with a named scenario's learning rate, where it has none and the optimiser is the scenario's."""
    training: Mapping[str, Any] = getattr(population, "training", {})
    rate = {**training, **method.scenario_training.get(getattr(population, "scenario", ""), {})}.get("lr")
    if method.lr is not None or rate is None or training.get("optimiser", "sgd") != method.optimiser:
        return method
    return replace(method, lr=rate)


def needs_rate(method: LocalTraining, population: Population) -> bool:
    """Whether a rate must be found by a test: it is auto, or neither the user nor the scenario has one for it."""
    known = is_own(population) or bool(getattr(population, "training", {}))
    return method.lr == "auto" or (not method.has_rate and known)


def is_own(population: Population) -> bool:
    """Whether the data are the user's own, made by one of the `from_...` functions."""
    return getattr(population, "schema", None) is not None


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

        def loss(rates: Sequence[float]) -> float:
            state = task.init(seed)
            for turn, rate in enumerate(rates):
                state = mean(trial_steps(trial, state, opt, rate, turn), trial.size)
            return float(trial_losses(trial, stack([state])).mean())

        before, after = loss([]), {rate: loss([rate] * _ROUNDS) for rate in RATES}
        names = trial_clients(list(population.ids), seed, task)
        some = tuple(population.client(client) for client in names)
        alone = trial_cohort(Cohort(tuple(names), task, some, 0, seed), opt)
        return _found(opt, before, after, len(names), lambda rates: alone_losses(alone, opt, rates, _ROUNDS_ALONE))


def found_with(fed: Federation, method: FedAvg) -> FoundRate:
    """The same test with clients on other machines; `method` has the local training of the run.

    All rates are tried at once, or as many as fit into a message.
    """
    chosen, start = trial_clients(list(fed.ids), fed.seed), flat(stack([fed.task.init(fed.seed)]))
    most = max(1, _LARGEST // (start.numel() * start.element_size()))
    after: dict[float, float] = {}
    before = _told(fed, method, chosen, start)[0]
    for first in range(0, len(RATES), most):
        rates = RATES[first : first + most]
        models = start.expand(len(rates), -1)
        for turn in range(_ROUNDS):
            sent = RateTrial(models, torch.tensor(rates, dtype=torch.float64), turn)
            value = fed.ask(method.try_rates, chosen, same=sent).value
            if value is not None:
                shares = (value.seen / value.seen.sum()).to(value.numbers.dtype)
                models = torch.einsum("c,ckp->kp", shares, value.numbers)
        after |= dict(zip(rates, _told(fed, method, chosen, models), strict=True))
    names = trial_clients(list(fed.ids), fed.seed, fed.task)

    def alone(rates: list[float]) -> Tensor:
        sent = AloneTrial(torch.tensor(rates, dtype=torch.float64), _ROUNDS_ALONE)
        value = fed.ask(method.try_rates_alone, names, same=sent).value
        return torch.empty(0, len(rates)) if value is None else value.losses

    return _found(method.opt, before, after, len(names), alone)


def _told(fed: Federation, method: FedAvg, clients: Sequence[ClientId], models: Tensor) -> list[float]:
    """The mean loss of every model, infinite where no client tells it."""
    value = fed.ask(method.tell_trial_losses, clients, same=ModelRows(models)).value
    return [math.inf] * len(models) if value is None else [float(loss) for loss in value.losses.mean(0)]


def _found(
    opt: Optimiser, before: float, after: Mapping[float, float], clients: int, alone: Callable[[list[float]], Tensor]
) -> FoundRate:
    """The smallest rate whose loss is nearly the best, or a smaller one that clients get further with by themselves.

    Where training has diverged a loss is infinite. `alone` gives the losses of clients that train alone, [C, K].
    """
    after = {rate: loss if math.isfinite(loss) else math.inf for rate, loss in after.items()}
    best = min(after.values())
    if not best < before:
        return FoundRate(replace(opt, lr=None).rate(0), before, math.inf, clients)
    rate = min(rate for rate, loss in after.items() if loss <= best + _NEARLY * (before - best))
    smaller = sorted((other for other in after if other < rate and after[other] < before), reverse=True)
    for step, other in enumerate(smaller):
        if not _bears_less(alone([0.0, rate, other]), one_is_enough=not step):
            break
        rate = other
    return FoundRate(rate, before, after[rate], clients)


def _bears_less(losses: Tensor, one_is_enough: bool) -> bool:
    """Whether clients get further by the second of two rates than by the first; losses [C, 3], untrained first.

    What a client gains counts as a share of what it gains by the better of the two, so that none counts more; who gains
    by neither says nothing. One client whose network dies is enough for the first step, for it may be one of many.
    For a second one the others must gain without the one that gains most: a false client costs one step at most.
    """
    gains = (losses[:, :1] - losses[:, 1:]).double().nan_to_num(0.0).clamp_min(0.0)
    gains = gains[gains.amax(1) > 0]
    shares = gains / gains.amax(1, keepdim=True)
    more = (shares[:, 1] - shares[:, 0]).sort().values
    if not one_is_enough:
        return len(more) > 1 and float(more[:-1].mean()) > _FURTHER
    if not len(more):
        return False
    saved = float(shares[:, 1].amin() - shares[:, 0].amin())
    return float(more.mean()) > _FURTHER or (saved > _SAVED and float(more.mean()) > -_FURTHER)

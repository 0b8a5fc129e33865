"""One client's part in the test that finds a learning rate (`runs.rates`): a few steps at a rate, and the loss then."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from coterie.core.cohort import Cohort
from coterie.core.evaluation import evaluate, losses
from coterie.core.optimiser import Optimiser
from coterie.core.rng import rng
from coterie.core.samples import ClientData, ClientId
from coterie.core.states import Stack, State, spread
from coterie.core.task import Task
from coterie.core.training import local_sgd

CLIENTS, CLIENTS_ALONE = 4, 12
"""How many train together at every rate, and how many each by itself at those that are left.

Twelve miss a group that is a quarter of all in one of a hundred tests; of large models they are four, too.
"""
_STEPS, _STEPS_LARGE, _LARGE = 20, 5, 1_000_000
"""Steps of a client in a round of the test; fewer where a model has a million parameters or more."""


@dataclass(frozen=True)
class RateTrial:
    """Train each of these models, rows of numbers [K, P], at its rate [K], as in this round of the test."""

    numbers: Tensor
    rates: Tensor
    turn: int


@dataclass(frozen=True)
class TriedModels:
    """The models after that, [C, K, P]; one that has diverged may be anything. `seen` counts samples."""

    numbers: Tensor
    seen: Tensor

    unbounded: ClassVar[tuple[str, ...]] = ("numbers",)


@dataclass(frozen=True)
class AloneTrial:
    """Train the first model by yourself at each of these rates [K], for so many rounds of the test."""

    rates: Tensor
    rounds: int


@dataclass(frozen=True)
class ModelRows:
    """Models as rows of numbers, [K, P]."""

    numbers: Tensor


@dataclass(frozen=True)
class TrialLosses:
    """The loss of each of the models that were sent on a client's samples of the test, [C, K]."""

    losses: Tensor

    unbounded: ClassVar[tuple[str, ...]] = ("losses",)


def trial_clients(ids: list[ClientId], seed: int, task: Task | None = None) -> list[ClientId]:
    """The few clients that the test is made on, drawn by their names; with a task those that train its model alone."""
    names = sorted(ids)
    number = CLIENTS if task is None or _is_large(task) else CLIENTS_ALONE
    return sorted(names[i] for i in rng(seed, "rate-clients").permutation(len(names))[:number])


def _is_large(task: Task) -> bool:
    return sum(tensor.numel() for tensor in task.template.values()) >= _LARGE


def trial_cohort(c: Cohort, opt: Optimiser) -> Cohort:
    """The same clients with as many of their samples as the steps of the test take."""
    steps = max(1, (_STEPS_LARGE if _is_large(c.task) else _STEPS) // opt.epochs)
    data = []
    for client, own in zip(c.ids, c.data, strict=True):
        most = steps * opt.batch_of(len(own.train))
        rows = torch.from_numpy(rng(c.seed, "rate-samples", client).permutation(len(own.train))[:most])
        some = own.train.take(rows.sort().values)
        data.append(ClientData(some, some))
    return replace(c, data=tuple(data), round=0, memory=())


def trial_steps(trial: Cohort, state: State, opt: Optimiser, rate: float, turn: int) -> Stack:
    """The models of the clients after a round of the test."""
    fixed = replace(opt, lr=rate, lr_decay=1.0)
    return local_sgd(replace(trial, round=turn), spread(state, len(trial)), fixed, purpose="rate")


def trial_losses(trial: Cohort, models: Stack) -> Tensor:
    """The loss of every model on every client's samples of the test, [C, K]."""
    return losses(trial, models, "train").double().T.contiguous()


def alone_losses(trial: Cohort, opt: Optimiser, rates: list[float], rounds: int) -> Tensor:
    """The loss of every client on its samples of the test after training by itself at these rates, [C, K].

    At rate 0 it is that of the first model; where a model has diverged it may be any number.
    """
    first, found = spread(trial.task.init(trial.seed), len(trial)), []
    for rate in rates:
        fixed, models = replace(opt, lr=rate, lr_decay=1.0), first
        for turn in range(rounds if rate else 0):  # even steps of length 0 would move the means of BatchNorm
            models = local_sgd(replace(trial, round=turn), models, fixed, purpose="rate")
        found.append(evaluate(trial, models, "train").loss)
    return torch.stack(found, 1).double()

"""One client's part in the test that finds a learning rate (`runs.rates`): a few steps at a rate, and the loss then."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from coterie.core.cohort import Cohort
from coterie.core.evaluation import losses
from coterie.core.optimiser import Optimiser
from coterie.core.rng import rng
from coterie.core.samples import ClientData, ClientId
from coterie.core.states import Stack, State, spread
from coterie.core.training import local_sgd

CLIENTS = 4
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
class ModelRows:
    """Models as rows of numbers, [K, P]."""

    numbers: Tensor


@dataclass(frozen=True)
class TrialLosses:
    """The loss of each of the models that were sent on a client's samples of the test, [C, K]."""

    losses: Tensor

    unbounded: ClassVar[tuple[str, ...]] = ("losses",)


def trial_clients(ids: list[ClientId], seed: int) -> list[ClientId]:
    """The few clients that the test is made on, drawn by their names."""
    names = sorted(ids)
    return sorted(names[i] for i in rng(seed, "rate-clients").permutation(len(names))[:CLIENTS])


def trial_cohort(c: Cohort, opt: Optimiser) -> Cohort:
    """The same clients with as many of their samples as the steps of the test take."""
    size = sum(tensor.numel() for tensor in c.task.template.values())
    steps = max(1, (_STEPS if size < _LARGE else _STEPS_LARGE) // opt.epochs)
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

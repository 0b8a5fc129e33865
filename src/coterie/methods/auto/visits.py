"""Who visits for what: questions, second opinions, looks, plain visits; and what came of it (ours)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coterie.core.federation import Federation
from coterie.core.samples import ClientId
from coterie.core.states import Stack, count, stack, take
from coterie.methods.auto.judgement import shares_of, without
from coterie.methods.auto.messages import Groups, Looked, Pair, Tried, Visit, Weighed

RATE, DEBT = 0.09, 10.0
"""Extra downloads: this share of all visits, that of so many rounds in advance; 7 % of FedAvg's bytes in 20 rounds."""
FIRST_VISITS, TRY_EVERY, AGAIN = 6, 4, 2
"""Visits in which a client is new; every fourth visit is a trial of personal models."""


@dataclass(frozen=True)
class Plan:
    """Who of a round's participants does what."""

    voters: list[ClientId]
    choosers: list[ClientId]
    lookers: list[ClientId]
    triers: list[ClientId]
    others: list[ClientId]


@dataclass(frozen=True)
class Came:
    """Valid replies of one kind, what each began with, and the group that each is in now."""

    ids: tuple[ClientId, ...]
    value: Visit | Looked | Tried | Weighed
    sent: Stack
    group: list[int]
    stays: tuple[bool, ...] = ()
    """Whether each is in the group whose model it has trained; all are, unless said."""

    @property
    def loss(self) -> list[float]:
        """The loss on arrival."""
        if isinstance(self.value, Weighed):
            return [float(x) for x in self.value.losses.amin(1)]
        return [float(x) for x in self.value.loss]


def members(state: Groups, group: int) -> list[ClientId]:
    """The clients of a group, in the order of their names."""
    return sorted(client for client, number in state.cluster.items() if number == group)


def planned(state: Groups, ids: Sequence[ClientId]) -> Plan:
    """Questions and second opinions while the allowance lasts; a look at who is new or no longer fits; trials."""
    left = RATE * (state.visits + (1 + DEBT) * len(ids)) - state.extra
    groups = count(state.models)
    plan = Plan([], [], [], [], [])
    for client in ids:
        known, question = state.known.get(client), state.question
        new, unsettled = client not in state.cluster, known is not None and known.unsettled
        if groups > 1 and not state.clear and (new or (unsettled and left >= groups - 1)):
            plan.choosers.append(client)
            left -= groups - 1
        elif client not in state.looks or (unsettled and state.clear):
            plan.lookers.append(client)
        elif question and client in question.part and client not in question.gain and left >= 1:
            plan.voters.append(client)
            left -= 1
        elif known is not None and known.visits % TRY_EVERY == TRY_EVERY - 1:
            plan.triers.append(client)
        else:
            plan.others.append(client)
    return plan


def pairs(state: Groups, fed: Federation, voters: Sequence[ClientId]) -> Pair:
    """For every voter the mean of its fellows in the whole group, and in its part; its own update is in neither."""
    assert state.question is not None
    question, classes = state.question, fed.task.classes if fed.task.has_classes else 0
    everyone = members(state, question.group)
    wholes, parts, shares = [], [], []
    for client in voters:
        fellows = [other for other in everyone if other != client]
        near = [other for other in fellows if question.part.get(other) == question.part[client]]
        wholes.append(without(state, question.group, fellows))
        parts.append(without(state, question.group, near))
        shares.append(torch.stack([shares_of(state, some, classes) for some in (fellows, near)]))
    pace = state.pace[[question.group] * len(wholes)]
    return Pair(stack(wholes), stack(parts), torch.stack(shares), pace)


def shares_by_group(state: Groups, classes: int) -> Tensor:
    """q(y) of every group's model, [K, classes]."""
    return torch.stack([shares_of(state, members(state, group), classes) for group in range(count(state.models))])


def on_their_group(came: Came, models: Stack) -> Came:
    """The same updates as if they had been made of the groups' present models.

    What voters train is made of their fellows' latest updates, some of them old: it is for judging, not to go on from.
    """
    own = take(models, torch.tensor(came.group, dtype=torch.int64))
    trained = {
        name: own[name] + (tensor - came.sent[name]) if tensor.is_floating_point() else tensor
        for name, tensor in came.value.model.items()
    }
    return replace(came, value=replace(came.value, model=trained), sent=own)

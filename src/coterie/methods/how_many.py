"""How many groups are there? Any method with a number of groups can ask its clients (ours): `k = "auto"`.

Until the number is known the run is one of `auto`: FedAvg, whose clients look at their data in halves; partitions that
the looks propose; a question to the members whether they do better by it (`methods/auto`). Groups stand only if they
do, so on data without groups the number is 1 and the run is FedAvg's. Once the number of groups has not changed for
some visits of every client, the method goes on as itself, with that number, from the groups' models and members.
It costs what auto's rounds cost: a download and an upload of one model a visit as in FedAvg, sketches of less than 4 %
of that in each look, and second models from auto's allowance, 0.09 a visit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, make_dataclass, replace
from functools import lru_cache
from typing import Any, cast

import torch
from torch import nn
from typing_extensions import override

from coterie.core.cohort import Cohort, Memory
from coterie.core.federation import Federation, Replies
from coterie.core.jobs import changed_task
from coterie.core.panels import Panel
from coterie.core.samples import ClientId
from coterie.core.states import Stack, State, count, take
from coterie.core.task import Task
from coterie.methods.auto.messages import Groups
from coterie.methods.auto.method import Auto
from coterie.methods.base import A, Log, Models, RoundMethod, ServerMethod
from coterie.methods.counted import OPEN, Counted
from coterie.methods.local_training import LocalTraining
from coterie.methods.served import Use, use

_ASKING = "asking"
FIRST, AFTER = 6, 3
"""Visits of every client after which nothing more is expected: of one group, once it has been asked or nothing was
proposed, and after the last change."""


@dataclass(frozen=True)
class Asking(Auto):
    """The rounds in which the number is found. Clients use their group's model as it is."""

    @property
    @override
    def part(self) -> str:
        return _ASKING

    @override
    def ask_about_models(
        self, state: Groups, fed: Federation, ids: Sequence[ClientId], function: Callable[[Cohort, Any], A]
    ) -> Replies[A]:
        return RoundMethod.ask_about_models(self, state, fed, ids, function)

    def uses(self, c: Cohort, sent: Models) -> Use:  # type: ignore[override]  # what its own question sends
        """On the client: as it is."""
        return use(c, sent.models)


@dataclass(frozen=True)
class Counting:
    """The groups so far, until their number is known; `since` is how many visits there were at the last change."""

    asked: Groups | None
    since: int = 0
    number: int = OPEN


@dataclass(frozen=True)
class HowMany(RoundMethod[Any]):
    """A method whose number of groups is open, as the loop over rounds drives it."""

    method: Counted[Any]

    @property
    @override
    def name(self) -> str:
        return self.method.name

    @property
    @override
    def training(self) -> LocalTraining:
        return self.method

    @property
    def state_type(self) -> type[Any]:  # type: ignore[override]  # it depends on the method
        """What is known of the groups, then the method's own state."""
        return _state_type(cast(Hashable, self.method.state_type))

    def part_named(self, name: str) -> RoundMethod[Any] | None:
        """The rounds of asking, or the method with the number that its orders name."""
        if name in ("", _ASKING):
            return self.asking if name else self
        return self.method.part_of(name)

    @property
    def asking(self) -> Asking:
        """The rounds of asking, with this method's training."""
        return Asking(**{each.name: getattr(self.method, each.name) for each in fields(ServerMethod)})

    def _now(self, state: Any) -> tuple[RoundMethod[Any], Any]:
        return (self.asking, state.asked) if state.asked is not None else (self.method.of(state.number), state.own)

    def task_in(self, state: Any, task: Task) -> Task:
        """The task that is trained in this state: that of the method may depend on the number."""
        now, own = self._now(state)
        changed = changed_task(now, task)
        return changed if own is None else now.task_in(own, changed)

    @contextmanager
    def _during(self, state: Any, fed: Federation) -> Iterator[tuple[Any, Any]]:
        """The method of this phase and its state; what the federation trains meanwhile is what that method trains."""
        plain, fed.task = fed.task, self.task_in(state, fed.task)
        try:
            yield self._now(state)
        finally:
            fed.task = plain

    def init(self, fed: Federation) -> Any:
        """All clients in one group."""
        return self.state_type(self.asking.init(fed))

    def step(self, state: Any, fed: Federation) -> tuple[Any, Log]:
        """A round of asking, or one of the method's own."""
        with self._during(state, fed) as (now, before):
            after, log = now.step(before, fed)
        if state.asked is None:
            return replace(state, own=after), log
        changed = count(after.models) != count(before.models)
        state = replace(state, asked=after, since=after.visits if changed else state.since)
        several = count(after.models) > 1
        patience = (AFTER if several else FIRST) * len(fed.ids)
        still_to_ask = not (several or after.clear or after.denied)  # members are asked when the network has learnt
        if after.question is not None or still_to_ask or after.visits - state.since < patience:
            return state, log
        return self._known(state, fed), log

    def _known(self, state: Any, fed: Federation) -> Any:
        """The groups that have members are those there are."""
        groups: Groups = state.asked
        used = sorted(set(groups.cluster.values()))
        place = {group: number for number, group in enumerate(used)}
        cluster = {client: place[group] for client, group in groups.cluster.items()}
        known = replace(state, asked=None, number=len(used))
        why = "where their members do better than in one" if len(used) > 1 else "no parts of which would do better"
        fed.note(f"{self.name}, round {fed.round + 1}: {self.method.counts} = {len(used)}, {why}")
        with self._during(known, fed) as (method, _):
            return replace(known, own=method.begun(fed, take(groups.models, torch.tensor(used)), cluster))

    def admit(self, state: Any, fed: Federation, new: Sequence[ClientId]) -> Any:
        """As in the phase that the run is in."""
        with self._during(state, fed) as (now, before):
            return self._with(state, now.admit(before, fed, new))

    @override
    def placed(self, state: Any, fed: Federation, ids: Sequence[ClientId]) -> Any:
        with self._during(state, fed) as (now, before):
            return self._with(state, now.placed(before, fed, ids))

    def _with(self, state: Any, own: Any) -> Any:
        return replace(state, **({"own": own} if state.asked is None else {"asked": own}))

    def model_for(self, state: Any, ids: Sequence[ClientId]) -> tuple[Stack, list[int]]:
        """As in the phase that the run is in; so the rest."""
        now, own = self._now(state)
        return now.model_for(own, ids)

    @override
    def model_of(self, state: Any, client: ClientId, group: int | None) -> State:
        now, own = self._now(state)
        return now.model_of(own, client, group)

    @override
    def clusters(self, state: Any, ids: Sequence[ClientId]) -> list[int] | None:
        now, own = self._now(state)
        return now.clusters(own, ids)

    @override
    def models(self, state: Any) -> Mapping[str, State]:
        now, own = self._now(state)
        return now.models(own)

    @override
    def models_in_use(self, state: Any, clusters: Collection[int]) -> Mapping[str, State]:
        now, own = self._now(state)
        return now.models_in_use(own, clusters)

    @override
    def ready(self, network: nn.Module, state: Any, group: int | None, seed: int) -> nn.Module:
        now, own = self._now(state)
        return now.ready(network, own, group, seed)

    @override
    def own_models(self, state: Any, memory: Mapping[ClientId, Memory]) -> Mapping[ClientId, State]:
        now, own = self._now(state)
        return now.own_models(own, memory)

    @override
    def ask_about_models(
        self, state: Any, fed: Federation, ids: Sequence[ClientId], function: Callable[[Cohort, Any], A]
    ) -> Replies[A]:
        with self._during(state, fed) as (now, own):
            asked: Replies[A] = now.ask_about_models(own, fed, ids, getattr(now, function.__name__))
            return asked

    @override
    def panels(self, state: Any, ids: Sequence[ClientId], truth: Sequence[int] | None) -> list[Panel]:
        now, own = self._now(state)
        return now.panels(own, ids, truth)


@lru_cache(maxsize=64)
def _state_type(own: Any) -> type[Counting]:
    """`Counting` with the state of a method of this kind."""
    more = [("own", own | None, field(default=None))]
    return make_dataclass(f"Counting{own.__name__}", more, bases=(Counting,), frozen=True)


def in_rounds(method: ServerMethod[Any]) -> RoundMethod[Any]:
    """A method with a server as the loop over rounds drives it."""
    return HowMany(method) if isinstance(method, Counted) and method.number == OPEN else method

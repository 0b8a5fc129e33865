"""The unit of client work: some clients, one client function, one message; the same wherever it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

import torch
from torch import Tensor

from coterie.core.cohort import Cohort, Memory
from coterie.core.devices import computing_on
from coterie.core.errors import CoterieError
from coterie.core.message import Message
from coterie.core.samples import ClientId, Population
from coterie.core.task import Task
from coterie.core.threads import one_thread


class HasClientFunctions(Protocol):
    """A method, as far as a worker knows it: a name, and functions that are marked with `on_client`."""

    @property
    def name(self) -> str:
        """As it is called in errors."""


_JOIN = "__"  # a carrier may want the name of an action to be an identifier


def action_of(function: Callable[..., Any]) -> str:
    """How a client function is named in an order: with its part, where a method has several (`part_named`)."""
    part = getattr(getattr(function, "__self__", None), "part", "")
    return f"{part}{_JOIN}{function.__name__}" if part else function.__name__


def client_function(method: HasClientFunctions, action: str) -> Any:
    """The client function that an order names."""
    named = getattr(method, "part_named", lambda part: None if part else method)
    part, _, name = action.partition(_JOIN)
    for holder, called in ((named(""), action), (named(part), name)):
        function = getattr(holder, called, None)
        if getattr(function, "on_client", False):
            return function
    raise CoterieError(f"{method.name} has no client function {action!r}.")


@dataclass(frozen=True)
class Setting:
    """What every worker knows from the start."""

    method: HasClientFunctions
    task: Task
    population: Population
    seed: int
    secret: str | None = None
    """What only this device knows, and the least flip probability it agrees to (see `deploy.consent`)."""
    least_flip: float = 0.0
    least_noise: float = 0.0


@dataclass(frozen=True)
class Job:
    """Some clients that run `action`; `rows` says which rows of the message are theirs (None: all of it)."""

    action: str
    round: int
    ids: tuple[ClientId, ...]
    rows: tuple[int, ...] | None
    memory: tuple[Memory, ...]


@dataclass(frozen=True)
class Outcome:
    """The stacked reply of a job's clients, what they keep, and the training loss of those who trained."""

    reply: Message
    kept: dict[str, Tensor | dict[str, Tensor]]
    losses: dict[ClientId, float] = field(default_factory=dict)

    def kept_by(self, position: int) -> Memory:
        """What one of the clients keeps: copies of its own, laid out as they would be in a file."""

        def own(stack: Tensor) -> Tensor:
            return stack[position].clone(memory_format=torch.contiguous_format)

        return {
            name: own(value) if isinstance(value, Tensor) else {entry: own(t) for entry, t in value.items()}
            for name, value in self.kept.items()
        }


def _task_of(owner: Any, setting: Setting) -> Task:
    """The task as the part of the method whose function is called changes it."""
    return setting.task if owner is setting.method else changed_task(owner, setting.task)


@lru_cache(maxsize=16)
def changed_task(method: Any, task: Task) -> Task:
    """The task that a method really trains; made once, because its scratch network is."""
    changed: Task = method.task(task)
    return changed


def perform(setting: Setting, job: Job, message: Message) -> Outcome:
    """Run a client function on its clients, with one thread: all client work of every engine passes here."""
    function = client_function(setting.method, job.action)
    cohort = cohort_of(setting, job, function.__self__)
    sent = message if job.rows is None else message.rows(job.rows)
    with one_thread(), computing_on(setting.task.device):
        return Outcome(Message.of(function(cohort, sent.open())), cohort.kept, cohort.losses)


def cohort_of(setting: Setting, job: Job, owner: Any = None) -> Cohort:
    """The clients of a job, with all they may use; `owner` is the part of the method whose function is called."""
    return Cohort(
        ids=job.ids,
        task=_task_of(owner or setting.method, setting),
        data=tuple(setting.population.client(client, job.round) for client in job.ids),
        round=job.round,
        seed=setting.seed,
        memory=job.memory,
        secret=setting.secret,
        least_flip=setting.least_flip,
        least_noise=setting.least_noise,
    )

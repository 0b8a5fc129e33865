"""The unit of client work: some clients, one client function, one message; the same wherever it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie import wire
from coterie.cohort import Cohort, Memory
from coterie.data.samples import ClientId, Population
from coterie.errors import CoterieError
from coterie.methods.base import ServerMethod
from coterie.task import Task


@dataclass(frozen=True)
class Setting:
    """What every worker knows from the start."""

    method: ServerMethod[Any]
    task: Task
    population: Population
    seed: int
    secret: str | None = None
    """What only this device knows, and the least flip probability it agrees to (see `engine.consent`)."""
    least_flip: float = 0.0


@dataclass(frozen=True)
class Letter:
    """A message taken apart: its type, its plain values and its tensors; `common` paths are the same for everyone."""

    kind: type[Any]
    skeleton: Any
    tensors: dict[str, Tensor]
    common: tuple[str, ...] = ()

    @property
    def unbounded(self) -> tuple[str, ...]:
        """Entries whose numbers need not be finite, as the type of the message says."""
        return getattr(self.kind, "unbounded", ())

    @classmethod
    def of(cls, message: Any, common: Sequence[str] = ()) -> Letter:
        """Take a message apart."""
        return cls(type(message), *wire.pack(message), common=tuple(common))

    def open(self) -> Any:
        """Put it together again."""
        return wire.unpack(self.kind, self.skeleton, self.tensors)

    def rows(self, index: Sequence[int]) -> Letter:
        """The same message with only these rows of every tensor that is not common."""
        picked = torch.tensor(index)
        whole = tuple(f"{path}/" for path in self.common)
        own = {name: t if name.startswith(whole) else t[picked] for name, t in self.tensors.items()}
        return Letter(self.kind, self.skeleton, own, self.common)


@dataclass(frozen=True)
class Job:
    """Some clients that shall run `action`; `rows` says which rows of the message are theirs (None: all of it)."""

    action: str
    round: int
    ids: tuple[ClientId, ...]
    rows: tuple[int, ...] | None
    memory: tuple[Memory, ...]


@dataclass(frozen=True)
class Outcome:
    """The stacked reply of a job's clients and what they keep."""

    reply: Letter
    kept: dict[str, Tensor | dict[str, Tensor]]


def perform(setting: Setting, job: Job, message: Letter) -> Outcome:
    """Run a client function on its clients."""
    function = getattr(setting.method, job.action, None)
    if not getattr(function, "on_client", False):
        raise CoterieError(f"{setting.method.name} has no client function {job.action!r}.")
    cohort = Cohort(
        ids=job.ids,
        task=setting.task,
        data=tuple(setting.population.client(client, job.round) for client in job.ids),
        round=job.round,
        seed=setting.seed,
        memory=job.memory,
        secret=setting.secret,
        least_flip=setting.least_flip,
    )
    sent = message if job.rows is None else message.rows(job.rows)
    assert function is not None
    return Outcome(Letter.of(function(cohort, sent.open())), cohort.kept)

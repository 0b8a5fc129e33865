"""The unit of client work: some clients, one client function, one message; the same wherever it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from coterie.core import wire
from coterie.core.cohort import Cohort, Memory
from coterie.core.errors import CoterieError
from coterie.core.samples import ClientId, Population
from coterie.core.task import Task
from coterie.core.threads import one_thread


class Asked(Protocol):
    """A method, as far as client work needs it: its client functions are found by name."""

    @property
    def name(self) -> str:
        """What errors call it."""


@dataclass(frozen=True)
class Setting:
    """What every worker knows from the start."""

    method: Asked
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
        return self._changed(lambda tensor: tensor[picked])

    def row(self, index: int) -> Letter:
        """What one client is sent: its row, without the leading axis, and all that is common."""
        return self._changed(lambda tensor: tensor[index])

    def with_axis(self) -> Letter:
        """The inverse of `row`: a client's own part as a cohort of one; what is common has no such axis."""
        return self._changed(lambda tensor: tensor.unsqueeze(0))

    @property
    def size(self) -> int:
        """Bytes when encoded."""
        return wire.size_of(self.skeleton, self.tensors)

    def _changed(self, change: Callable[[Tensor], Tensor]) -> Letter:
        own = {path: t if self._is_common(path) else wire.laid_out(change(t)) for path, t in self.tensors.items()}
        return replace(self, tensors=own)

    def _is_common(self, path: str) -> bool:
        """Whether an entry is common by its own name, or part of one that is."""
        return any(path == whole or path.startswith(f"{whole}/") for whole in self.common)


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

    def kept_by(self, position: int) -> Memory:
        """What one of the clients keeps: copies of its own, laid out as they would be in a file."""

        def own(stack: Tensor) -> Tensor:
            return stack[position].clone(memory_format=torch.contiguous_format)

        return {
            name: own(value) if isinstance(value, Tensor) else {entry: own(t) for entry, t in value.items()}
            for name, value in self.kept.items()
        }


def perform(setting: Setting, job: Job, message: Letter) -> Outcome:
    """Run a client function on its clients, with one thread: all client work of every engine passes here."""
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
    with one_thread():
        return Outcome(Letter.of(function(cohort, sent.open())), cohort.kept)

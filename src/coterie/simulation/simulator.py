"""The simulator: a federation in one machine, with workers, faults, joins, and bytes counted from the real encoding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from typing_extensions import override

from coterie.core import spill
from coterie.core.checks import check_reply, largest_norm, model_norms
from coterie.core.cohort import Memory
from coterie.core.errors import CoterieError
from coterie.core.federation import Arrival, Engine, Failure, Ledger, Purpose, Question, Replies
from coterie.core.jobs import (
    Job,
    Outcome,
    Setting,
    action_of,
)
from coterie.core.message import Message
from coterie.core.notes import Note, silent
from coterie.core.quorum import Quorum, discounted
from coterie.core.samples import ClientId, Population
from coterie.core.task import Task
from coterie.data.describe import mean_floor
from coterie.data.population import unseen_ids
from coterie.methods.base import RoundMethod
from coterie.simulation.attacks import Attackers, disguised
from coterie.simulation.crew import Crew
from coterie.simulation.engine_options import EngineOptions as EngineOptions
from coterie.simulation.faults import Faults
from coterie.simulation.gathering import Gathered
from coterie.simulation.latecomers import SimulatedLatecomers, without
from coterie.simulation.malloc import keep_freed_blocks

R = TypeVar("R")
_LANE_BYTES = 1 << 26
_DEVICE_BYTES = 1 << 29  # of the models that one job on an accelerator trains
_JOBS_PER_WORKER = 4
Progress = Callable[[str, int, int], None]


class Simulator(Engine):
    """All clients in one machine. Memory grows with the clients of a round, not with those registered."""

    def __init__(
        self,
        method: RoundMethod[Any],
        task: Task,
        population: Population,
        *,
        seed: int,
        faults: Faults | None = None,
        options: EngineOptions | None = None,
        quorum: Quorum | None = None,
        note: Note = silent,
        progress: Progress = silent,
    ) -> None:
        self.seed, self.round, self.task = seed, 0, task
        self.ledger = Ledger()
        self.failures: list[tuple[int, ClientId, Failure]] = []
        self.memory: dict[ClientId, Memory] = {}
        self._draft: dict[ClientId, Memory] = {}
        self._touched: set[ClientId] = set()
        self._method, self._population = method, population
        self._faults, self._options, self._note = faults or Faults(), options or EngineOptions(), note
        self.attackers = self._faults.attacking(seed, population.ids)
        joined = bool(self.attackers) and self._faults.join
        self._setting = Setting(method, task, disguised(population, self.attackers) if joined else population, seed)
        self._calendar = self._faults.calendar(seed, population.ids)
        self._always = tuple(client for client in population.ids if client not in self._calendar)
        self._progress = progress
        self._crew = Crew(self._setting, self._options, note)
        keep_freed_blocks()
        self._on_trial = self._settled = False
        self._late = SimulatedLatecomers(self._faults, quorum or Quorum(), seed)
        self._attack = Attackers(self.attackers, self._faults.attack, task.template)

    @property
    def ids(self) -> tuple[ClientId, ...]:
        """Clients that are there in this round, and not at work on an earlier one."""
        busy = set() if self._settled else self._late.busy(self.round)
        if not self._calendar and not busy:
            return self._always
        return tuple(client for client in self._population.ids if self._is_there(client) and client not in busy)

    @property
    def waiting(self) -> frozenset[ClientId]:
        """Clients whose late replies are there to be used."""
        return self._late.here(self.round)

    def settle(self) -> None:
        """All who are at work are waited for."""
        self._settled = True

    def _is_there(self, client: ClientId) -> bool:
        joins, leaves = self._calendar.get(client, (0, None))
        return joins <= self.round and (leaves is None or self.round < leaves)

    @property
    def registered(self) -> int:
        """How many clients will ever take part."""
        return len(self._population.ids)

    def begin(self, round: int) -> tuple[ClientId, ...]:
        """A round begins; returned are the clients that join in it, later than the start."""
        self.round, self._settled = round, False
        for client in self._late.forgotten(round):
            self._draft[client] = without(self._recalled(client))
        return tuple(client for client, (joins, _) in self._calendar.items() if joins == round and joins > 0)

    def groups(self, ids: Sequence[ClientId]) -> list[int] | None:
        """True groups in this round, or None where they are not known."""
        groups = [self._population.group(client, self.round) for client in ids]
        return None if any(group is None for group in groups) else [int(g) for g in groups if g is not None]

    def floor(self, ids: Sequence[ClientId]) -> float | None:
        """The mean score of constant answers, for the data as they are at the start."""
        return mean_floor(self._population, self.task, ids)

    @property
    def unseen(self) -> tuple[ClientId, ...]:
        """Clients that never take part in training."""
        return tuple(unseen_ids(self._population))

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Ask as in an evaluation: no faults, bytes booked as evaluation, nothing kept by the clients."""
        draft, self._on_trial = self._draft, True
        self._draft = {client: dict(kept) for client, kept in draft.items()}
        try:
            yield
        finally:
            self._draft, self._on_trial = draft, False

    @property
    def path(self) -> str:
        """Which way local training is computed, and why."""
        return self._crew.path

    @property
    def waits(self) -> bool:
        """Whether the workers leave time for a thread of the server's."""
        return self._crew.waits

    def truth(self, ids: Sequence[ClientId]) -> Tensor:
        """True groups in this round."""
        groups = self.groups(ids)
        if groups is None:
            raise CoterieError(
                "The true groups of these clients are not known, and this method needs them; take another."
            )
        return torch.tensor(groups)

    def answer(self, question: Question[R]) -> Replies[R]:
        """Run a client function of the method on these clients."""
        ids, message, index, counted = question.ids, question.message, question.rows, question.counted
        purpose: Purpose = "evaluation" if self._on_trial else question.purpose
        failed, late, due = self._absent(question) if purpose == "train" else ({}, {}, {})
        # a client that drops out has no result at all; one that is late has done its work, in vain or for later
        lost = {client for client, failure in failed.items() if failure.kind != "late"} | due.keys()
        working = [i for i, client in enumerate(ids) if client not in lost]
        asked, picked = [ids[i] for i in working], None if index is None else [index[i] for i in working]
        jobs = self._jobs(action_of(question.function), asked, picked, message.common)
        old = self._taken(question, list(due)) if due else None
        gathered = self._perform(jobs, message, "training" if purpose == "train" else "evaluation", old)
        if counted:
            self.ledger.down[purpose] += (len(ids) - len(due)) * (message.row(0) if index is not None else message).size
            self.ledger.up[purpose] += gathered.size
        for job, kept in zip(jobs, gathered.kept, strict=False):
            self._remember(job.ids, kept)
        names = [client for job in jobs for client in job.ids]
        for position, client in enumerate(names):
            if client in late and gathered.reply is not None:
                self._remember([client], [self._late.on_its_way(client, gathered.reply.row(position))])
        replies = self._accept([*names, *due], gathered.reply, failed, purpose, question, due)
        # of those whose replies came, refused or not
        replies = replace(replies, losses={c: loss for c, loss in gathered.losses.items() if c not in failed})
        self.failures += [(self.round, client, failure) for client, failure in replies.failed.items()]
        return replies

    def _absent(
        self, question: Question[Any]
    ) -> tuple[dict[ClientId, Failure], dict[ClientId, Failure], dict[ClientId, int]]:
        """Whose replies will be missing; who of them is late by the quorum; and whose old replies are there."""
        due = self._late.due(question, self.round)
        rest = [client for client in question.ids if client not in due]
        silent = ((client, self._faults.silence(self.seed, self.round, client)) for client in rest)
        failed = {client: failure for client, failure in silent if failure is not None}
        working = [client for client in rest if client not in failed]
        late = self._late.late(self.round, action_of(question.function), working, len(due))
        return failed | late, late, due

    def _taken(self, question: Question[Any], clients: list[ClientId]) -> tuple[Job, Message]:
        """The late replies of these clients, as what a job has brought."""
        reply = self._late.taken(question, clients, [self._recalled(client) for client in clients])
        for client in clients:
            self._draft[client] = without(self._recalled(client))
        return Job(action_of(question.function), self.round, tuple(clients), None, ()), reply

    def _perform(self, jobs: list[Job], message: Message, what: str, old: tuple[Job, Message] | None) -> Gathered:
        """Have the workers do it, and tell who watches how many clients are done; `old` replies come last."""
        gathered = Gathered(jobs if old is None else [*jobs, old[0]])

        def take(number: int, outcome: Outcome) -> None:
            gathered.take(number, outcome)
            self._progress(what, gathered.done, gathered.asked)

        if jobs:
            self._progress(what, 0, gathered.asked)
            self._crew.workers.run(jobs, message, take)
        if old is not None:
            size = gathered.size
            gathered.take(len(jobs), Outcome(old[1], {}))
            gathered.size = size  # they were counted when they were made
        return gathered

    def _jobs(self, action: str, ids: list[ClientId], rows: list[int] | None, common: Sequence[str] = ()) -> list[Job]:
        # work on what is common to all is done once per job, so there are then as few jobs as workers
        lanes = self._options.lanes or self._lanes(len(ids), 1 if common else _JOBS_PER_WORKER)
        jobs = []
        for start in range(0, len(ids), lanes):
            some = tuple(ids[start : start + lanes])
            picked = tuple(rows[start : start + lanes]) if rows is not None else None
            jobs.append(Job(action, self.round, some, picked, tuple(self._recalled(i) for i in some)))
        return jobs

    def _lanes(self, clients: int, jobs_per_worker: int) -> int:
        """Clients per job: small enough that workers finish together and that a job's models fit in the cache.

        An accelerator gets as many at once as it may train side by side.
        """
        most = _LANE_BYTES
        if self.task.device.type != "cpu":
            jobs_per_worker, most = 1, _DEVICE_BYTES
        pieces = self._crew.size * jobs_per_worker
        # rounded down where there are several jobs a worker: 10 clients in 5 jobs would keep one of two workers idle
        shared = clients // pieces if jobs_per_worker > 1 else -(-clients // pieces)
        bytes_each = sum(t.numel() * t.element_size() for t in self.task.template.values())
        return max(1, min(shared, most // max(bytes_each, 1)))

    def _remember(self, ids: Sequence[ClientId], kept: Sequence[Memory]) -> None:
        for client, own in zip(ids, kept, strict=True):
            if own:
                self._draft.setdefault(client, dict(self.memory.get(client, {}))).update(own)

    def _accept(
        self,
        ids: list[ClientId],
        first: Message | None,
        failed: dict[ClientId, Failure],
        purpose: Purpose,
        question: Question[Any],
        stale: Mapping[ClientId, int],
    ) -> Replies[Any]:
        """Refuse the bad ones of the stacked replies by name."""
        if first is None:
            return Replies((), None, failed)
        stacked = first.tensors
        refused: dict[ClientId, Failure] = {}
        said = stacked.get("size")
        if purpose == "train" and self.attackers:
            forged = self._attack.forged(ids, stacked)
            said, stacked = self._attack.said(stacked, forged), forged
        if purpose == "train":
            for position, client in enumerate(ids):
                own = {name: tensor[position : position + 1] for name, tensor in stacked.items()}
                broken = self._faults.corrupt(self.seed, self.round, client, own)
                if broken is not None:
                    limit = largest_norm(model_norms(own, self.task.template))
                    _, wrong = check_reply(
                        [client], broken, self.task.template, limit, like=own, unbounded=first.unbounded
                    )
                    refused |= wrong
                    if question.counted:  # a corrupt reply can be longer
                        self.ledger.up[purpose] += first.holding(broken).row(0).size
                        self.ledger.up[purpose] -= first.holding(own).row(0).size
        _, wrong = check_reply(ids, stacked, self.task.template, unbounded=first.unbounded, said=said)
        failed = failed | {**wrong, **refused}
        good = [position for position, client in enumerate(ids) if client not in failed]
        if not good:
            return Replies((), None, failed)
        if stale:  # old replies come last, and belong where their clients were asked
            place = {client: position for position, client in enumerate(question.ids)}
            good.sort(key=lambda position: place[ids[position]])
        if len(good) < len(ids) or stale:
            stacked = spill.taken(stacked, torch.tensor(good))
        valid = tuple(ids[position] for position in good)
        stale = {client: stale[client] for client in valid if client in stale}
        value = first.holding(discounted(stacked, valid, stale)).open()
        return Replies(valid, value, failed, stale=stale)

    def note(self, text: str) -> None:
        """Tell those who follow the run."""
        self._note(text)

    @property
    def delays(self) -> bool:
        """Whether an answer between peers can be old."""
        return self._faults.delay > 0

    def exchange(self, askers: Sequence[ClientId], answered: Tensor, size: Tensor) -> Tensor:
        """Carry answers between peers; see `PeerNetwork.exchange`. Sent bytes count as up, received ones as down."""
        arrivals = self._faults.carry(self.seed, self.round, askers, answered)
        self.ledger.up["train"] += int((answered.sum(1) * size).sum())
        self.ledger.down["train"] += int(((arrivals != Arrival.LOST).sum(1) * size).sum())
        return arrivals

    def _recalled(self, client: ClientId) -> Memory:
        return self._draft.get(client) or self.memory.get(client, {})

    def restore(self, memory: dict[ClientId, Memory], next_round: int) -> None:
        """Go on from a checkpoint."""
        self.memory = memory
        self._late.restore(memory)

    def saved(self, next_round: int) -> None:
        """A checkpoint has been written; nothing here depends on it."""

    def commit(self) -> None:
        """The round is over: what clients kept in it now counts (a round cut short leaves no trace)."""
        self.memory.update(self._draft)
        self._touched.update(self._draft)
        self._draft.clear()

    def take_touched(self) -> list[ClientId]:
        """Clients whose memory has changed since this was last asked."""
        touched = sorted(self._touched)
        self._touched.clear()
        return touched

    @override
    def close(self) -> None:
        self._crew.close()

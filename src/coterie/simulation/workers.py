"""Workers share out the clients of a round, one torch thread each.

The kernel releases the interpreter's lock, so threads suffice for it and nothing is shipped. The autograd loop holds
the lock, so it gets processes, forked once, which inherit the data; models travel in shared memory, not through pickle.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from multiprocessing.connection import Connection, wait
from pickle import PicklingError
from typing import Any, Protocol

import torch
from torch import Tensor

from coterie.core import wire
from coterie.core.errors import CoterieError, Unfinished
from coterie.core.jobs import Job, Outcome, Setting, perform
from coterie.core.message import Message
from coterie.core.notes import Note, silent
from coterie.core.threads import use_one_thread, worker_pool
from coterie.simulation.malloc import give_back_freed_blocks
from coterie.simulation.shared_memory import Arena, Parcel

_LARGE_ANSWER = 1 << 24  # bytes
_SURELY_WORTH_SHARING = 0.005  # seconds a client
Take = Callable[[int, Outcome], None]
"""Is given the number of a job that is done, and its outcome, which it may keep or not."""
_AHEAD = 4  # jobs a worker that may be done before the outcomes of earlier ones are taken


class Workers(Protocol):
    """Something that performs jobs."""

    def run(self, jobs: Sequence[Job], message: Message, take: Take) -> None:
        """Perform all jobs, and hand over each outcome when it is there, in any order: only `take` has it then."""

    def close(self) -> None:
        """Let the workers go."""


class ThreadWorkers:
    """Jobs in threads of this process; in the calling thread where there is one worker, or where that is faster.

    Threads that meet at the interpreter's lock many times a millisecond are slower than one. So short work is tried
    both ways, once each, and then done the faster way.
    """

    def __init__(self, setting: Setting, workers: int) -> None:
        self._setting, self._workers = setting, workers
        self._pool = worker_pool(workers) if workers > 1 else None
        self._pace: dict[tuple[str, bool], float] = {}  # best seconds a client of (client function, alone or shared)

    def run(self, jobs: Sequence[Job], message: Message, take: Take) -> None:
        """Perform all jobs."""
        if self._pool is None or not jobs:
            self._run_here(jobs, message, take)
            return
        action = jobs[0].action
        alone = self._is_faster_alone(action)
        start = time.perf_counter()
        if alone:
            self._run_here(jobs, message, take)
        else:
            self._run_shared(self._pool, jobs, message, take)
        pace = (time.perf_counter() - start) / sum(len(job.ids) for job in jobs)
        self._pace[action, alone] = min(pace, self._pace.get((action, alone), pace))

    def _run_here(self, jobs: Sequence[Job], message: Message, take: Take) -> None:
        for number, job in enumerate(jobs):
            take(number, perform(self._setting, job, message))

    def _run_shared(self, pool: ThreadPoolExecutor, jobs: Sequence[Job], message: Message, take: Take) -> None:
        coming = iter(jobs)
        begun: deque[Future[Outcome]] = deque()
        for number in range(len(jobs)):
            for job in islice(coming, _AHEAD * self._workers - len(begun)):
                begun.append(pool.submit(perform, self._setting, job, message))
            take(number, begun.popleft().result())

    def _is_faster_alone(self, action: str) -> bool:
        shared = self._pace.get((action, False))
        if shared is None or shared > _SURELY_WORTH_SHARING:
            return False
        return self._pace.get((action, True), 0.0) < shared

    def close(self) -> None:
        """Let the threads go."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class _Arenas:
    """Shared memory of one worker: the message of the round (one for all), what its clients keep, its answers."""

    message: Arena
    memory: Arena
    answer: Arena


@dataclass
class _Process:
    process: multiprocessing.process.BaseProcess
    pipe: Connection
    arenas: _Arenas
    number: int
    job: int | None = None


class ProcessWorkers:
    """Jobs in processes. One that dies is named, replaced once, and its job is done again.

    They are forked and inherit the data. With `devices` (accelerators, which do not survive a fork) they are spawned,
    are sent what they need once, and share the devices out among them.
    """

    def __init__(
        self, setting: Setting, workers: int, note: Note = silent, devices: Sequence[torch.device] = ()
    ) -> None:
        self._setting, self._note, self._devices = setting, note, devices
        self._replaced = False
        self._crew: list[_Process] = []
        self._message = Arena(inherited=not devices)
        for number in range(workers):
            own = Arena(inherited=not devices), Arena(inherited=not devices)
            self._crew.append(self._start(_Arenas(self._message, *own), number))

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers, to look at (or kill) one."""
        return [worker.process.pid or 0 for worker in self._crew]

    def _start(self, arenas: _Arenas, number: int) -> _Process:
        context: Any = multiprocessing.get_context("spawn" if self._devices else "fork")
        ours, theirs = context.Pipe()
        setting, inherited = self._setting, [ours, *(worker.pipe for worker in self._crew)]
        if self._devices:
            device = self._devices[number % len(self._devices)]
            setting, inherited = replace(setting, task=replace(setting.task, device=device)), []
        process = context.Process(target=_serve, args=(setting, theirs, inherited, arenas), daemon=True)
        try:
            process.start()
        except (AttributeError, TypeError, PicklingError) as error:
            raise CoterieError(
                f"What workers need cannot be sent to another process ({error}); give the model as a function of a "
                "file, not a lambda, or set engine.workers = 1."
            ) from error
        theirs.close()
        return _Process(process, ours, arenas, number)

    def run(self, jobs: Sequence[Job], message: Message, take: Take) -> None:
        """Perform all jobs, each by the next worker that is free."""
        self._message.clear()
        sent = Parcel.of(self._message, message.kind, message.skeleton, message.tensors, message.common)
        waiting = list(range(len(jobs)))[::-1]
        left = len(jobs)
        while left:
            for worker in self._crew:
                if worker.job is None and waiting:
                    worker.job = waiting.pop()
                    self._send(worker, jobs[worker.job], sent)
            for pipe in wait([worker.pipe for worker in self._crew if worker.job is not None]):
                worker = next(each for each in self._crew if each.pipe is pipe)
                number = worker.job
                assert number is not None
                try:
                    answer = worker.pipe.recv()
                except (EOFError, ConnectionError, FileNotFoundError):
                    self._replace(worker, jobs[number])
                    waiting.append(number)
                    continue
                worker.job = None
                take(number, _read(answer, worker.arenas.answer))
                left -= 1

    def _send(self, worker: _Process, job: Job, sent: Parcel) -> None:
        worker.arenas.memory.clear()
        memory = Parcel.of(worker.arenas.memory, None, *wire.pack(job.memory))
        try:
            worker.pipe.send((job.action, job.round, job.ids, job.rows, memory, sent))
        except (BrokenPipeError, ConnectionError):
            return  # `wait` reports the dead worker next

    def _replace(self, dead: _Process, job: Job) -> None:
        dead.process.join(timeout=5)
        code = dead.process.exitcode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        text = f"worker {dead.process.pid} {how} while it ran {job.action} for {len(job.ids)} clients"
        if self._replaced:
            raise Unfinished(f"A second {text}; the machine may be out of memory: try --workers 1 and resume.")
        self._replaced = True
        self._note(f"{text}; it has been replaced and its work is done again")
        dead.pipe.close()
        self._crew.remove(dead)
        self._crew.append(self._start(dead.arenas, dead.number))

    def close(self) -> None:
        """Let the processes go."""
        for worker in self._crew:
            worker.pipe.close()
        for worker in self._crew:
            worker.process.join(timeout=2)
            if worker.process.is_alive():
                worker.process.kill()


def _serve(setting: Setting, pipe: Connection, inherited: list[Connection], arenas: _Arenas) -> None:
    """A worker's life: take a job, perform it, answer, until the parent closes the pipe or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for other in inherited:  # or the end of the parent would go unnoticed
        other.close()
    use_one_thread()
    while True:
        try:
            action, number, ids, rows, memory, sent = pipe.recv()
        except (EOFError, ConnectionError):
            os._exit(0)
        try:
            kind = tuple[dict[str, Tensor | dict[str, Tensor]], ...]
            kept = wire.unpack(kind, memory.skeleton, memory.tensors(arenas.memory))
            outcome = perform(setting, Job(action, number, ids, rows, kept), sent.message(arenas.message))
            reply = outcome.reply
            arenas.answer.clear()
            answer: object = (
                Parcel.of(arenas.answer, reply.kind, reply.skeleton, reply.tensors),
                Parcel.of(arenas.answer, None, *wire.pack(outcome.kept)),
                outcome.losses,
            )
        except CoterieError as error:
            answer = error
        except Exception:
            answer = traceback.format_exc()
        try:
            pipe.send(answer)
        except (BrokenPipeError, ConnectionError):
            os._exit(0)
        if arenas.answer.used > _LARGE_ANSWER:
            give_back_freed_blocks()


def _read(answer: Any, arena: Arena) -> Outcome:
    if isinstance(answer, CoterieError):
        raise answer
    if isinstance(answer, str):
        raise RuntimeError(f"A client function failed in a worker:\n{answer}")
    reply, kept, losses = answer
    found = kept.message(arena, copy=True)
    memory = wire.unpack(dict[str, Tensor | dict[str, Tensor]], found.skeleton, found.tensors)
    return Outcome(reply.message(arena, copy=True), memory, losses)

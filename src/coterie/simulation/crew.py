"""Which workers a simulation has: threads, processes on this machine, or a Ray cluster."""

from __future__ import annotations

import os
from multiprocessing import get_all_start_methods

from coterie.core.compiled import Refusal
from coterie.core.devices import all_of
from coterie.core.jobs import Setting
from coterie.core.notes import Note
from coterie.simulation.engine_options import EngineOptions
from coterie.simulation.ray_workers import RayWorkers
from coterie.simulation.workers import ProcessWorkers, ThreadWorkers, Workers


class Crew:
    """The workers of one run, chosen by the path of its training."""

    def __init__(self, setting: Setting, options: EngineOptions, note: Note) -> None:
        self._setting, self._options, self._note = setting, options, note
        self._task = setting.task
        self._workers: Workers | None = None

    @property
    def size(self) -> int:
        """How many workers share the clients."""
        if self._options.backend == "ray" and self._workers is not None:
            assert isinstance(self._workers, RayWorkers)
            return self._workers.processors
        if self._task.device.type != "cpu":
            return self._options.workers or len(all_of(self._task.device))
        return self._options.workers or os.cpu_count() or 1

    @property
    def path(self) -> str:
        """Which way local training is computed, and why."""
        refusal = self._task.compiled
        if self._options.backend == "ray":
            crew = self.workers
            assert isinstance(crew, RayWorkers)
            what = f"torch ({refusal.reason})" if isinstance(refusal, Refusal) else "compiled kernel"
            return f"{what}, Ray with {crew.processors} processors on {crew.nodes} nodes"
        if not isinstance(refusal, Refusal):
            return f"compiled kernel, {self.size} {'threads' if self.size > 1 else 'thread'}"
        how = "processes" if self._forks or self._spawns else "thread" if self.size == 1 else "threads"
        return f"torch, {self.size} {how} ({refusal.reason})"

    @property
    def waits(self) -> bool:
        """The kernel releases the interpreter's lock; autograd does not, and no thread may be busy when it forks."""
        return not isinstance(self._task.compiled, Refusal) or self._options.backend == "ray"

    @property
    def _forks(self) -> bool:
        fits = isinstance(self._task.compiled, Refusal) and self.size > 1 and self._task.device.type == "cpu"
        return fits and "fork" in get_all_start_methods()

    @property
    def _spawns(self) -> bool:
        return self.size > 1 and self._task.device.type != "cpu"

    @property
    def workers(self) -> Workers:
        """Who does the work; started when they are first needed."""
        if self._workers is None:
            if self._options.backend == "ray":
                chosen = self._options
                self._workers = RayWorkers(self._setting, chosen.address, chosen.workers, self._note)
            elif self._spawns:
                there = all_of(self._task.device)
                self._workers = ProcessWorkers(self._setting, self.size, self._note, there)
            elif self._forks:
                self._workers = ProcessWorkers(self._setting, self.size, self._note)
            else:
                self._workers = ThreadWorkers(self._setting, self.size)
        return self._workers

    def close(self) -> None:
        """Let the workers go."""
        if self._workers is not None:
            self._workers.close()
            self._workers = None

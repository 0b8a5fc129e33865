"""Jobs on a Ray cluster: the same jobs as those of the local workers, on as many machines as the cluster has.

Messages, replies and memories travel as they do between real machines (`core.wire`), so results are bit for bit those
of one machine of the same kind. A round's message is put into Ray's object store once and comes to each node once. What
every worker knows (method, task, population) goes there once a run; a population of a named scenario is made again
where it is used. A worker or a node that is lost has its jobs done again elsewhere, by Ray's own retries.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from torch import Tensor

from coterie.core import wire
from coterie.core.errors import CoterieError, Unfinished
from coterie.core.jobs import Job, Outcome, Setting, perform
from coterie.core.message import Message
from coterie.core.notes import Note, silent
from coterie.simulation.workers import Take

_AHEAD = 3  # jobs a processor that are under way or waiting at the cluster
_RETRIES = 3
_LOOK_SECONDS = 2.0
_KEPT = dict[str, Tensor | dict[str, Tensor]]
_settings: dict[str, Setting] = {}
_messages: dict[str, Message] = {}


class RayWorkers:
    """Jobs as Ray tasks, one processor each."""

    def __init__(self, setting: Setting, address: str = "", workers: int = 0, note: Note = silent) -> None:
        self._ray, self._note = _imported(), note
        self._ours = _connect(self._ray, address, workers)
        self._known = self._nodes()
        _pickle_by_value(self._ray, setting)
        self._setting = self._ray.put(setting)
        self._task = self._ray.remote(num_cpus=1, max_retries=_RETRIES)(_work)

    @property
    def processors(self) -> int:
        """How many the cluster has now."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    @property
    def nodes(self) -> int:
        """How many machines there are now."""
        return len(self._known)

    def run(self, jobs: Sequence[Job], message: Message, take: Take) -> None:
        """Perform all jobs; nodes that come in the meantime get some, too."""
        sent = self._ray.put(np.frombuffer(message.encode(), np.uint8))
        waiting = list(range(len(jobs)))[::-1]
        under_way: dict[Any, int] = {}
        looked = time.monotonic()
        while waiting or under_way:
            while waiting and len(under_way) < _AHEAD * self.processors:
                number = waiting.pop()
                under_way[self._submit(jobs[number], message, sent)] = number
            done, _ = self._ray.wait(list(under_way), num_returns=1, timeout=_LOOK_SECONDS)
            for reference in done:
                number = under_way.pop(reference)
                take(number, self._answer(reference, jobs[number]))
            if time.monotonic() - looked > _LOOK_SECONDS:
                looked = time.monotonic()
                self._look()
        self._look()

    def _submit(self, job: Job, message: Message, sent: Any) -> Any:
        rest = (job.action, job.round, job.ids, job.rows, wire.encode(job.memory))
        # in lists: Ray would otherwise unpack them for each job, and a worker does it once
        return self._task.remote([self._setting], [sent], message.kind, message.common, rest)

    def _answer(self, reference: Any, job: Job) -> Outcome:
        try:
            answer = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise Unfinished(
                f"{job.action} for {len(job.ids)} clients was lost {_RETRIES + 1} times on the Ray cluster ({first}); "
                "its machines may be out of memory: look at its logs, then resume."
            ) from error
        if isinstance(answer, CoterieError):
            raise answer
        if isinstance(answer, str):
            raise RuntimeError(f"A client function failed on the Ray cluster:\n{answer}")
        kind, reply, kept, losses = answer
        return Outcome(Message(kind, *_parsed(reply)), wire.unpack(_KEPT, *_parsed(kept)), losses)

    def _nodes(self) -> dict[str, str]:
        return {node["NodeID"]: node["NodeManagerAddress"] for node in self._ray.nodes() if node["Alive"]}

    def _look(self) -> None:
        """Say which machines have gone or come."""
        there = self._nodes()
        for node, address in self._known.items():
            if node not in there:
                self._note(f"the Ray node {node[:8]} at {address} is gone; its work is done again elsewhere")
        for node in there.keys() - self._known.keys():
            self._note(f"the Ray node {node[:8]} at {there[node]} has come")
        self._known = there

    def close(self) -> None:
        """Leave the cluster, if this run has joined it."""
        if self._ours:
            self._ray.shutdown()
            self._ours = False


def _imported() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported that the user has not asked for
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise CoterieError("engine.backend = ray needs Ray; install it: pip install 'coterie[ray]'.") from error
    return ray


def _connect(ray: Any, address: str, workers: int) -> bool:
    """Join a cluster, or start one of this machine; whether that was done here."""
    if ray.is_initialized():
        return False
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address:
            ray.init(address=address, **quiet)
        else:
            ray.init(num_cpus=workers or None, include_dashboard=False, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        where = f"at {address}" if address else "on this machine"
        raise CoterieError(
            f"There is no Ray cluster {where} that can be joined ({str(error).splitlines()[0]}); "
            "start one with `ray start --head` and give what it prints as engine.address."
        ) from error
    return True


def _pickle_by_value(ray: Any, setting: Setting) -> None:
    """Modules of the user's that the cluster's machines may not have go along with what is sent."""
    training = getattr(setting.method, "training", setting.method)
    for thing in (
        type(setting.method),
        type(training),
        type(setting.population),
        setting.task.model,
        setting.task.loss,
    ):
        module = sys.modules.get(getattr(thing, "__module__", None) or type(thing).__module__)
        if isinstance(module, ModuleType) and _is_the_users(module):
            ray.cloudpickle.register_pickle_by_value(module)


def _is_the_users(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    if module.__name__ == "__main__" or module.__name__.partition(".")[0] == "coterie" or file is None:
        return False
    return not Path(file).is_relative_to(sys.prefix) and not Path(file).is_relative_to(sys.base_prefix)


def _parsed(data: bytes) -> tuple[Any, dict[str, Tensor]]:
    return wire.parse(data, limit=sys.maxsize, header_limit=wire.OWN_HEADER_LIMIT)


def _work(settings: list[Any], messages: list[Any], kind: Any, common: tuple[str, ...], rest: tuple[Any, ...]) -> Any:
    """On a node of the cluster: one job."""
    try:
        setting, message = _setting(settings[0]), _message(messages[0], kind, common)
        action, number, ids, rows, memory = rest
        kept = wire.unpack(tuple[_KEPT, ...], *_parsed(memory))
        outcome = perform(setting, Job(action, number, ids, rows, kept), message)
        return outcome.reply.kind, outcome.reply.encode(), wire.encode(outcome.kept), outcome.losses
    except CoterieError as error:
        return error
    except Exception:
        return traceback.format_exc()


def _setting(reference: Any) -> Setting:
    """What this process knows of the run; taken from the object store once."""
    import ray

    key = reference.hex()
    if key not in _settings:
        _settings.clear()
        _settings[key] = ray.get(reference)
    return _settings[key]


def _message(reference: Any, kind: Any, common: tuple[str, ...]) -> Message:
    """The message of the round; opened once by each process."""
    import ray

    key = reference.hex()
    if key not in _messages:
        _messages.clear()
        _messages[key] = Message(kind, *_parsed(ray.get(reference).tobytes()), common)
    return _messages[key]

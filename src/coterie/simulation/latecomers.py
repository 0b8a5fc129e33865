"""Clients that are too slow for a quorum, in simulated time: who is late, and when its reply arrives.

Times are in medians of a client's time. A round is closed when enough replies have come; one that takes k times as long
arrives in the k-th round from there, as if the rounds in between were as long. Until then its client is at work. What
is on its way lies in the client's memory, so that it is part of a checkpoint.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_type_hints

import torch

from coterie.core.cohort import Memory
from coterie.core.federation import Failure, Question
from coterie.core.jobs import action_of
from coterie.core.message import Message
from coterie.core.quorum import Quorum
from coterie.core.samples import ClientId
from coterie.simulation.faults import Faults

_NOTE, _REPLY = "late", "late reply"


@dataclass(frozen=True)
class _Away:
    """What a slow client is at work on, when it was asked, and the round in which its reply is there."""

    action: str
    asked: int
    arrives: int
    skeleton: Any = None


class SimulatedLatecomers:
    """Those whose replies are on their way."""

    def __init__(self, faults: Faults, quorum: Quorum, seed: int) -> None:
        self._faults, self.quorum, self._seed = faults, quorum, seed
        self._away: dict[ClientId, _Away] = {}

    def restore(self, memory: Mapping[ClientId, Memory]) -> None:
        """Go on from a checkpoint."""
        if self.quorum.closes_early:
            self._away = {client: _read(own) for client, own in memory.items() if _NOTE in own}

    def busy(self, round: int) -> set[ClientId]:
        """Clients that are still at work."""
        return {client for client, away in self._away.items() if away.arrives > round}

    def here(self, round: int) -> frozenset[ClientId]:
        """Clients whose late replies can be used."""
        if not self.quorum.uses_late:
            return frozenset()
        return frozenset(client for client, away in self._away.items() if away.arrives <= round)

    def late(self, round: int, action: str, working: Sequence[ClientId], come: int) -> dict[ClientId, Failure]:
        """Those of the working clients that come after the round is closed; `come` replies are there already."""
        enough = self.quorum.enough(len(working) + come) - come
        if not self.quorum.closes_early or enough >= len(working):
            return {}
        times = {client: self._faults.time(self._seed, round, client) for client in working}
        closed = sorted(times.values())[max(enough, 1) - 1]
        for client, time in times.items():
            if time > closed:
                self._away[client] = _Away(action, round, round + max(1, math.ceil(time / closed - 1e-9) - 1))
        return {
            client: Failure("late", f"it took {time:.2f} median times, the round was closed after {closed:.2f}")
            for client, time in times.items()
            if time > closed
        }

    def on_its_way(self, client: ClientId, reply: Message) -> Memory:
        """What a late client has in its memory until its reply arrives."""
        away = self._away[client]
        note = [away.action, away.asked, away.arrives, reply.skeleton if self.quorum.uses_late else None]
        written = torch.tensor(list(json.dumps(note).encode()), dtype=torch.uint8)
        return {_NOTE: written, _REPLY: dict(reply.tensors) if self.quorum.uses_late else {}}

    def due(self, question: Question[Any], round: int) -> dict[ClientId, int]:
        """Those whose late replies stand for the ones that are asked for now, and how many rounds old they are."""
        here, action = self.here(round), action_of(question.function)
        usable = [client for client in question.ids if client in here and self._away[client].action == action]
        return {client: round - self._away[client].asked for client in usable}

    def taken(self, question: Question[Any], clients: Sequence[ClientId], memory: Sequence[Memory]) -> Message:
        """The late replies of these clients, stacked; they are not on their way any more."""
        kind = get_type_hints(question.function)["return"]
        replies = [own[_REPLY] for own in memory]
        skeleton = _read(memory[0]).skeleton
        for client in clients:
            del self._away[client]
        paths = replies[0]
        assert isinstance(paths, dict)
        return Message(kind, skeleton, {path: torch.stack([reply[path] for reply in replies]) for path in paths})  # type: ignore[index]

    def forgotten(self, round: int) -> list[ClientId]:
        """Those who are back from work whose result is not used; their memory of it can go."""
        if self.quorum.uses_late:
            return []
        back = [client for client, away in self._away.items() if away.arrives <= round]
        for client in back:
            del self._away[client]
        return back


def without(memory: Memory) -> Memory:
    """A client's memory without what was on its way."""
    return {name: kept for name, kept in memory.items() if name not in (_NOTE, _REPLY)}


def _read(memory: Memory) -> _Away:
    note = memory[_NOTE]
    assert isinstance(note, torch.Tensor)
    return _Away(*json.loads(bytes(note.tolist())))

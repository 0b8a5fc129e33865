"""How far members have come, counted by round: what all peers of a process ask of it costs the same however many there
are. Whoever uses it holds a lock."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping

from coterie.core.samples import ClientId

NOT_BEGUN = -1


class Reached:
    """The round that each member has reached, and gates that open when nobody who moves is behind one."""

    def __init__(self) -> None:
        self._rounds: dict[ClientId, int] = {}
        self._members: Counter[int] = Counter()
        self._given_up: dict[ClientId, int] = {}
        self._gates: dict[int, threading.Event] = {}
        self.changes = self.moves = 0
        """How often somebody has come or left, or has gone back; and how often anybody has moved."""

    def __contains__(self, name: ClientId) -> bool:
        return name in self._rounds

    def put(self, name: ClientId, reached: int) -> None:
        """A member is there, and has come so far."""
        before = self._rounds.get(name)
        if before == reached:
            return
        self.moves += 1
        self.changes += before is None or reached < before
        if before is not None:
            self._uncount(name, before)
        self._rounds[name] = reached
        self._members[reached] += 1
        self._open()

    def remove(self, name: ClientId) -> None:
        """It has left."""
        if name in self._rounds:
            self._uncount(name, self._rounds.pop(name))
            self.changes += 1
            self._open()

    def give_up(self, name: ClientId) -> int:
        """Do not wait for it until it moves; returned is where it stands."""
        reached = self._rounds.get(name, NOT_BEGUN)
        if name in self._rounds:
            self._given_up[name] = reached
            self._open()
        return reached

    def _uncount(self, name: ClientId, reached: int) -> None:
        self._given_up.pop(name, None)
        self._members[reached] -= 1
        if not self._members[reached]:
            del self._members[reached]

    def counts(self, without: ClientId) -> Counter[int]:
        """How many of the others have reached which round."""
        found = Counter(self._members)
        if without in self._rounds:
            found[self._rounds[without]] -= 1
        return +found

    def at_least(self, round: int) -> int:
        """How many have come so far."""
        return sum(number for reached, number in self._members.items() if reached >= round)

    def behind(self, round: int) -> list[ClientId]:
        """Who is waited for in a round: not who has never begun where others have, nor who has been given up."""
        if not self.waits(round):
            return []
        return [
            name
            for name, reached in self._rounds.items()
            if _late(reached, round) and self._given_up.get(name) != reached
        ]

    def waits(self, round: int) -> bool:
        """Whether there is anyone who is waited for in a round."""
        late = sum(number for reached, number in self._members.items() if _late(reached, round))
        return late > sum(_late(reached, round) for reached in self._given_up.values())

    def gate(self, round: int) -> threading.Event:
        """What opens when nobody is waited for in a round."""
        gate = self._gates.setdefault(round, threading.Event())
        self._open()
        return gate

    def awaited(self) -> tuple[int, list[ClientId]]:
        """The latest round that somebody waits in, and for whom."""
        latest = max(self._gates, default=NOT_BEGUN)
        return latest, self.behind(latest)

    def _open(self) -> None:
        for over in [number for number in self._gates if not self.waits(number)]:
            self._gates.pop(over).set()

    def lowest(self) -> int:
        """The earliest round that anybody may still ask about."""
        return min(self._members, default=NOT_BEGUN)

    def all(self) -> Mapping[ClientId, int]:
        """Everybody, and the round each has reached."""
        return self._rounds


def _late(reached: int, round: int) -> bool:
    return reached < round and not reached < 0 < round

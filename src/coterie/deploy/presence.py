"""Who is there and how far they have come, as the peers of one process know it: bounded, whatever others say."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from coterie.core.errors import CoterieError
from coterie.core.notes import Note
from coterie.core.samples import ClientId
from coterie.core.terminal import shortly
from coterie.deploy.boundary import LATEST, check_name, whole_number
from coterie.deploy.reached import NOT_BEGUN, Reached
from coterie.methods.p2p.topology import Keys, peer_key

_MOST_NAMES = 10_000
_MOST_SAYINGS = 1_000
_FEW, _MANY = 64, 100


@dataclass(frozen=True)
class Roster:
    """Who takes part in a round, sorted by name: the same for all peers of a process."""

    names: tuple[ClientId, ...]

    @cached_property
    def by_key(self) -> dict[int, ClientId]:
        """The names by the keys that stand for them."""
        return {peer_key(name): name for name in self.names}

    @cached_property
    def keys(self) -> Keys:
        """All keys, sorted."""
        return np.sort(np.array([*self.by_key], dtype=np.int64))


class Presence:
    """Names that are claimed, those that are believed, and the progress of each. `own` are those of this process."""

    def __init__(self, own: Collection[ClientId], note: Note) -> None:
        self._own, self._note, self._lock = set(own), note, threading.Lock()
        self._claimed: set[ClientId] = set()
        self._alive = Reached()
        self._asked: dict[ClientId, int] = {}
        self._early: dict[ClientId, tuple[bytes, bytes]] = {}
        self._stamps: dict[ClientId, int] = {}
        self._progress: dict[ClientId, int] = {}
        self._turned_away: set[tuple[ClientId, str]] = set()
        self._told = 0
        self._roster: tuple[tuple[int, int, int], Roster] = ((-1, 0, 0), Roster(()))

    @property
    def own(self) -> frozenset[ClientId]:
        """The names of this process."""
        with self._lock:
            return frozenset(self._own)

    def enter(self, name: ClientId) -> None:
        """A peer of this process is there."""
        with self._lock:
            self._own.add(name)
            self._claimed.add(name)
            self._alive.put(name, self._progress.get(name, NOT_BEGUN))

    def claim(self, name: ClientId) -> bool:
        """A member says that it is there under this name; false if that cannot be one, or there are too many.

        Where there are too many, one that was asked who it is and has not said leaves its place to the new one.
        """
        try:
            check_name(name, "its name")
        except CoterieError as error:
            self.turn_away(name, str(error))
            return False
        with self._lock:
            if name not in self._claimed and len(self._claimed) >= _MOST_NAMES and self._asked:
                self._forget(next(iter(self._asked)))
            if len(self._claimed) < _MOST_NAMES:
                self._claimed.add(name)
            return name in self._claimed

    def _forget(self, name: ClientId) -> None:
        self._claimed.discard(name)
        self._asked.pop(name, None)
        self._early.pop(name, None)

    def leave(self, name: ClientId) -> None:
        """It has left."""
        with self._lock:
            gone = name in self._alive and name not in self._own
            self._own.discard(name)
            self._alive.remove(name)
            self._forget(name)
        if gone:
            self._tell(f"{name} has left")

    def admit(self, name: ClientId) -> None:
        """A name is believed."""
        with self._lock:
            new = name in self._claimed and name not in self._alive  # it may have left again
            self._asked.pop(name, None)
            if new:
                self._alive.put(name, self._progress.get(name, NOT_BEGUN))
        if new:
            self._tell(f"{name} is there")

    def _tell(self, text: str) -> None:
        """Say who comes and who leaves: everyone among few, now and then one among many."""
        with self._lock:
            self._told += 1
            told, there = self._told, len(self._alive.all())
        if told <= _FEW:
            self._note(text)
        elif told % _MANY == 0:
            self._note(f"{text}; {there} peers are there")

    def strangers(self) -> list[ClientId]:
        """Who is to be asked now whether its name is its own: all who are new, else those asked least often."""
        with self._lock:
            there = sorted(name for name in self._claimed - self._own if name not in self._alive)
            asked = [name for name in there if name not in self._asked]
            asked = asked or sorted(there, key=lambda name: self._asked[name])[:_MANY]
            for name in asked:
                self._asked[name] = self._asked.get(name, 0) + 1
            return asked

    def others(self, own: Collection[ClientId] | None = None) -> set[ClientId]:
        """Who else is there now; without `own`, those that are not of this process."""
        with self._lock:
            return self._alive.all().keys() - (self._own if own is None else own)

    def hold(self, name: ClientId, text: bytes, signature: bytes) -> bool:
        """Keep the progress of one that has not introduced itself yet; false if it has."""
        with self._lock:
            if name not in self._alive and name in self._claimed:
                self._early[name] = (text, signature)
            return name not in self._alive

    def held(self, name: ClientId) -> tuple[bytes, bytes] | None:
        """What it had said before it was believed."""
        with self._lock:
            return self._early.pop(name, None)

    def take_progress(self, name: ClientId, text: bytes) -> None:
        """How far it says it is, and when it says so; what is repeated is old."""
        reached, _, moment = text.partition(b";")
        progress, stamp = whole_number(reached, NOT_BEGUN, LATEST), whole_number(moment, 1, 1 << 63)
        with self._lock:
            there = name in self._claimed
            if progress is not None and stamp is not None and there and stamp > self._stamps.get(name, 0):
                self._stamps[name] = stamp
                self._set(name, progress)

    def look_up(self, name: ClientId, text: str) -> None:
        """How far it says it is when asked."""
        progress = whole_number(text, NOT_BEGUN, LATEST)
        if progress is not None:
            self.reach(name, progress)

    def reach(self, name: ClientId, progress: int) -> None:
        """It has come at least so far."""
        with self._lock:
            self._set(name, max(progress, self._progress.get(name, NOT_BEGUN)))

    def _set(self, name: ClientId, progress: int) -> None:
        if name not in self._claimed:
            return
        if name not in self._progress and len(self._progress) >= _MOST_NAMES:  # those who are there have a place
            for gone in self._progress.keys() - self._claimed:
                del self._progress[gone]
                self._stamps.pop(gone, None)
        self._progress[name] = progress
        if name in self._alive:
            self._alive.put(name, progress)

    def progress(self, own: ClientId) -> dict[ClientId, int]:
        """How far the others that are there have come, as far as is known."""
        with self._lock:
            return {name: reached for name, reached in self._alive.all().items() if name != own}

    def usual(self, own: ClientId) -> int:
        """How far the others are: their median, so that one that says it is far ahead says it for itself."""
        with self._lock:
            counts = self._alive.counts(own)
        passed, half = 0, counts.total() // 2
        for reached in sorted(counts):
            passed += counts[reached]
            if passed > half:
                return reached
        return NOT_BEGUN

    def lowest(self) -> int:
        """The earliest round that anybody may still ask about."""
        with self._lock:
            return self._alive.lowest()

    @property
    def moves(self) -> int:
        """How often anybody has moved: a number to compare with a later one."""
        with self._lock:
            return self._alive.moves

    def behind(self, round: int) -> list[ClientId]:
        """Who is waited for in a round."""
        with self._lock:
            return self._alive.behind(round)

    def wait(self, round: int, seconds: float) -> bool:
        """Whether nobody is waited for in a round any more, at most so much later."""
        with self._lock:
            if not self._alive.waits(round):
                return True
            gate = self._alive.gate(round)
        return gate.wait(seconds)

    def awaited(self) -> tuple[int, list[ClientId]]:
        """The latest round that a peer of this process waits in, and for whom of the others."""
        with self._lock:
            latest, late = self._alive.awaited()
            return latest, [name for name in late if name not in self._own]

    def give_up(self, name: ClientId) -> int:
        """No peer of this process waits for it until it moves; returned is where it stands."""
        with self._lock:
            return self._alive.give_up(name)

    def roster(self, round: int) -> Roster:
        """Who is there and has come to this round."""
        with self._lock:
            found = (self._alive.changes, round, self._alive.at_least(round))
            if self._roster[0] != found:
                names = sorted(name for name, reached in self._alive.all().items() if reached >= round)
                self._roster = (found, Roster(tuple(names)))
            return self._roster[1]

    def turn_away(self, name: ClientId, why: str) -> None:
        """Say, once, that a member is not believed."""
        with self._lock:
            known = (name, why) in self._turned_away or len(self._turned_away) >= _MOST_SAYINGS
            if not known:
                self._turned_away.add((name, why))
        if not known:
            self._note(f"turned away a peer that calls itself {shortly(name)}: {why}")

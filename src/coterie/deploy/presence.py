"""Who else is there and how far they have come, as one peer knows it: bounded, whatever others say."""

from __future__ import annotations

import threading

from coterie.core.errors import CoterieError
from coterie.core.notes import Note
from coterie.core.samples import ClientId
from coterie.core.terminal import shortly
from coterie.deploy.boundary import LATEST, check_name, whole_number

_MOST_NAMES = 10_000
_MOST_SAYINGS = 1_000


class Presence:
    """Names that others claim, those that are believed, and the progress of each."""

    def __init__(self, name: ClientId, note: Note) -> None:
        self._name, self._note, self._lock = name, note, threading.Lock()
        self._claimed: set[ClientId] = set()
        self._alive: set[ClientId] = set()
        self._early: dict[ClientId, tuple[bytes, bytes]] = {}
        self._stamps: dict[ClientId, int] = {}
        self._progress: dict[ClientId, int] = {}
        self._turned_away: set[tuple[ClientId, str]] = set()

    def claim(self, name: ClientId) -> bool:
        """A member says that it is there under this name; false if that cannot be one, or there are too many."""
        try:
            check_name(name, "its name")
        except CoterieError as error:
            self.turn_away(name, str(error))
            return False
        with self._lock:
            if len(self._claimed) < _MOST_NAMES:
                self._claimed.add(name)
            return name in self._claimed

    def leave(self, name: ClientId) -> bool:
        """It has left; true if it had been there."""
        with self._lock:
            gone = name in self._alive
            self._claimed.discard(name)
            self._alive.discard(name)
            self._early.pop(name, None)
        return gone and name != self._name

    def admit(self, name: ClientId) -> None:
        """A name is believed."""
        with self._lock:
            new = name in self._claimed and name not in self._alive
            self._alive |= {name} & self._claimed  # it may have left again
        if new and name != self._name:
            self._note(f"{name} is there")

    def strangers(self) -> list[ClientId]:
        """Who has not shown yet that its name is its own."""
        with self._lock:
            return sorted(self._claimed - self._alive - {self._name})

    def others(self) -> set[ClientId]:
        """Who else is there now."""
        with self._lock:
            return self._alive - {self._name}

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
        progress, stamp = whole_number(reached, -1, LATEST), whole_number(moment, 1, 1 << 63)
        with self._lock:
            known = name in self._progress or len(self._progress) < _MOST_NAMES
            if progress is not None and stamp is not None and known and stamp > self._stamps.get(name, 0):
                self._stamps[name], self._progress[name] = stamp, progress

    def look_up(self, name: ClientId, text: str) -> None:
        """How far it says it is when asked."""
        progress = whole_number(text, -1, LATEST)
        if progress is not None:
            with self._lock:
                self._progress[name] = max(progress, self._progress.get(name, -1))

    def progress(self) -> dict[ClientId, int]:
        """How far the others that are there have come, as far as is known."""
        with self._lock:
            return {name: self._progress.get(name, -1) for name in self._alive if name != self._name}

    def turn_away(self, name: ClientId, why: str) -> None:
        """Say, once, that a member is not believed."""
        with self._lock:
            known = (name, why) in self._turned_away or len(self._turned_away) >= _MOST_SAYINGS
            if not known:
                self._turned_away.add((name, why))
        if not known:
            self._note(f"turned away a peer that calls itself {shortly(name)}: {why}")

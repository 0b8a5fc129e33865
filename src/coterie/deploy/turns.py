"""Peers of one process compute in turn: one that waits for others lets the next one on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """So many of the threads that take a turn compute at once; without a number all that want to."""

    def __init__(self, at_once: int | None = None) -> None:
        self._places = None if at_once is None else threading.Semaphore(at_once)
        self._mine = threading.local()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """This thread's turn: everything inside, but for its waits."""
        if self._places is None:
            yield
            return
        with self._places:
            self._mine.turn = True
            try:
                yield
            finally:
                self._mine.turn = False

    @contextmanager
    def let_on(self) -> Iterator[None]:
        """A wait inside a turn; a thread that has none just waits."""
        if self._places is None or not getattr(self._mine, "turn", False):
            yield
            return
        self._places.release()
        try:
            yield
        finally:
            self._places.acquire()

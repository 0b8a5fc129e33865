"""Ctrl-C (or a request to end) that neither comes at the wrong moment nor gets lost.

A KeyboardInterrupt is raised wherever the main thread happens to be, and code written in another language may drop it:
zenoh sometimes does, when it comes while a payload is converted. So the request is also remembered, and raised again at
the next pause or at the end of the round.

Code of others that was interrupted may never let its locks go: httpcore does not where the request comes between taking
a lock and entering the block that releases it, and the next call on that connection waits for ever. So a call that must
not be cut in two is made `uninterrupted`.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_pressed: set[int] = set()
_heard: set[int] = set()
_uninterrupted = False


def listen() -> None:
    """Take Ctrl-C and requests to end, for the rest of this process; what is ignored on purpose stays so."""
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _press)


def _press(number: int, _: FrameType | None) -> None:
    _pressed.add(number)
    _heard.add(number)
    raise KeyboardInterrupt


def asked_to_end() -> bool:
    """Whether this process ends because another one asked it to (SIGTERM), and not by its user's Ctrl-C."""
    return signal.SIGTERM in _heard and signal.SIGINT not in _heard


def raise_if_interrupted() -> None:
    """Raise a KeyboardInterrupt that was lost on its way."""
    if _pressed:
        raise KeyboardInterrupt


def pause(seconds: float) -> None:
    """Wait a moment, unless this process has been asked to end."""
    raise_if_interrupted()
    time.sleep(seconds)
    raise_if_interrupted()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay a request to end until the end of the block, or of the outermost of blocks within each other."""
    global _uninterrupted
    if _uninterrupted or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    held: list[int] = []
    for number, handler in before.items():
        if callable(handler):
            signal.signal(number, lambda number, _: held.append(number))
    _uninterrupted = True
    try:
        yield
    finally:
        _uninterrupted = False
        for number, handler in before.items():
            signal.signal(number, handler)
    if held:
        _heard.update(held)
        raise KeyboardInterrupt


@contextmanager
def defer_interrupts() -> Iterator[None]:
    """Delay a request to end until a round is written down whole; raise one that was lost, too."""
    with uninterrupted():
        yield
    if threading.current_thread() is threading.main_thread():
        raise_if_interrupted()

"""A wish to end comes at the right moment, and is not lost where something drops it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from coterie.core import interrupts


@pytest.fixture
def listening(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(interrupts, "_pressed", set())
    interrupts.listen()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def _drop(number: int) -> None:
    """What zenoh does with it now and then."""
    with suppress(KeyboardInterrupt):
        os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_was_dropped_is_raised_at_the_next_pause(listening: None, number: int) -> None:
    interrupts.pause(0.0)
    _drop(number)
    with pytest.raises(KeyboardInterrupt):
        interrupts.pause(60.0)


def test_what_was_dropped_is_raised_at_the_end_of_the_round(listening: None) -> None:
    _drop(signal.SIGINT)
    written = []
    with pytest.raises(KeyboardInterrupt), interrupts.defer_interrupts():
        written.append("the whole round")
    assert written == ["the whole round"]


def _write(number: int) -> list[str]:
    """A block that is interrupted in its middle."""
    written: list[str] = []
    try:
        with interrupts.defer_interrupts():
            os.kill(os.getpid(), number)
            written.append("the rest")
    except KeyboardInterrupt:
        written.append("then interrupted")
    return written


def test_a_block_is_not_interrupted(listening: None) -> None:
    assert _write(signal.SIGTERM) == ["the rest", "then interrupted"]
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


def test_of_blocks_within_each_other_the_outermost_is_not_interrupted(listening: None) -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), interrupts.uninterrupted():  # noqa: PT012
        with interrupts.uninterrupted():
            os.kill(os.getpid(), signal.SIGTERM)
            done.append("inner")
        done.append("outer")
    assert done == ["inner", "outer"]


def test_calls_after_a_request_to_end_are_made(listening: None) -> None:
    """Those by which a process says goodbye: only what comes during a block is raised at its end."""
    _drop(signal.SIGTERM)
    with interrupts.uninterrupted():
        pass


def test_without_listening_the_block_holds_ctrl_c_back_too() -> None:
    assert _write(signal.SIGINT) == ["the rest", "then interrupted"]


def test_what_is_ignored_on_purpose_stays_ignored(tmp_path: Path) -> None:
    script = """if True:
        import os, signal
        from coterie.core import interrupts
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        interrupts.listen()
        os.kill(os.getpid(), signal.SIGINT)
        interrupts.raise_if_interrupted()
        print("went on")
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "went on\n"

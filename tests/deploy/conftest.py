"""What the deployment tests need around them: Flower's identity of a task, a stage, and an end after zenoh."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .processes import Command, Stage


def pytest_sessionfinish(session: pytest.Session, exitstatus: int | pytest.ExitCode) -> None:
    """zenoh's threads now and then keep a process that is over from ending; do not wait for them."""
    if "zenoh" in sys.modules:
        atexit.register(_leave, int(exitstatus))


def _leave(status: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """Where commands take part in a run; they end with the test."""
    made = Stage(tmp_path)
    yield made
    made.stop()


@pytest.fixture
def identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's messages need to know whose they are; outside a run of Flower's that is said here."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.fixture
def running() -> Iterator[list[Command]]:
    """Commands that a test has started; they end with it."""
    commands: list[Command] = []
    yield commands
    for command in commands:
        command.stop()

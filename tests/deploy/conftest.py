"""How a test process ends in which zenoh was at work."""

from __future__ import annotations

import atexit
import os
import sys

import pytest


def pytest_sessionfinish(session: pytest.Session, exitstatus: int | pytest.ExitCode) -> None:
    """zenoh's threads now and then keep a process that is over from ending; do not wait for them."""
    if "zenoh" in sys.modules:
        atexit.register(_leave, int(exitstatus))


def _leave(status: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)

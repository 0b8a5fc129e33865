"""What all tests share."""

from __future__ import annotations

import os

# before numpy is loaded: the threads of its products wait for each other longer than they compute here
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pytest

from . import forked

if TYPE_CHECKING:
    from coterie.data.own import OwnPopulation

# a job in the background ignores Ctrl-C, and so would the commands that it starts
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


LONGEST = (
    "kernel/test_build.py",
    "laws/test_other_machines.py",
    "simulation/test_accelerator.py",
    "simulation/test_ray.py",
    "test_examples.py",
)
"""Files that take half a minute: whoever comes to one of them last keeps the others waiting."""


def pytest_configure(config: pytest.Config) -> None:
    """Where tests run. The process that hands them out to others needs no torch, and waits the less for it."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return
    import torch
    from hypothesis import settings

    # one torch thread: two on a shared machine are slower. Who sets a number gets it: no result may depend on it
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    # the same examples every time: a test that fails once in a thousand times is no use to who changed something else
    settings.register_profile("same", derandomize=True)
    settings.load_profile("same")
    torch.default_generator.manual_seed(0)  # for what test files make when they are imported


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first (with --no-loadscope-reorder; otherwise those with the most tests are)."""
    items.sort(key=lambda item: not item.path.as_posix().endswith(LONGEST))


def pytest_sessionfinish() -> None:
    """Nothing that the tests have started outlives them."""
    forked.close()


@pytest.fixture(autouse=True)
def _same_weights_every_time() -> None:
    """Networks that a test makes without a seed begin alike, whatever ran before it."""
    import torch

    torch.default_generator.manual_seed(0)


@pytest.fixture
def digits() -> OwnPopulation:
    """Nine clients in three rotation groups."""
    from .tiny import tiny_digits

    return tiny_digits()


@dataclass(frozen=True)
class Said:
    """How a command ended."""

    code: int
    out: str
    err: str


Command = Callable[..., Said]


@lru_cache(maxsize=1)
def _commands() -> Any:
    """The tree of commands with their options: typer makes it again at every call, which is most of a short one."""
    from typer.main import get_command

    from coterie.cli.main import app

    return get_command(app)


@pytest.fixture
def coterie(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """The command line, in this process: `coterie("run", "fedavg")`."""
    from coterie.cli.main import main

    before, commands = signal.getsignal(signal.SIGTERM), _commands()
    monkeypatch.setattr("typer.main.get_command", lambda app: commands)

    def call(*arguments: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["coterie", *map(str, arguments)])
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        said = capsys.readouterr()
        return Said(code, said.out, said.err)

    yield call
    signal.signal(signal.SIGTERM, before)

"""What all tests share."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch

from coterie.data.own import OwnPopulation

from .tiny import tiny_digits

# one torch thread: two on a shared machine are slower than one, and sums would depend on their number
torch.set_num_threads(1)
os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", ".hypothesis")
# a job in the background ignores Ctrl-C, and so would the commands that it starts
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def digits() -> OwnPopulation:
    """Nine clients in three rotation groups."""
    return tiny_digits()


@dataclass(frozen=True)
class Said:
    """How a command ended."""

    code: int
    out: str
    err: str


Command = Callable[..., Said]


@pytest.fixture
def coterie(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """The command line, in this process: `coterie("run", "fedavg")`."""
    from coterie.cli import main

    before = signal.getsignal(signal.SIGTERM)

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

"""What a simulation frees is kept."""

from __future__ import annotations

import platform
import sys

import pytest

from tests import forked

PROGRAM = """
import resource, sys, torch
from coterie.simulation.malloc import keep_freed_blocks
if "keep" in sys.argv:
    assert keep_freed_blocks()
for _ in range(3):
    torch.ones(10_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    torch.ones(10_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _faults(*arguments: str) -> int:
    """Page faults of taking 40 MB ten times after the first three, in a process of its own."""
    done = forked.run([sys.executable, "-c", PROGRAM, *arguments])
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is of glibc")
def test_blocks_are_cleared_once_only() -> None:
    assert _faults("keep") * 4 < _faults()  # a small block in the way may cost one or two of the ten

"""What a simulation frees is kept."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys, torch
from coterie.simulation.malloc import keep_freed_blocks
if "keep" in sys.argv:
    assert keep_freed_blocks()
for _ in range(5):
    torch.ones(10_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.ones(10_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _faults(*arguments: str) -> int:
    """Page faults of taking 40 MB twenty times after the first five, in a process of its own."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is of glibc")
def test_blocks_are_cleared_once_only() -> None:
    assert _faults("keep") * 4 < _faults()  # a small block in the way may cost one or two of the twenty

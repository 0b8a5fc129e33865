"""The tests on the stand-in accelerator, in a process of their own.

Once torch knows an accelerator, its autograd starts threads, and a process with such threads cannot be forked: the
simulator's workers of the other tests are.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests import forked

_ROOT = Path(__file__).parents[2]


def test_accelerator_gives_what_the_cpu_gives_in_a_process_of_its_own() -> None:
    command = [sys.executable, "-m", "pytest", "-n", "0", "--timeout", "240", "tests/accelerator/all_methods.py"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = forked.run(command, cwd=_ROOT, env=environment)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]

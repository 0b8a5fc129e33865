"""The fork server of the tests hides nothing: what it forks says and ends as what is spawned does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from . import forked

ENVIRONMENT = {**os.environ, "COLUMNS": "200", "SAID": "heard"}
CODE = """
import atexit, os, sys
print(os.getcwd(), os.environ["SAID"], sys.argv, sys.path[0], __name__)
atexit.register(print, "at the end")
sys.stderr.write("error\\n")
"""


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("-m", "coterie", "list", "ifca"), 0),
        (("-m", "coterie", "run", "fedavg", "--set", "epochs=none"), 2),
        (("script.py", "a", "b"), 0),
        (("-c", f"{CODE}sys.exit(7)", "a"), 7),
        (("-c", f"{CODE}raise SystemExit('a reason')"), 1),
        (("-c", f"{CODE}os.kill(os.getpid(), 2); import time; time.sleep(9)"), -signal.SIGINT),
        (("-c", f"{CODE}os.abort()"), -signal.SIGABRT),
    ],
)
def test_a_forked_process_ends_as_a_spawned_one(arguments: tuple[str, ...], code: int, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(CODE)
    command = [sys.executable, *arguments]
    here = forked.run(command, cwd=tmp_path, env=ENVIRONMENT)
    there = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert (here.returncode, here.stdout) == (there.returncode, there.stdout)
    assert here.returncode == code
    if code == -signal.SIGINT:  # a traceback names the files that ran it
        assert here.stderr.splitlines()[-1] == there.stderr.splitlines()[-1] == "KeyboardInterrupt"
    else:
        assert here.stderr == there.stderr


def test_an_exception_is_a_traceback_and_code_1(tmp_path: Path) -> None:
    done = forked.run([sys.executable, "-c", "print(1 / 0)"], cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"


def test_it_is_a_process_that_can_be_killed() -> None:
    process = forked.Process([sys.executable, "-c", "import time; time.sleep(60)"])
    assert process.poll() is None
    assert process.pid != os.getpid()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.kill()
    assert process.wait() == process.returncode == -signal.SIGKILL


def test_a_fresh_one_has_torch_and_nothing_of_coterie() -> None:
    code = "import sys; print('torch' in sys.modules, [name for name in sys.modules if name.startswith('coterie')])"
    assert forked.run([sys.executable, "-c", code], fresh=True).stdout == "True []\n"


def test_what_a_library_would_read_at_its_import_is_refused() -> None:
    with pytest.raises(ValueError, match="OMP_NUM_THREADS is read when Python starts"):
        forked.Process([sys.executable, "-c", ""], env={**os.environ, "OMP_NUM_THREADS": "7"})


def test_all_ends_with_the_test_process(tmp_path: Path) -> None:
    """A test process that is killed leaves nothing behind that runs."""
    root = Path(__file__).parents[1]
    code = (
        "import sys; from tests import forked; forked._server = forked._Server('json'); "
        "p = forked.Process([sys.executable, '-c', 'import time; time.sleep(600)']); "
        "print(p.pid, forked._server._process.pid, flush=True); import time; time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=root, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        pids = [int(number) for number in process.stdout.readline().split()]
    assert len(pids) == 2
    process.kill()
    process.wait()
    end = time.monotonic() + 60
    while any(_runs(pid) for pid in pids):
        assert time.monotonic() < end
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    """A process that nobody has asked for its end yet does not."""
    done = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return bool(done.stdout.strip()) and not done.stdout.startswith("Z")

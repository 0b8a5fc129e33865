"""What is imported when: a help page needs no torch, and nothing but clustering needs scipy."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import coterie
from tests import forked

SOURCES = Path(__file__).parents[2] / "src"
HEAVY = ("numpy", "torch", "scipy", "sklearn", "plotly", "networkx", "PIL")


def imported(code: str, *arguments: str) -> set[str]:
    """Which heavy packages a fresh interpreter has imported after some code."""
    script = f"import json, sys\n{code}\nprint(json.dumps([name for name in {HEAVY} if name in sys.modules]))"
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["compare", "--help"], ["serve", "--help"]])
def test_the_command_line_starts_without_torch(arguments: list[str]) -> None:
    code = "from coterie.__main__ import main\ntry: main()\nexcept SystemExit: pass"
    assert imported(code, *arguments) == set()


def test_the_package_brings_torch_when_it_is_used_and_little_else() -> None:
    """Of the time of `import coterie` all but 0.3 s is torch's: scipy alone takes as long, scikit-learn longer."""
    assert imported("import coterie") == set()
    used = imported(
        "import coterie\ncoterie.run, coterie.from_arrays\nfor name in coterie.METHODS: coterie.method(name)"
    )
    assert {"torch", "numpy"} <= used <= {"torch", "numpy", "PIL"}


def test_a_run_of_the_digits_needs_no_scikit_learn(tmp_path: Path) -> None:
    """Neither to read them nor to say how well the groups were found: it takes 1.8 s to import, in every process."""
    code = (
        "import sys\nfrom coterie.__main__ import main\ntry: main()\nexcept SystemExit as end: assert not end.code\n"
        "sys.exit('sklearn' in sys.modules or 'scipy' in sys.modules)"
    )
    arguments = ["run", "ifca", "--rounds", "1", "--set", "scenario.clients=4", "--out", "run"]
    command = [sys.executable, "-c", code, *arguments]
    done = forked.run(command, env={**os.environ, "PYTHONPATH": str(SOURCES)}, cwd=tmp_path, timeout=120, fresh=True)
    assert done.returncode == 0, done.stderr
    assert "ari" in (tmp_path / "run" / "result.json").read_text()


def test_every_public_name_is_there() -> None:
    for name in coterie.__all__:
        assert getattr(coterie, name) is not None
        assert name in dir(coterie)
    with pytest.raises(AttributeError, match="no attribute 'rum'"):
        coterie.rum()


def test_run_stays_the_function_whatever_is_imported_first() -> None:
    code = (
        "import coterie.runs.experiment\nimport coterie\nfrom coterie.report.run import run\nassert coterie.run is run"
    )
    done = forked.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(SOURCES)}, fresh=True)
    assert done.returncode == 0, done.stderr


INTERRUPTED = """
import os, signal, sys
class Presses:
    def find_spec(self, name, *_):
        if name == "{module}":
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.{signal})
sys.meta_path.insert(0, Presses())
from coterie.__main__ import main
main()
"""


@pytest.mark.parametrize(
    "module", ["typer", "coterie.cli.deploy", "torch", "torch.nn.functional", "coterie.methods.ifca"]
)
@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_ctrl_c_during_the_imports_is_one_line(module: str, number: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED.format(module=module, signal=number), "run", "fedavg", "--out", "run"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    if module.startswith("coterie.methods"):  # long after torch
        done = forked.run(command, env=environment, cwd=tmp_path, timeout=120, fresh=True)
    else:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=environment,
            cwd=tmp_path,
            timeout=120,
            check=False,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
    assert (done.returncode, done.stderr) == (130, "coterie: stopped.\n")
    assert not any(tmp_path.iterdir())

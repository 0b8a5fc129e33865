"""The wheel: built by `python -m build`, installed into an empty environment, and used there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import coterie
from coterie.kernel import build

ROOT = Path(__file__).resolve().parents[1]


def _run(*command: object, cwd: Path) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "COTERIE"))}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as it would be published. The kernel that is compiled here already is taken, not compiled again."""
    folder = tmp_path_factory.mktemp("wheel")
    kept = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", folder / "src", ignore=kept)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    _run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder / "dist", cwd=folder)
    (made,) = (folder / "dist").iterdir()
    return made


def test_one_wheel_serves_every_python_of_a_platform(wheel: Path) -> None:
    assert wheel.name.startswith(f"coterie-{coterie.__version__}-py3-none-")
    names = zipfile.ZipFile(wheel).namelist()
    assert any(name.endswith("_cpu.so") for name in names) or build.compiler() is None
    assert not any(name.startswith(("experiments", "tests")) for name in names)


def test_the_wheel_works_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    """Its dependencies are lent from here, without what is installed here as `coterie`."""
    home = tmp_path / "venv"
    venv.create(home, symlinks=True)
    python = home / "bin" / "python"
    _run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    (packages,) = home.glob("lib/python*/site-packages")
    (packages / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    where = "import coterie; print(coterie.__file__)"
    assert str(home) in _run(python, "-c", where, cwd=tmp_path)
    assert _run(home / "bin" / "coterie", "--version", cwd=tmp_path) == f"coterie {coterie.__version__}\n"
    small = ("--clients", 4, "--samples", 20, "--groups", 2, "--rounds", 1)
    said = _run(home / "bin" / "coterie", "run", "fedavg", *small, "--out", "run", cwd=tmp_path)
    assert "report.html" in said
    assert (tmp_path / "run" / "result.json").is_file()

"""The kernel on another processor: compiled for aarch64, run under an emulator, equal to this machine's result."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from coterie.kernel import build

_KERNEL = Path(build.__file__).parent
_CROSS, _EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
_FLAGS = ("-std=c++17", "-O2", "-ffp-contract=off", "-Wno-psabi", "-static", f"-I{_KERNEL}")


def _printed(command: str, program: Path, runner: tuple[str, ...] = ()) -> list[float]:
    sources = [str(Path(__file__).parent / "foreign.cpp"), str(_KERNEL / "train.cpp")]
    subprocess.run([command, *_FLAGS, *sources, "-o", str(program)], check=True, capture_output=True, timeout=280)
    done = subprocess.run([*runner, str(program)], check=True, capture_output=True, text=True, timeout=60)
    return [float(line) for line in done.stdout.split()]


@pytest.mark.skipif(
    not (shutil.which(_CROSS) and shutil.which(_EMULATOR)),
    reason="needs a cross compiler and an emulator (Debian: g++-aarch64-linux-gnu, qemu-user)",
)
def test_aarch64_trains_to_the_same_weights(tmp_path: Path) -> None:
    here = _printed(build.compiler() or "c++", tmp_path / "here")
    there = _printed(_CROSS, tmp_path / "there", (_EMULATOR,))
    assert len(here) == 2 + 276
    assert here[0] != here[1]
    assert there == pytest.approx(here, rel=1e-12, abs=1e-12)

"""The build: sanitizers find nothing, and an install without a compiler goes on without the kernel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from coterie.kernel import build, library

_ROOT = Path(__file__).resolve().parents[2]
_COMPILES = pytest.mark.timeout(1500)
"""Whoever comes first compiles the whole kernel, which took more than the usual 300 s on a busy machine."""


def _sanitizer_runtime() -> str:
    """The sanitizers' libraries, to be loaded before Python; skips where there are none."""
    command = build.compiler()
    if command is None:
        pytest.skip("no C++ compiler")
    found = []
    for name in ("libasan.so", "libubsan.so"):
        done = subprocess.run(
            [*command.split(), f"-print-file-name={name}"], capture_output=True, text=True, check=False
        )
        file = Path(done.stdout.strip())
        if not file.is_absolute():
            pytest.skip(f"the compiler {command} has no {name}")
        found.append(str(file))
    return ":".join(found)


def _sanitized() -> Path:
    """The kernel compiled with sanitizers; kept in build/ until the sources change."""
    folder = _ROOT / "build" / f"kernel-sanitized-{build.digest()}"
    if not folder.exists():  # the last step of the build is a rename, so what exists is whole
        fresh = folder.with_suffix(f".{os.getpid()}")
        build.build(fresh, sanitize=True)
        fresh.replace(folder)
    return folder


@pytest.fixture(scope="module")
def exercised() -> subprocess.CompletedProcess[str]:
    """A process that went through all of the kernel, said so, and then read behind the end of a tensor."""
    environment = {
        **os.environ,
        "LD_PRELOAD": _sanitizer_runtime(),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python itself leaves memory behind; test_behaviour measures the kernel's
        "PYTHONPATH": os.pathsep.join([str(_ROOT / "src"), str(_ROOT)]),
    }
    command = [sys.executable, "-m", "tests.kernel.sanitized", str(_sanitized())]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=_ROOT)


@_COMPILES
def test_sanitizers_find_nothing(exercised: subprocess.CompletedProcess[str]) -> None:
    assert exercised.stdout.startswith("clean"), exercised.stderr[-3000:]
    assert "runtime error" not in exercised.stderr


@_COMPILES
def test_the_sanitizer_would_have_noticed(exercised: subprocess.CompletedProcess[str]) -> None:
    assert exercised.returncode != 0
    assert "AddressSanitizer: heap-buffer-overflow" in exercised.stderr
    assert "not noticed" not in exercised.stdout


def test_without_a_compiler_there_is_a_notice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "_MARK", "as if nothing had been compiled yet")
    monkeypatch.setenv("CXX", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert build.compiler() is None
    with pytest.raises(build.BuildError, match="no C\\+\\+ compiler"):
        build.build(tmp_path)
    build.build_or_explain(tmp_path)
    assert "will run on torch" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert "not compiled" in str(library.load(tmp_path))


def test_a_compiler_that_fails_is_a_notice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "_MARK", "as if nothing had been compiled yet")
    monkeypatch.setenv("CXX", f"{sys.executable} -c raise(SystemExit('error:-no'))")
    build.build_or_explain(tmp_path)
    assert "will run on torch" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["build", "--into", str(tmp_path)])
    with pytest.raises(SystemExit, match="failed: error:-no"):
        build.main()


@pytest.mark.parametrize(
    ("level", "present", "expected"),
    [
        (0, ("v3", "v4"), "lacks AVX2"),
        (3, ("v4",), "not compiled for this processor (v3)"),
        (1, ("v3", "v4"), "not compiled for this processor (generic)"),
        (3, ("v3", "v4"), "_kernel_v3.so"),
        (4, ("v3", "v4"), "_kernel_v4.so"),
        (4, ("v3",), "_kernel_v3.so"),
    ],
)
def test_the_best_variant_that_runs_is_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, level: int, present: tuple[str, ...], expected: str
) -> None:
    for name in ("_cpu.so", *(f"_kernel_{variant}.so" for variant in present)):
        (tmp_path / name).touch()
    monkeypatch.setattr(library, "Library", lambda file: file.name)

    class Probe:
        restype: type | None = None

        def __call__(self) -> int:
            return level

    monkeypatch.setattr("ctypes.CDLL", lambda _: SimpleNamespace(coterie_cpu_level=Probe()))
    assert expected in str(library.load(tmp_path))


def test_a_broken_library_is_a_reason(tmp_path: Path) -> None:
    (tmp_path / "_cpu.so").write_text("not a library")
    assert "does not load" in str(library.load(tmp_path))

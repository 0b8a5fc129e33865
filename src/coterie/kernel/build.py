"""Compile the kernel: `python -m coterie.kernel.build`, and what `pip install` runs (setup.py).

Only the standard library is used here, because an install runs this file before anything else is there. Without a C++
compiler nothing breaks: the package then trains with torch.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_MARK = "_kernel.digest"
_SOURCES = ("train.cpp", "evaluate.cpp", "gradient.cpp", "peers.cpp", "graph.cpp", "sequence.cpp")
_FLAGS = ("-std=c++17", "-fPIC", "-Wall", "-Wextra", "-Wno-psabi")
# No -ffast-math: NaN and infinity must behave as in torch.
_FAST = ("-O3", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math")
_SANITIZE = (
    *("-O0", "-g1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"),
    "-DCOTERIE_SANITIZED",
)


class BuildError(Exception):
    """There is no compiler, or it did not accept the sources."""


def digest() -> str:
    """A short name for the present state of the sources and flags, to reuse what was compiled from them."""
    state = blake2b(digest_size=8)
    for source in sorted([*_HERE.glob("*.cpp"), *_HERE.glob("*.hpp"), Path(__file__)]):
        state.update(source.read_bytes())
    return state.hexdigest()


def compiler() -> str | None:
    """The C++ compiler of this system: $CXX, c++, g++ or clang++."""
    for name in (os.environ.get("CXX", ""), "c++", "g++", "clang++"):
        if name and shutil.which(name.split()[0]):
            return name
    return None


def variants() -> dict[str, tuple[str, ...]]:
    """The libraries to compile for this kind of processor, with their flags; at load the best that runs is taken."""
    if platform.machine().lower() in ("x86_64", "amd64"):
        return {"v3": ("-march=x86-64-v3",), "v4": ("-march=x86-64-v4", "-mprefer-vector-width=512")}
    return {"generic": ()}


def build(target: Path = _HERE, *, sanitize: bool = False) -> list[Path]:
    """Compile all variants (with sanitizers: one) into the folder `target` and return the files."""
    command = compiler()
    if command is None:
        raise BuildError("no C++ compiler was found (looked for $CXX, c++, g++ and clang++)")
    speed = _SANITIZE if sanitize else _FAST
    chosen = dict(list(variants().items())[:1]) if sanitize else variants()
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="coterie-kernel-") as scratch:
        sources = [_HERE / name for name in _SOURCES]
        if sanitize:  # in one piece: most of the time goes into what the sources have in common
            whole = Path(scratch) / "kernel.cpp"
            whole.write_text("".join(f'#include "{source}"\n' for source in sources))
            sources = [whole]
        jobs = [
            (source, (*_FLAGS, *speed, *flags), Path(scratch) / f"{variant}-{source.name}.o")
            for variant, flags in chosen.items()
            for source in sources
        ]
        jobs.append((_HERE / "cpu.cpp", (*_FLAGS, "-O1"), Path(scratch) / "cpu.o"))
        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            list(pool.map(lambda job: _run(command, *job[1], "-c", str(job[0]), "-o", str(job[2])), jobs))
        made = [_link(command, target / "_cpu.so", [Path(scratch) / "cpu.o"], ())]
        for variant in chosen:
            objects = [job[2] for job in jobs if job[2].name.startswith(f"{variant}-")]
            made.append(_link(command, target / f"_kernel_{variant}.so", objects, _SANITIZE if sanitize else ()))
    return made


def _link(command: str, library: Path, objects: list[Path], flags: tuple[str, ...]) -> Path:
    # Into a file beside it and then renamed: a process that has the old library loaded keeps it.
    fresh = library.with_suffix(".fresh")
    _run(command, "-shared", *flags, *map(str, objects), "-o", str(fresh))
    os.replace(fresh, library)
    return library


def _run(command: str, *arguments: str) -> None:
    done = subprocess.run([*command.split(), *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        raise BuildError(f"{command} failed: {lines[0] if lines else 'no message'}")


def build_or_explain(target: Path = _HERE) -> None:
    """Compile if possible; otherwise print why training will run on torch. For installs, which must not fail.

    What was compiled from the same sources, there or beside them, is used again: compiling takes a minute.
    """
    state = digest()
    if _holds(target, state):
        return
    if _holds(_HERE, state):
        for file in (*_HERE.glob("*.so"), _HERE / _MARK):
            shutil.copy2(file, target / file.name)
        return
    try:
        build(target)
        (target / _MARK).write_text(state)
    except (BuildError, OSError) as error:
        print(
            f"coterie: the C++ kernel was not compiled ({error}); training will run on torch, slower.", file=sys.stderr
        )


def _holds(folder: Path, state: str) -> bool:
    """Whether a folder has libraries that were compiled from these sources."""
    mark = folder / _MARK
    return mark.is_file() and mark.read_text() == state and (folder / "_cpu.so").is_file()


def main() -> None:
    """Compile in place, or into another folder."""
    parser = argparse.ArgumentParser(prog="python -m coterie.kernel.build", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--into", type=Path, default=_HERE, help="folder for the libraries (default: the package)")
    parser.add_argument("--sanitize", action="store_true", help="with address and undefined-behaviour sanitizers")
    arguments = parser.parse_args()
    try:
        for file in build(arguments.into, sanitize=arguments.sanitize):
            print(file.name)
    except BuildError as error:
        raise SystemExit(f"coterie: {error}") from None


if __name__ == "__main__":
    main()

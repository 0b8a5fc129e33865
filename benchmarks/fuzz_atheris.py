"""A longer, coverage-guided look for input that gets past a boundary: the doors of `tests/fuzz`, driven by atheris.

    pip install atheris
    python -m benchmarks.fuzz_atheris texts -max_total_time=600

The first argument names the doors (texts, messages, clients, servers, files, flower, peers), the rest are libFuzzer's.
atheris chooses the bytes by what code they reach; every second input is made from a well-formed one by the mutations
of the tests. What it finds is an exception here, and a file `crash-...` that can be given again as an argument.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.fuzz.door import Door

GROUPS = ("texts", "messages", "clients", "servers", "files", "flower", "peers")


def main(arguments: list[str]) -> None:
    if len(arguments) < 2 or arguments[1] not in GROUPS:
        raise SystemExit(f"Name the doors to try: {', '.join(GROUPS)}.")
    try:
        import atheris
    except ModuleNotFoundError:
        raise SystemExit("This needs atheris, which is not a part of coterie's extras: pip install atheris") from None
    with atheris.instrument_imports(include=["coterie"]):
        pass

    from tests.fuzz.guard import judged, watched

    folder = Path(tempfile.mkdtemp(prefix="coterie-fuzz-"))
    here = Path.cwd()
    os.chdir(folder)
    doors = _doors(arguments[1], folder)

    def one(data: bytes) -> None:
        if len(data) < 4:
            return
        door = doors[data[0] % len(doors)]
        case = data[2:]
        if data[1] % 2:
            random = Random(case)
            case = random.choice(door.seeds)
            for _ in range(1 + data[1] // 64):
                case = _mutated(door, random, case)
        with watched(folder):
            judged(door.open, case, door.name)

    rest = [argument if argument.startswith("-") else str(here / argument) for argument in arguments[2:]]
    atheris.Setup([arguments[0], f"-artifact_prefix={here}/", *rest], one)
    atheris.Fuzz()


def _mutated(door: Door, random: Random, case: bytes) -> bytes:
    try:
        return door.mutate(random, case)
    except Exception:  # a mutation of a mutation that is none any more
        return case


def _doors(group: str, folder: Path) -> list[Door]:
    from tests.fuzz import doors, file_doors, learning_doors
    from tests.tiny import tiny_digits

    made: dict[str, Any] = {
        "texts": doors.texts,
        "messages": doors.messages,
        "clients": lambda: learning_doors.clients(tiny_digits(), folder),
        "servers": lambda: [
            *learning_doors.servers(tiny_digits(), folder, 2),
            *learning_doors.servers(tiny_digits(), folder, 3),
        ],
        "files": lambda: file_doors.files(folder),
        "flower": doors.flower,
        "peers": lambda: doors.peers(tiny_digits()),
    }
    found: list[Door] = made[group]()
    return found


if __name__ == "__main__":
    main(sys.argv)

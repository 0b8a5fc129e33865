"""FedAvg of the same work in other libraries and in coterie, the whole machine each: seconds per round.

LeNet-5 and the MLP: 100 clients with 600 images of 28 x 28, 10 of them per round, one local epoch in batches of 32, SGD
with rate 0.1. The CIFAR CNN and ResNet-18 with GroupNorm: 2 of 4 clients per round, with 128 images of 32 x 32 in
batches of 64, and 20 in one batch; rate 0.01. No evaluation inside the timed part. Every library runs in its own
environment, through its own public interface, in each of the settings that could be its best, and takes turns with
coterie; only ratios within a turn count.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.__main__ import machine
from benchmarks.peer_scripts import work

MODELS = {
    "lenet5": "LeNet-5",
    "mlp": "MLP 784-200-200-10",
    "pens-cnn": "CIFAR CNN",
    "resnet18-gn": "ResNet-18, GroupNorm",
}
GOALS = {"lenet5": 4.0, "mlp": 3.0}
_ROOT = Path(__file__).resolve().parent.parent
_CORES = os.cpu_count() or 1


@dataclass(frozen=True)
class Setting:
    """One way to let a library have the machine."""

    name: str
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Library:
    """A script, the environment it runs in and the settings to try."""

    name: str
    script: str
    settings: tuple[Setting, ...]
    environment: str | None = None

    def python(self, environments: Path) -> Path:
        """The interpreter that has the library."""
        return environments / self.environment / "bin" / "python" if self.environment else Path(sys.executable)


ONE_THREAD = Setting("1 torch thread", ("--threads", "1"))
ALL_THREADS = Setting(f"{_CORES} torch threads", ("--threads", str(_CORES)))
PROCESSES = Setting(f"{_CORES} processes", ("--workers", str(_CORES)))
AS_IT_COMES = Setting("as it comes")
OURS = Library("coterie", "ours", (Setting(f"default, {_CORES} workers", ("--workers", str(_CORES))),))
PEERS = (
    Library("pfl-research", "pfl_research", (ONE_THREAD, ALL_THREADS, PROCESSES), "pfl"),
    Library("fluke", "fluke_fl", (ONE_THREAD, ALL_THREADS), "fluke"),
    Library("FedLab", "fedlab_serial", (ONE_THREAD, ALL_THREADS), "fedlab"),
    Library("Flower", "flower_simulation", (PROCESSES, ALL_THREADS), "flower"),
    Library("fedjax", "fedjax_fl", (AS_IT_COMES,), "fedjax"),
)


class RunFailedError(Exception):
    """A script did not do the work, and why."""


@dataclass
class Row:
    """One setting of one library on one model, over all turns."""

    model: str
    library: str
    setting: str
    version: str = ""
    seconds: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    best: bool = False

    @property
    def median(self) -> float | None:
        """Median seconds per round."""
        return statistics.median(self.seconds) if self.seconds else None

    @property
    def ratio(self) -> float | None:
        """How many times coterie's seconds: the median over turns."""
        return statistics.median(self.ratios) if self.ratios else None


def _ratio_of(row: Row) -> float:
    return float("inf") if row.ratio is None else row.ratio


def run(
    library: Library, setting: Setting, model: str, rounds: int, environments: Path, limit: float
) -> tuple[str, float]:
    """The library's version and its median seconds per round, from one fresh process."""
    module = f"benchmarks.peer_scripts.{library.script}"
    arguments = ["-m", module, "--model", model, "--rounds", str(rounds), *setting.arguments]
    process = subprocess.Popen(
        [str(library.python(environments)), *arguments],
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(_ROOT), str(_ROOT / "src")))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=limit)
    except BaseException as error:  # too late, or interrupted: its workers must go with it
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise RunFailedError(f"not done after {limit:.0f} s") from None
        raise
    lines = [line for line in output.splitlines() if line.startswith('{"version"')]
    if process.returncode or not lines:
        said = [line for line in (errors.strip() or output.strip() or "no output").splitlines() if line.strip(" =")]
        raise RunFailedError(said[-1])
    found = json.loads(lines[-1])
    wanted = work.Job(model).steps * (rounds + 1)
    if found["steps"] != wanted:
        raise RunFailedError(f"took {found['steps']} steps instead of {wanted}")
    if not found["after"] < found["before"]:
        raise RunFailedError(f"did not learn: loss {found['before']:.3f}, then {found['after']:.3f}")
    return found["version"], statistics.median(found["seconds"])


def measure(
    peers: Sequence[Library],
    models: Sequence[str],
    environments: Path,
    rounds: int,
    turns: int,
    limit: float,
    console: Console,
    keep: Callable[[Sequence[Row]], None],
) -> list[Row]:
    """All rows. Coterie runs again before each library, so that ratios compare neighbours in time.

    What there is after each library is kept.
    """
    rows = [
        Row(model, library.name, setting.name)
        for model in models
        for library in (OURS, *peers)
        for setting in library.settings
    ]
    table = {(row.model, row.library, row.setting): row for row in rows}
    for turn in range(turns):
        for model in models:
            for peer in peers:
                own: float | None = None
                for library, setting in [(OURS, OURS.settings[0]), *((peer, each) for each in peer.settings)]:
                    row = table[model, library.name, setting.name]
                    try:
                        row.version, seconds = run(library, setting, model, rounds, environments, limit)
                    except RunFailedError as error:
                        row.failures.append(str(error))
                        console.print(f"turn {turn + 1}: {library.name}, {setting.name}, {MODELS[model]}: {error}")
                        continue
                    own = seconds if library is OURS else own
                    row.seconds.append(seconds)
                    if own is not None:
                        row.ratios.append(seconds / own)
                keep(rows)
        load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
        console.print(f"turn {turn + 1} of {turns} is over; load {load}", highlight=False)
    for model in models:
        for library in (OURS, *peers):
            best = min((table[model, library.name, setting.name] for setting in library.settings), key=_ratio_of)
            best.best = bool(best.ratios)
    return rows


def show(rows: Sequence[Row], console: Console) -> None:
    """The tables, and how far the best peer is from the goal."""
    for model in dict.fromkeys(row.model for row in rows):
        title = MODELS[model]
        table = Table("library", "version", "setting", "s per round", "times coterie's", "best", title=title)
        for row in (row for row in rows if row.model == model):
            numbers = (f"{row.median:.3f}", f"{row.ratio:.2f}") if row.ratios else ("-", "-")
            table.add_row(row.library, row.version, row.setting, *numbers, "*" if row.best else "")
        console.print(table)
        rivals = [row for row in rows if row.model == model and row.best and row.library != OURS.name]
        if rivals:
            nearest = min(rivals, key=_ratio_of)
            console.print(
                f"{title}: coterie is {nearest.ratio:.2f} times as fast as the best peer, {nearest.library} "
                f"({nearest.setting})" + (f"; the goal is {GOALS[model]:g}" if model in GOALS else ""),
                highlight=False,
            )


def main() -> None:
    """Run every library that is installed, print the tables and write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--venvs", type=Path, required=True, help="a folder with an environment for each library")
    parser.add_argument("--models", default=",".join(MODELS), help=f"which networks, of {', '.join(MODELS)}")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds of each run, after one that is not timed")
    parser.add_argument("--turns", type=int, default=3, help="how often all libraries take their turn")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds after which a run is given up")
    parser.add_argument("--json", type=Path, default=Path("runs/peers.json"), help="where the JSON goes")
    options = parser.parse_args()
    if options.rounds < 1 or options.turns < 1:
        parser.error("--rounds and --turns must be at least 1.")
    models = options.models.split(",")
    if set(models) - MODELS.keys():
        parser.error(f"--models takes {', '.join(MODELS)}.")
    console = Console()
    console.print(machine())
    peers = [library for library in PEERS if library.python(options.venvs).is_file()]
    for library in PEERS:
        if library not in peers:
            console.print(f"{library.name} is skipped: there is no {library.python(options.venvs)}.", highlight=False)
    if not peers:
        parser.error(f"{options.venvs} has no environment; see docs/performance.md for how to make them.")
    options.json.parent.mkdir(parents=True, exist_ok=True)

    def keep(rows: Sequence[Row]) -> None:
        found = [vars(row) | {"median": row.median, "ratio": row.ratio} for row in rows]
        options.json.write_text(json.dumps({"machine": machine(), "rows": found}, indent=1))

    environments = options.venvs.absolute()
    rows = measure(peers, models, environments, options.rounds, options.turns, options.limit, console, keep)
    show(rows, console)
    keep(rows)
    console.print(f"JSON: {options.json}", highlight=False)


if __name__ == "__main__":
    main()

"""Many peers over zenoh, a few processes of many each: what a round costs, beside the simulator."""

from __future__ import annotations

import csv
import json
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.deploy.processes import Command, free_port, until

from benchmarks.deployment import Clock, per_round
from benchmarks.load import processor_seconds, resident
from coterie.deploy.certificates import make_certificates
from coterie.runs.config import from_tables, read_tables
from coterie.runs.experiment import execute, population_of
from coterie.runs.folder import home_of
from coterie.runs.records import METRICS_FILE, RESULT_FILE

SIZES = (64, 250, 500, 1000)
ROUNDS = 5
LONG = 3600.0
LOOK = 0.1
RUN = """
method = "panm"
rounds = {rounds}
evaluate_every = {rounds}
checkpoint_seconds = 10000
[scenario]
name = "rotated-digits"
clients = {clients}
samples = {samples}
test_samples = 10
[settings]
epochs = 5
lr = 0.05
k = 2
l = 3
"""


def hosted(
    sizes: Sequence[int] = SIZES, processes: int = 2, *, tls: bool = False, rounds: int = ROUNDS, samples: int = 20
) -> list[dict[str, object]]:
    """So many peers, in so many processes."""
    rows: list[dict[str, object]] = []
    for size in sizes:
        with tempfile.TemporaryDirectory() as place:
            rows.append(_hosted(Path(place), size, processes, tls=tls, rounds=rounds, samples=samples))
    return rows


def _hosted(folder: Path, size: int, processes: int, *, tls: bool, rounds: int, samples: int) -> dict[str, object]:
    (folder / "run.toml").write_text(RUN.format(clients=size, rounds=rounds, samples=samples))
    config, alone = from_tables(read_tables(folder / "run.toml")), Clock()
    simulated = execute(config, None, view=alone)
    names = population_of(config.scenario, config.seed).ids
    if tls:
        make_certificates(folder / "certs", names, ["127.0.0.1"])
    seed, began = free_port(), time.monotonic()
    with ExitStack() as stack:
        started = []
        for index in range(processes):
            port, own = seed if index == 0 else free_port(), names[index::processes]
            what = ("--config", "run.toml", "--data", "run.toml", "--names", ",".join(own), "--out", f"out-{index}")
            where = ("--listen", f"127.0.0.1:{port}", "--seeds", f"127.0.0.1:{seed}", "--peers", size)
            how = ("--timeout", LONG, "--patience", LONG, *(("--certs", "certs/clients") if tls else ()))
            started.append(Command(folder, f"host-{index}", "peer", *what, *where, *how))
            stack.callback(started[-1].stop)
        logs = [home_of(folder / f"out-{index % processes}", name) / METRICS_FILE for index, name in enumerate(names)]

        def reached(round: int, behind: list[Path]) -> bool:
            """Whether all are there; who is, is not looked at again, nor is anybody often."""
            time.sleep(LOOK)
            assert all(command.process.poll() is None for command in started), started[0].text
            while behind and behind[-1].is_file() and behind[-1].read_text().count("\n") > round:
                behind.pop()
            return not behind

        def spent() -> list[float]:
            return [processor_seconds(command.process.pid) for command in started]

        behind = list(logs)
        until(lambda: reached(1, behind), "the first round of all", LONG)
        first, ready = spent(), time.monotonic() - began
        behind = list(logs)
        until(lambda: reached(rounds - 1, behind), "the last round but one", LONG)
        each = [(after - before) / (rounds - 2) for before, after in zip(first, spent(), strict=True)]
        memory = [resident(command.process.pid) for command in started]
        for command in started:
            command.ends(0, LONG)
    results = [json.loads((log.parent / RESULT_FILE).read_text()) for log in logs]
    with open(logs[0], newline="") as file:
        ends = [float(row["seconds"]) for row in csv.DictReader(file)]
    return {
        "peers": size,
        "processes": processes,
        "mTLS": tls,
        **per_round(ends),
        "simulator s": per_round(alone.ends)["median s"],
        "CPU s a round of each": " ".join(f"{seconds:.2f}" for seconds in each),
        "MB of each": " ".join(f"{size:.0f}" for size in memory),
        "s to the first round": round(ready, 1),
        "sent": sum(result["bytes_up"] for result in results),
        "received": sum(result["bytes_down"] for result in results),
        "simulator's ledger": simulated.bytes_down,
        "lost": sum(result["failures"] for result in results),
        "load": round(os.getloadavg()[0], 1),
    }

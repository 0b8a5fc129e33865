"""What real processes cost: seconds per round, and bytes on the wire against the ledger, beside the simulator's."""

from __future__ import annotations

import csv
import json
import statistics
import tempfile
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.deploy.processes import Command, WireTap, free_port

from coterie.deploy.certificates import make_certificates
from coterie.deploy.flower.superlink import own_superlink
from coterie.deploy.flower.transport import FlowerTransport
from coterie.runs.config import RunConfig, from_tables, read_tables
from coterie.runs.experiment import execute, population_of
from coterie.runs.folder import RunFolder
from coterie.runs.serve import ServeOptions, conduct
from coterie.runs.view import SilentView

SIZES = (4, 8)
ROUNDS = 20
LONG = 600.0
RUN = """
method = "{method}"
rounds = {rounds}
evaluate_every = {rounds}
checkpoint_seconds = 1000
[scenario]
name = "rotated-digits"
clients = {clients}
samples = 100
[settings]
epochs = 5
{settings}
"""


class Clock(SilentView):
    """When the rounds of a run were over."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def update(self, row: Mapping[str, Any]) -> None:
        """A round is over."""
        self.ends.append(time.perf_counter())


def _config(folder: Path, method: str, clients: int, settings: str = "") -> RunConfig:
    file = folder / "run.toml"
    file.write_text(RUN.format(method=method, rounds=ROUNDS, clients=clients, settings=settings))
    return from_tables(read_tables(file))


def per_round(ends: list[float]) -> dict[str, float]:
    """Of the rounds after the first and before the last, which has the evaluation in it."""
    each = [b - a for a, b in pairwise(ends[:-1])]
    return {"median s": round(statistics.median(each), 4), "best s": round(min(each), 4)}


def flower() -> list[dict[str, object]]:
    """A server and `coterie join` in processes of their own, with a wire-tap between them and the SuperLink."""
    rows: list[dict[str, object]] = []
    for clients in SIZES:
        with tempfile.TemporaryDirectory() as place:
            rows.append(_flower(Path(place), clients))
    return rows


def _flower(folder: Path, clients: int) -> dict[str, object]:
    config, port = _config(folder, "fedavg", clients), free_port()
    alone, clock = Clock(), Clock()
    execute(config, None, view=alone)
    with own_superlink("127.0.0.1", port, None, folder / "superlink.log", 1 << 29) as link:
        tap = WireTap(port)
        server = f"127.0.0.1:{tap.port}"
        joined = [
            Command(folder, str(name), "join", "--server", server, "--name", name, "--data", "run.toml", "--stay")
            for name in population_of(config.scenario, config.seed).ids
        ]
        try:
            with link.grid() as grid:
                transport = FlowerTransport(grid, seconds=LONG, alive=link.check)
                made = RunFolder.create(folder / "run", config.to_toml())
                result = conduct(config, made, transport, ServeOptions(clients, LONG, LONG), view=clock)
            up, down = len(tap.up), len(tap.down)
        finally:
            for client in joined:
                client.stop()
            tap.close()
    return {
        "clients": clients,
        **per_round(clock.ends),
        "simulator s": per_round(alone.ends)["median s"],
        "ledger up": result.bytes_up,
        "ledger down": result.bytes_down,
        "ledger evaluation, both ways": result.bytes_evaluation,
        "crossed up": up,
        "crossed down": down,
        "lost": result.failures,
    }


def peers() -> list[dict[str, object]]:
    """Peers in processes of their own, in lock-step, without and with certificates."""
    rows: list[dict[str, object]] = []
    for clients in SIZES:
        for tls in (False, True):
            with tempfile.TemporaryDirectory() as place:
                rows.append(peers_of(Path(place), clients, tls))
    return rows


def peers_of(folder: Path, clients: int, tls: bool) -> dict[str, object]:
    config, alone = _config(folder, "panm", clients, "k = 2\nl = 3"), Clock()
    simulated = execute(config, None, view=alone)
    names = population_of(config.scenario, config.seed).ids
    make_certificates(folder / "certs", names, ["127.0.0.1"])
    ports = [free_port() for _ in names]
    started = []
    for name, port in zip(names, ports, strict=True):
        what = ("--config", "run.toml", "--data", "run.toml", "--name", name, "--out", f"out-{name}")
        where = ("--listen", f"127.0.0.1:{port}", "--seeds", f"127.0.0.1:{ports[0]}", "--peers", clients)
        how = ("--timeout", LONG, "--patience", LONG, *(("--certs", f"certs/clients/{name}") if tls else ()))
        started.append(Command(folder, f"peer-{name}", "peer", *what, *where, *how))
    try:
        for command in started:
            command.ends(0, LONG)
    finally:
        for command in started:
            command.stop()
    results = [json.loads((folder / f"out-{name}" / "result.json").read_text()) for name in names]
    with open(folder / f"out-{names[0]}" / "metrics.csv", newline="") as file:
        ends = [float(row["seconds"]) for row in csv.DictReader(file)]
    return {
        "peers": clients,
        "mTLS": tls,
        **per_round(ends),
        "simulator s": per_round(alone.ends)["median s"],
        "sent": sum(result["bytes_up"] for result in results),
        "received": sum(result["bytes_down"] for result in results),
        "simulator's ledger": simulated.bytes_down,
        "lost": sum(result["failures"] for result in results),
    }

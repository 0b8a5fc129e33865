"""Networks that public federated benchmarks train: which path each takes and why, and how fast it is.

Processor time on one core: a machine that does other work too makes wall time say little. Candidates take turns in one
process; a ratio is the median over the turns. With a folder of peers' environments (docs/performance.md) in
COTERIE_PEERS, pfl-research does the same rounds in a process of its own, in turns with coterie.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path

import torch
from torch import nn

from benchmarks.peer_scripts.networks import CASES, Case
from benchmarks.training import plain_training
from coterie.core.compiled import Refusal
from coterie.core.samples import ClientData, Normalise, Samples
from coterie.core.task import Task
from coterie.methods.base import Models
from coterie.methods.fedavg import FedAvg
from coterie.simulation.simulator import EngineOptions, Simulator

_CLIENTS = 2
_ROOT = Path(__file__).resolve().parent.parent


class RandomClients:
    """Some clients with a case's data."""

    def __init__(self, case: Case, clients: int = _CLIENTS) -> None:
        self.case, self.shape, self.classes = case, case.shape, case.classes
        self.normalise = Normalise((0.5,), (0.5,), 1 / 255) if case.reads == "images" else Normalise()
        self.ids = tuple(f"{i:03d}" for i in range(clients))

    @cached_property
    def _data(self) -> dict[str, ClientData]:
        generator = torch.Generator().manual_seed(0)
        parts = [Samples(*self.case.data(generator, self.case.samples)) for _ in self.ids]
        return {each: ClientData(part, part.take(torch.arange(2))) for each, part in zip(self.ids, parts, strict=True)}

    def client(self, client: str, round: int = 0) -> ClientData:
        """One client's data."""
        return self._data[client]

    def group(self, client: str, round: int = 0) -> int | None:
        """No groups."""
        return None


def plain_loop(case: Case, clients: RandomClients) -> Callable[[], object]:
    """What everyone writes first: a copy of the model per client, torch.optim.SGD, slices of a ready tensor."""
    model = case.build()
    data = [clients.client(each).train for each in clients.ids]
    ready = [(case.ready(samples.x), samples.y) for samples in data]

    def work() -> list[nn.Module]:
        return [plain_training(model, x, y, case.batch) for x, y in ready]

    return work


def processor_turns(candidates: Mapping[str, Callable[[], object]], turns: int) -> dict[str, float]:
    """How many times the first one's processor time is that of each: the median over turns, after one to warm up."""
    spent: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(turns + 1):
        for name, work in candidates.items():
            start = time.process_time()
            work()
            if turn:
                spent[name].append(time.process_time() - start)
    first = next(iter(candidates))
    return {
        name: statistics.median(a / b for a, b in zip(spent[first], each, strict=True)) for name, each in spent.items()
    }


def measure(turns: int = 5) -> list[dict[str, object]]:
    """One row per network."""
    torch.set_num_threads(1)
    return [_row(case, turns) | _against_peer(name) for name, case in CASES.items()]


def _row(case: Case, turns: int) -> dict[str, object]:
    clients = RandomClients(case)
    method = FedAvg(epochs=1, batch=case.batch, lr=0.01, momentum=0.9)
    task = Task.of(case.build, clients)
    refused = task.compiled.reason if isinstance(task.compiled, Refusal) else ""
    candidates: dict[str, Callable[[], object]] = {"plain": plain_loop(case, clients)}
    crews = []
    for kernel in (False, True) if not refused else (False,):
        own = Task(task.model, task.shape, task.classes, task.normalise, use_kernel=kernel)
        fed = Simulator(method, own, clients, seed=0, options=EngineOptions(workers=1, kernel=kernel))
        message = Models(own.init(0))
        candidates["kernel" if kernel else "torch path"] = _asking(fed, method, message)
        crews.append(fed)
    ratio = processor_turns(candidates, turns)
    for fed in crews:
        fed.close()
    return {
        "network": case.title,
        "batch": case.batch,
        "path": f"torch: {refused}" if refused else "kernel",
        "torch path / plain": round(ratio["torch path"], 2),
        "kernel / plain": round(ratio["kernel"], 2) if not refused else "-",
        "kernel / torch path": round(ratio["kernel"] / ratio["torch path"], 2) if not refused else "-",
    }


def _asking(fed: Simulator, method: FedAvg, message: Models) -> Callable[[], object]:
    return lambda: fed.ask(method.train, fed.ids, same=message)


def _against_peer(name: str, turns: int = 3) -> dict[str, object]:
    """Times the processor time of coterie's rounds that pfl-research takes for the same."""
    folder = os.environ.get("COTERIE_PEERS")
    if not folder:
        return {}
    python = Path(folder).absolute() / "pfl" / "bin" / "python"
    ratios = []
    for _ in range(turns):
        ours, theirs = (
            _processor_seconds(sys.executable, "ours", name),
            _processor_seconds(python, "pfl_research", name),
        )
        if ours is None or theirs is None:
            return {"pfl-research / coterie": "failed"}
        ratios.append(theirs / ours)
    return {"pfl-research / coterie": round(statistics.median(ratios), 2)}


def _processor_seconds(python: str | Path, script: str, model: str, rounds: int = 3) -> float | None:
    """Of a round, in a fresh process with one thread."""
    module = f"benchmarks.peer_scripts.{script}"
    command = [str(python), "-m", module, "--model", model, "--rounds", str(rounds), "--workers", "1", "--threads", "1"]
    path = os.pathsep.join((str(_ROOT), str(_ROOT / "src")))
    done = subprocess.run(
        command, cwd=_ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"version"')]
    return statistics.median(json.loads(lines[-1])["processor"]) if lines and not done.returncode else None

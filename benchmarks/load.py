"""Many clients of one server on one machine: what a round costs each part, a slow tenth, and where the time goes."""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.deploy.processes import Command, free_port

from benchmarks.deployment import Clock, per_round
from benchmarks.timing import resident_megabytes
from coterie.deploy.client import Device
from coterie.deploy.flower.client import Security, Session, join
from coterie.deploy.flower.directory import Directory
from coterie.deploy.flower.inbox import ReplyInbox
from coterie.deploy.flower.superlink import SuperLink, own_superlink
from coterie.deploy.flower.transport import FlowerTransport
from coterie.deploy.gateway import Gateway
from coterie.runs.config import RunConfig, from_tables, read_tables
from coterie.runs.experiment import clients_data, execute
from coterie.runs.folder import RunFolder
from coterie.runs.result import Result
from coterie.runs.serve import ServeOptions, conduct

SIZES = (10, 100, 500)
ROUNDS = 8
SLOW_SECONDS = 5.0
LONG = 600.0
RUN = """
method = "fedavg"
rounds = {rounds}
evaluate_every = {rounds}
checkpoint_seconds = 1000
[scenario]
name = "rotated-digits"
clients = {clients}
samples = 20
test_samples = 10
[settings]
epochs = 5
[engine]
workers = 1
"""


def _config(folder: Path, clients: int, rounds: int = ROUNDS) -> RunConfig:
    (folder / "run.toml").write_text(RUN.format(clients=clients, rounds=rounds))
    return from_tables(read_tables(folder / "run.toml"))


class Meter(Clock):
    """When rounds end, and the processor time of each process between the first and the last of them but one."""

    def __init__(self, processes: Mapping[str, int]) -> None:
        super().__init__()
        self._processes, self._spent = processes, list[dict[str, float]]()

    def update(self, row: Mapping[str, Any]) -> None:
        """A round is over."""
        super().update(row)
        self._spent.append({name: processor_seconds(process) for name, process in self._processes.items()})

    def found(self) -> dict[str, object]:
        """Seconds a round, processor seconds a round and memory of each part."""
        first, last = self._spent[0], self._spent[-2]
        spent = {name: (last[name] - first[name]) / (len(self._spent) - 2) for name in first}
        return {
            **per_round(self.ends),
            **{f"{name} CPU s": round(seconds, 2) for name, seconds in spent.items()},
            **{f"{name} MB": round(resident(process)) for name, process in self._processes.items()},
        }


def processor_seconds(process: int) -> float:
    """Of a process so far, in all its threads."""
    parts = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")


def resident(process: int) -> float:
    """Its memory in MB."""
    if process != os.getpid():
        return resident_megabytes(process)
    lines = Path("/proc/self/status").read_text().splitlines()  # without those that it has started
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


@contextmanager
def _served(folder: Path) -> Iterator[tuple[SuperLink, str, int]]:
    port = free_port()
    with own_superlink("127.0.0.1", port, None, folder / "superlink.log", 1 << 29) as link:
        process = link._process
        assert process is not None
        yield link, f"127.0.0.1:{port}", process.pid


def _conducted(config: RunConfig, folder: Path, link: SuperLink, clock: Clock, clients: int) -> Result:
    with link.grid() as grid:
        transport = FlowerTransport(grid, seconds=LONG, alive=link.check)
        made = RunFolder.create(folder / "run", config.to_toml())
        result = conduct(config, made, transport, ServeOptions(clients, LONG, LONG), view=clock)
        transport.farewell()
        return result


def gateways() -> list[dict[str, object]]:
    """A server in this process, its SuperLink, and one gateway with all clients, in a process of its own."""
    rows: list[dict[str, object]] = []
    for clients in SIZES:
        with tempfile.TemporaryDirectory() as place, _served(Path(place)) as (link, address, its):
            folder = Path(place)
            config, alone = _config(folder, clients), Clock()
            execute(config, None, view=alone)
            gateway = Command(folder, "gateway", "join", "--server", address, "--names", "all", "--data", "run.toml")
            meter = Meter({"server": os.getpid(), "SuperLink": its, "gateway": gateway.process.pid})
            try:
                result = _conducted(config, folder, link, meter, clients)
                found = meter.found()
            finally:
                gateway.stop()
            simulated = per_round(alone.ends)["median s"]
            rows.append({"clients": clients, **found, "simulator s": simulated, "lost": result.failures})
    return rows


class _Slow(Gateway):
    """Takes its time for every order."""

    def answer(self, text: str, payload: bytes, limit: int) -> tuple[str, bytes]:
        time.sleep(SLOW_SECONDS)
        return super().answer(text, payload, limit)


def slow_tenth(clients: int = 100, rounds: int = 12) -> list[dict[str, object]]:
    """A tenth of the clients takes five seconds longer: all are waited for, or nine tenths are enough."""
    rows: list[dict[str, object]] = []
    for quorum, late in ((1.0, "drop"), (0.9, "drop"), (0.9, "use")):
        with tempfile.TemporaryDirectory() as place, _served(Path(place)) as (link, address, _):
            folder, clock = Path(place), Clock()
            config = from_tables({**read_tables_of(folder, clients, rounds), "quorum": quorum, "late": late})
            own = clients_data(folder / "run.toml", ["all"])
            names = list(own)
            slow, fast = names[: clients // 10], names[clients // 10 :]
            for kind, some in ((_Slow, slow), (Gateway, fast)):
                member = kind([Device(name, own[name], folder / "memory" / name) for name in some])
                how = {"wait": LONG, "limit": 1 << 29}
                threading.Thread(target=join, args=(member, address, Security()), kwargs=how, daemon=True).start()
            result = _conducted(config, folder, link, clock, clients)
            note = result.notes[0] if result.notes else ""
            rows.append(
                {"quorum": quorum, "late": late, **per_round(clock.ends), "accuracy": round(result.accuracy, 3)}
                | {"late replies": result.lost.get("late", 0), "note": note}
            )
    return rows


def read_tables_of(folder: Path, clients: int, rounds: int) -> dict[str, Any]:
    """The tables of a run that is written down in a folder."""
    _config(folder, clients, rounds)
    return read_tables(folder / "run.toml")


def where(clients: int = 4, rounds: int = 12) -> list[dict[str, object]]:
    """Where the time of a round goes, with single clients in threads of this process: medians of each step."""
    spent: dict[str, list[float]] = defaultdict(list)
    undo = [
        _timed(Directory, "push", "server sends the orders (all clients)", spent),
        _timed(ReplyInbox, "_look", "server looks for replies (each look)", spent),
        _timed(Session, "receive", "client looks for an order, and fetches it", spent, skip_empty=True),
        _timed(Device, "perform", "client trains", spent),
        _timed(Session, "send", "client sends its reply", spent),
    ]
    try:
        with tempfile.TemporaryDirectory() as place, _served(Path(place)) as (link, address, its):
            folder, clock = Path(place), Meter({"server and clients": os.getpid(), "SuperLink": its})
            config = _config(folder, clients, rounds)
            for name, own in clients_data(folder / "run.toml", ["all"]).items():
                member, how = Device(name, own, folder / "memory" / name), {"wait": LONG, "limit": 1 << 29}
                threading.Thread(target=join, args=(member, address, Security()), kwargs=how, daemon=True).start()
            _conducted(config, folder, link, clock, clients)
            found = clock.found()
    finally:
        for put_back in undo:
            put_back()
    rows: list[dict[str, object]] = [
        {"step": f"a round, {key}", "median s": found[key], "times": 1}
        for key in ("median s", "server and clients CPU s", "SuperLink CPU s")
    ]
    for step, each in spent.items():
        median, times = statistics.median(each), len(each) / rounds
        rows.append({"step": step, "median s": round(median, 4), "times": round(times, 1)})
    return rows


def _timed(
    kind: type[Any], name: str, step: str, spent: dict[str, list[float]], *, skip_empty: bool = False
) -> Callable[[], None]:
    """Time every call of a method; returned is how to stop that."""
    real = getattr(kind, name)

    def timed(*given: Any, **options: Any) -> Any:
        began = time.perf_counter()
        found = real(*given, **options)
        if not (skip_empty and found is None):
            spent[step].append(time.perf_counter() - began)
        return found

    setattr(kind, name, timed)
    return lambda: setattr(kind, name, real)


def peers(sizes: tuple[int, ...] = (4, 16, 32)) -> list[dict[str, object]]:
    """Peers over zenoh, each a process, until the machine is full."""
    from benchmarks import deployment

    rows: list[dict[str, object]] = []
    for size in sizes:
        with tempfile.TemporaryDirectory() as place:
            rows.append(deployment.peers_of(Path(place), size, tls=False))
    return rows

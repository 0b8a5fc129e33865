"""A network of peers on one machine, for a first look: every peer a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from coterie.core.errors import CoterieError, Unfinished
from coterie.core.interrupts import pause
from coterie.core.notes import Note
from coterie.core.samples import ClientId
from coterie.deploy.boundary import check_name
from coterie.deploy.ports import check_free
from coterie.deploy.zenoh.peer import PeerPace
from coterie.runs.config import RunConfig, from_tables, read_tables
from coterie.runs.experiment import population_of
from coterie.runs.folder import RunFolder, RunKind, home_of
from coterie.runs.network_result import Milestones, together
from coterie.runs.peer import PeerOptions, peer_method
from coterie.runs.records import read_metrics
from coterie.runs.result import Result
from coterie.runs.view import View, Views

_LOOK_SECONDS = 0.2
_SEEDS = 2


def run_local(
    config_file: Path,
    number: int,
    out: Path,
    port: int,
    *,
    free: bool,
    tls: bool,
    seconds: float = 10.0,
    view: View | None = None,
) -> Result:
    """Start the peers, wait for them all, and put their folders together; `peer_results` reads those one by one."""
    config = from_tables(read_tables(config_file))
    known = list(population_of(config.scenario, config.seed, config.task).ids)
    if not 2 <= number <= len(known):
        raise CoterieError(f"--local {number}: give at least 2, and no more than the scenario's {len(known)} clients.")
    peer_method(config)
    PeerOptions(number, pace=PeerPace(not free, seconds))
    for index in range(number):
        check_free("127.0.0.1", port + index, "--port")
    names = [check_name(name, "The client") for name in known[:number]]
    folder, views = RunFolder.create(out, config.to_toml(), RunKind.NETWORK), Views(view)
    with _starting(folder, names):
        _run(config, config_file, names, out, port, free=free, tls=tls, seconds=seconds, note=views.note)
    return together(config, folder, names, views)


@contextmanager
def _starting(folder: RunFolder, names: Sequence[ClientId]) -> Iterator[None]:
    """Nothing goes on with a network, so one that ends before its first round is removed, for another try."""
    try:
        yield
    except BaseException:
        if not any(read_metrics(home_of(folder.path, name)) for name in names):
            folder.discard()
        raise


def _run(
    config: RunConfig,
    config_file: Path,
    names: Sequence[ClientId],
    out: Path,
    port: int,
    *,
    free: bool,
    tls: bool,
    seconds: float,
    note: Note,
) -> None:
    number = len(names)
    if tls:
        from coterie.deploy.certificates import make_certificates

        make_certificates(out / "certs", names, ["127.0.0.1"])
    seeds = ",".join(f"127.0.0.1:{port + index}" for index in range(min(_SEEDS, number)))
    running: dict[ClientId, subprocess.Popen[bytes]] = {}
    try:
        for index, name in enumerate(names):
            command = [
                sys.executable,
                "-m",
                "coterie",
                "peer",
                "--config",
                str(config_file),
                "--data",
                str(config_file),
            ]
            command += ["--name", name, "--listen", f"127.0.0.1:{port + index}", "--seeds", seeds]
            command += ["--peers", str(number), "--out", str(home_of(out, name)), *(["--free"] if free else [])]
            command += ["--timeout", str(seconds)]
            command += ["--certs", str(out / "certs" / "clients" / name)] if tls else []
            with open(out / f"peer-{name}.log", "wb") as log:
                running[name] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        note(f"{number} peers at 127.0.0.1:{port} to {port + number - 1}; each writes {out}/peer-NAME.log")
        _await(config, out, running, note)
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()


def _await(config: RunConfig, out: Path, running: dict[ClientId, subprocess.Popen[bytes]], note: Note) -> None:
    milestones, alive = Milestones(config.rounds, note), True
    while alive:
        alive = any(process.poll() is None for process in running.values())  # then one more look: the last round counts
        rounds = [len(read_metrics(home_of(out, name))) for name in running]
        milestones.reached(min(rounds))
        if alive:
            pause(_LOOK_SECONDS)
    lost = [name for name, process in running.items() if process.returncode != 0]
    if len(lost) == len(running):
        last = (out / f"peer-{lost[0]}.log").read_text(errors="replace").strip().splitlines()
        raise Unfinished(f"No peer came to the end; {lost[0]} said: {last[-1] if last else 'nothing'}")
    for name in lost:
        note(f"{name} did not come to the end; see {out}/peer-{name}.log")

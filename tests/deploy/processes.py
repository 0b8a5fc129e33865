"""Real processes on loopback, and a wire-tap between them."""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .. import forked

LONG = 240.0
"""Seconds that anything may take on a machine that others use, too."""
_PORTS = (10_000, 30_000)  # below those that systems give to outgoing connections, of which there are many here


_kept: list[socket.socket] = []


def free_port() -> int:
    """A port that nobody uses, and that nobody else is given as long as this process runs.

    The UDP port of the same number, which no test needs, is kept for that: of two peers with the same port one cannot
    listen, and all others wait for it.
    """
    while True:
        port = random.SystemRandom().randrange(*_PORTS)
        ours = socket.socket(type=socket.SOCK_DGRAM)
        try:
            ours.bind(("127.0.0.1", port))
        except OSError:
            ours.close()
            continue
        _kept.append(ours)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port


def until(true: Callable[[], Any], what: str, seconds: float = LONG) -> None:
    """Wait for something that must come true."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"still waiting after {seconds} s: {what}"
        time.sleep(0.02)


class Command:
    """`coterie ...` in a process of its own, its output in a file.

    It is forked from one that has imported everything; `spawned`, it begins as a user's does.
    """

    def __init__(self, folder: Path, name: str, *arguments: object, spawned: bool = False) -> None:
        self.log = folder / f"{name}.log"
        self._file = open(self.log, "ab")  # noqa: SIM115
        start = subprocess.Popen if spawned else forked.Process
        self.process: subprocess.Popen[bytes] | forked.Process = start(
            [sys.executable, "-m", "coterie", *map(str, arguments)],
            stdout=self._file,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**os.environ, "COLUMNS": "300"},
        )

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def says(self, what: str, seconds: float = LONG) -> None:
        until(lambda: what in self.text or self.process.poll() is not None, f"{what!r} in {self.log}", seconds)
        assert what in self.text, self.text

    def ends(self, code: int = 0, seconds: float = LONG) -> str:
        until(lambda: self.process.poll() is not None, f"the end of {self.log}:\n{self.text}", seconds)
        assert self.process.returncode == code, self.text
        return self.text

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
        self._file.close()


def write_run(folder: Path, method: str, *, clients: int, settings: Mapping[str, object] = {}, **head: object) -> None:
    """Write `run.toml`: a run of a few small clients in two groups, with these settings of the run and the method."""
    scenario = {"name": "rotated-digits", "clients": clients, "groups": 2, "samples": 12, "test_samples": 10}
    tables = {"scenario": scenario, "settings": settings}
    lines = [_line(key, value) for key, value in {"method": method, **head}.items()]
    for name, table in tables.items():
        lines += [f"[{name}]", *(_line(key, value) for key, value in table.items())]
    (folder / "run.toml").write_text("\n".join(lines) + "\n")


def _line(key: str, value: object) -> str:
    return f"{key} = {json.dumps(value)}"


class Stage:
    """A folder with a run, the commands that take part in it, and what is known of it on disk."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.started: list[Command] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def command(self, name: str, *arguments: object, spawned: bool = False) -> Command:
        self.started.append(Command(self.folder, name, *arguments, spawned=spawned))
        return self.started[-1]

    def join(self, client: str, *arguments: object, log: str | None = None) -> Command:
        who = ("--server", self.address, "--name", client, "--data", "run.toml")
        return self.command(log or f"client-{client}", "join", *who, *arguments)

    def rounds(self, out: str = "run") -> int:
        """How many rounds are written down."""
        try:
            with open(self.folder / out / "metrics.csv", newline="") as file:
                return max((int(row["round"]) for row in csv.DictReader(file)), default=0)
        except (FileNotFoundError, ValueError):
            return 0

    def events(self, out: str = "run") -> str:
        return (self.folder / out / "events.jsonl").read_text()

    def goes_on(self, *outs: str, rounds: int = 2) -> None:
        """Wait until that many rounds more are written down."""
        wanted = {out: self.rounds(out) + rounds for out in outs or ("run",)}
        until(lambda: all(self.rounds(out) >= number for out, number in wanted.items()), f"the rounds {wanted}")

    def stop(self) -> None:
        for command in self.started:
            command.stop()


class WireTap:
    """A port that passes everything on to another one, and keeps a record of it."""

    def __init__(self, target: int) -> None:
        self.up, self.down = bytearray(), bytearray()
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                client.close()
                continue
            for source, sink, record in ((client, server, self.up), (server, client, self.down)):
                threading.Thread(target=self._pass_on, args=(source, sink, record), daemon=True).start()

    @staticmethod
    def _pass_on(source: socket.socket, sink: socket.socket, record: bytearray) -> None:
        try:
            while data := source.recv(1 << 16):
                record += data
                sink.sendall(data)
        except OSError:
            pass
        finally:
            for end in (source, sink):
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue

    def close(self) -> None:
        self._listener.close()

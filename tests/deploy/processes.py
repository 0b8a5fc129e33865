"""Real processes on loopback, and a wire-tap between them."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .. import forked

LONG = 240.0
"""Seconds that anything may take on a machine that others use, too."""
_PORTS = (10_000, 30_000)  # below those that systems give to outgoing connections, of which there are many here


def free_port() -> int:
    """A port that nobody uses, and that nobody is given before the process that will listen there has started."""
    while True:
        port = random.SystemRandom().randrange(*_PORTS)
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

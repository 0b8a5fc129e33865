"""An upload that is cut goes on where it was: the connection dies, then the client's process; nothing is made twice."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx
import pytest
from flwr.app import Message

from coterie.deploy.certificates import make_certificates
from coterie.deploy.client import Device
from coterie.deploy.flower import client as flower_client
from coterie.deploy.flower.admission import Admission
from coterie.deploy.flower.client import Security, join
from coterie.deploy.flower.compat import ObjectPushError
from coterie.deploy.flower.content import content_of
from coterie.deploy.flower.outbox import Outbox, Stubborn
from coterie.deploy.flower.superlink import ServerSecurity, own_superlink
from coterie.deploy.flower.transport import FlowerTransport
from coterie.deploy.protocol import Returned
from coterie.runs.config import RunConfig, from_tables, read_tables
from coterie.runs.experiment import client_data, execute
from coterie.runs.folder import RunFolder
from coterie.runs.serve import ServeOptions, conduct

from .processes import LONG, Command, WireTap, free_port, until, write_run
from .test_remote import server_side

NETS = """
from torch import nn
def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 40_000), nn.ReLU(), nn.Linear(40_000, 10))
"""
MODEL = 4 * (65 * 40_000 + 40_001 * 10)  # 12 MB: three pieces of Flower's


class Cutter(WireTap):
    """A wire that breaks, or stalls, once so many bytes have gone up in answer to an order."""

    def __init__(self, target: int, after: int, stalls: bool) -> None:
        self.after, self.stalls, self.broken = after, stalls, threading.Event()
        super().__init__(target)

    def _pass_on(self, source: socket.socket, sink: socket.socket, record: bytearray) -> None:  # type: ignore[override]
        if record is self.up:
            sink = _Watched(sink, self)  # type: ignore[assignment]
        WireTap._pass_on(source, sink, record)


class _Watched:
    def __init__(self, sink: socket.socket, cutter: Cutter) -> None:
        self._sink, self._cutter = sink, cutter

    def sendall(self, data: bytes) -> None:
        if len(self._cutter.up) > self._cutter.after and not (self._cutter.broken.is_set() and not self._cutter.stalls):
            self._cutter.broken.set()
            if not self._cutter.stalls:
                raise OSError("cut")
            threading.Event().wait(LONG)
        self._sink.sendall(data)

    def shutdown(self, how: int) -> None:
        self._sink.shutdown(how)


class Counting(Device):
    """Counts how often it trains."""

    trained = 0

    def perform(self, text: str, payload: bytes, **options: Any) -> Returned:
        self.trained += '"action":"train"' in text
        return super().perform(text, payload, **options)


def test_a_cut_upload_goes_on(tmp_path: Path) -> None:
    """Client 0 loses its connection in the first upload, client 1 its process in another: once each is trained."""
    config, port = _prepared(tmp_path), free_port()
    security, model = ServerSecurity.of(tmp_path / "certs"), config.model
    kept = tmp_path / "memory-1" / "outbox" / "upload"
    heard: list[str] = []
    with own_superlink("127.0.0.1", port, security, tmp_path / "superlink.log", 1 << 25) as link:
        names = link.register(security)
        cut, stalled = Cutter(port, MODEL // 2, stalls=False), Cutter(port, MODEL // 2, stalls=True)
        killed = Command(
            tmp_path, "killed", "join", "--server", f"127.0.0.1:{stalled.port}", "--name", "1", "--data", "run.toml",
            "--memory", "memory-1", "--model", model, "--certs", "certs/clients/1",
        )  # fmt: skip
        devices = [
            Counting(name, client_data(tmp_path / "run.toml", name), tmp_path / f"memory-{name}", model)
            for name in ("0", "1")
        ]
        threads = [_joining(devices[0], cut.port, tmp_path, heard), _joining(devices[1], port, tmp_path, heard)]
        threads[0].start()

        def take_over() -> None:
            until(stalled.broken.is_set, "the upload of client 1")
            assert kept.is_file()
            assert stat.S_IMODE(kept.stat().st_mode) == 0o600
            killed.process.kill()
            killed.process.wait()
            threads[1].start()

        successor = threading.Thread(target=take_over)
        successor.start()
        try:
            with link.grid() as grid:
                transport = FlowerTransport(grid, seconds=LONG, names=names, alive=link.check)
                folder = RunFolder.create(tmp_path / "run", config.to_toml())
                remote = conduct(config, folder, transport, ServeOptions(clients=2, patience=LONG))
                transport.farewell()
            for thread in (successor, *threads):
                thread.join(LONG)
        finally:
            killed.stop()
            cut.close()
            stalled.close()
    assert server_side(remote) == server_side(execute(config, None))
    assert cut.broken.is_set()
    assert [device.trained for device in devices] == [2, 1], "client 1's first answer was made by the process that died"
    assert any("sent the rest of an answer that was finished before" in text for text in heard)
    assert any("the connection was cut while an answer was sent" in text for text in heard)
    assert len(cut.up) < 2.7 * MODEL, "two answers, and the piece that was cut"
    assert not kept.exists()


def _prepared(folder: Path) -> RunConfig:
    (folder / "nets.py").write_text(NETS)
    model = f"{folder / 'nets.py'}:build"
    write_run(folder, "fedavg", clients=2, settings={"epochs": 1}, rounds=2, model=model)
    make_certificates(folder / "certs", ["0", "1"], ["127.0.0.1"])
    return from_tables(read_tables(folder / "run.toml"))


def _joining(device: Device, port: int, folder: Path, heard: list[str]) -> threading.Thread:
    own = folder / "certs" / "clients" / device.name
    how = {"wait": LONG, "limit": 1 << 29, "note": heard.append}
    keys = Security(own / "ca.pem", own / "node.key")
    return threading.Thread(target=join, args=(device, f"127.0.0.1:{port}", keys), kwargs=how)


def test_what_has_arrived_is_not_kept(tmp_path: Path) -> None:
    box, pieces = Outbox(tmp_path / "outbox"), {name: os.urandom(1 << 20) for name in "abc"}
    box.keep(7, 8, "short", {"a": b"a few bytes"})
    assert box.kept() is None
    box.keep(7, 1 << 63, "upload", pieces)
    box.sent("b")
    found = box.kept()
    assert found is not None
    assert (found.node, found.run, found.session) == ("7", str(1 << 63), "upload")
    assert {name: piece.numpy().tobytes() for name, piece in found.pieces.items()} == {
        name: pieces[name] for name in "ac"
    }
    (tmp_path / "outbox" / "upload").write_bytes(b"damaged")
    assert box.kept() is None
    box.clear()
    assert list((tmp_path / "outbox").iterdir()) == []


def test_a_piece_whose_receipt_was_lost_has_arrived() -> None:
    def calls(*ends: Exception | None) -> Callable[[], bool]:
        left = list(ends)

        def call() -> bool:
            end = left.pop(0)
            if end is not None:
                raise end
            return True

        return call

    heard: list[str] = []
    cut, there = httpx.ReadError("cut"), ObjectPushError("a", 1, "s")
    assert Stubborn(heard.append)(calls(cut, None))
    assert Stubborn(heard.append)(calls(cut, there), stored=True)
    with pytest.raises(ObjectPushError):  # it was never sent before: the server does not want it
        Stubborn(heard.append)(calls(there), stored=True)
    assert len(heard) == 2


def test_a_client_that_was_killed_knows_as_which_node(tmp_path: Path) -> None:
    """Whether the process that has joined and not signed off is still there: another one's, a dead one's, one's own."""
    box = Outbox(tmp_path / "box")
    assert (box.did_not_leave, box.killed()) == (False, None)
    box.joined(7)
    assert (box.did_not_leave, box.killed()) == (True, 7)  # a process with our number is one of an earlier life
    file = tmp_path / "box" / "node"
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_text(f"7 {os.getppid()}")
    assert (box.did_not_leave, box.killed()) == (True, None)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    file.write_text(f"7 {ended.pid}")
    assert box.killed() == 7
    for damaged in ("", "7", "seven 8", "7 -1 2", "7 99999999999999999999"):
        file.write_text(damaged)
        assert box.killed() in (None, 7)
    box.left()
    assert (box.did_not_leave, box.killed()) == (False, None)


@pytest.mark.usefixtures("identity")
def test_a_word_that_is_not_waited_for_is_no_lost_message() -> None:
    """The server lets go of what a client answers to something it was told; the client said that a message was lost."""
    about = {"query.told": False, "train.train": True}
    for kind, lost in about.items():
        message = Message(content_of("hello"), 1, kind, ttl=10.0)
        message.metadata.__dict__["_message_id"] = "m"

        class Session:
            def receive(self, limit: int, message: Message = message) -> tuple[Message, str]:
                return message, ""

            def send(self, reply: Message, took: float, note: object) -> None:
                request = httpx.Request("POST", "http://x")
                raise httpx.HTTPStatusError("", request=request, response=httpx.Response(413, request=request))

        class Member:
            def answer(self, text: str, payload: bytes, limit: int) -> tuple[str, bytes]:
                return "", b""

        with pytest.raises(httpx.HTTPStatusError) if lost else nullcontext():
            assert flower_client._answer_next(Member(), Session(), 1 << 20, print, Admission()) == kind  # type: ignore[arg-type]

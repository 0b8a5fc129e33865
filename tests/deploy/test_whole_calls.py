"""A request to end that comes in the middle of a call leaves no connection locked: the goodbye after it is said."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpcore._synchronization as locks
import pytest

from coterie.core import interrupts
from coterie.deploy.flower.client import Security, Session
from coterie.deploy.flower.compat import HttpGrid, PullAppMessagesRequest, PullMessagesRequest, StopRunRequest
from coterie.deploy.flower.outbox import Outbox
from coterie.deploy.flower.superlink import SuperLink


class _Says(BaseHTTPRequestHandler):
    """Nothing, which is a message without content in Flower's protocol."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(interrupts, "_pressed", set())
    monkeypatch.setattr(interrupts, "_heard", set())
    interrupts.listen()
    with ThreadingHTTPServer(("127.0.0.1", 0), _Says) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
    for number, handler in before.items():
        signal.signal(number, handler)


def _operator(address: str, _: Path) -> Callable[[], Any]:
    control = SuperLink(address, None, None, None).control()
    return lambda: control.StopRun(StopRunRequest(run_id=1))


def _server(address: str, _: Path) -> Callable[[], Any]:
    client = SuperLink(address, None, None, None)._as_operator(HttpGrid(address, True, None, token="t")._runtime_client)
    return lambda: client.PullMessages(PullAppMessagesRequest())


def _client(address: str, folder: Path) -> Callable[[], Any]:
    session = Session(address, Security(), Outbox(folder))
    return lambda: session._client.PullMessages(PullMessagesRequest(node=session.node))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("lock", [locks.Lock, locks.ThreadLock])
@pytest.mark.parametrize("side", [_operator, _server, _client])
def test_a_lock_that_was_just_taken_is_let_go(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: Callable[[str, Path], Any], lock: type
) -> None:
    """The signal comes where httpcore has taken a lock and has not yet entered the block that releases it.

    Seen on a real server: one in some thirty that were asked to end waited for that lock for ever.
    """
    call = side(address, tmp_path)
    call()
    taken = lock.__enter__  # type: ignore[attr-defined]
    signals = [signal.SIGTERM]

    def enter(self: Any) -> Any:
        result = taken(self)
        if signals and threading.current_thread() is threading.main_thread():
            os.kill(os.getpid(), signals.pop())
        return result

    monkeypatch.setattr(lock, "__enter__", enter)
    with pytest.raises(KeyboardInterrupt):
        call()
    assert not signals
    call()

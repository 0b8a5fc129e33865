"""What is lost between peers, or comes too late, costs a moment: nobody waits for it as long as peers may."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from coterie.core.samples import ClientId
from coterie.deploy.hello import Hello
from coterie.deploy.zenoh.address import Address
from coterie.deploy.zenoh.connection import PeerConnection
from coterie.deploy.zenoh.peer import PeerPace
from coterie.deploy.zenoh.session import PeerSession

from .processes import LONG, free_port
from .test_peers import NAMES, Crowd, config_of, connected, soon

PATIENCE = 20.0
"""How long peers wait here for one that is behind: longer than all rounds take."""


def _deaf(to: ClientId, at: ClientId) -> Callable[[PeerSession, Any], None]:
    """How a session hears of progress, where one peer never hears another: as if each of its words were lost."""
    heard = PeerSession._on_progress

    def hear(session: PeerSession, sample: Any) -> None:
        if not (at in session.here and str(sample.key_expr).endswith(f"/progress/{to}")):
            heard(session, sample)

    return hear


def test_who_is_waited_for_is_asked_where_no_announcement_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PeerSession, "_on_progress", _deaf("2", "0"))
    monkeypatch.setattr("coterie.deploy.zenoh.session._MOMENT", 0.1)
    crowd = Crowd(tmp_path, config_of("panm"), PeerPace(lock_step=True, seconds=PATIENCE))
    crowd.finished(crowd.start())
    assert [crowd.result(name).failures for name in NAMES] == [0] * len(NAMES)
    log = (tmp_path / "0" / "events.jsonl").read_text()
    assert log.count('"others": 4') == crowd.config.rounds, "it has never gone on without anybody"


def _two(note: Callable[[str], None] = lambda _: None) -> tuple[PeerConnection, PeerConnection]:
    """Peers of two processes that have not entered yet; `note` hears what is said at the first."""
    ports = [free_port(), free_port()]
    return connected("a", ports[0], note=note), connected("b", ports[1], (f"127.0.0.1:{ports[0]}",))


def test_one_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.deploy.zenoh.session._MOMENT", 0.1)
    heard: list[str] = []
    a, b = _two(heard.append)
    monkeypatch.setattr(b, "told", lambda what: "")
    with closing(a), closing(b):
        a.enter()
        b.enter()
        soon(lambda: a.others() == {"b"})
        a.announce(0)
        waiting = threading.Thread(target=lambda: a.meet(0, time.monotonic() + LONG), daemon=True)
        waiting.start()
        soon(lambda: "waiting for b in round 1: no answer" in heard)
        b.announce(0)
        waiting.join(LONG)
        assert not waiting.is_alive()
        assert sum("no answer" in text for text in heard) == 1


def test_a_clock_that_is_set_back_makes_no_announcement_old(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = _two()
    with closing(a), closing(b):
        a.enter()
        b.enter()
        soon(lambda: a.others() == {"b"} and b.others() == {"a"})
        a.announce(0)
        soon(lambda: b.progress() == {"a": 0})
        before = time.time_ns() - 10**12
        monkeypatch.setattr(time, "time_ns", lambda: before)
        a.announce(1)
        soon(lambda: b.progress() == {"a": 1})


@pytest.mark.parametrize("together", [True, False], ids=["in one process", "in two"])
def test_who_waits_for_an_answer_of_one_that_leaves_waits_no_longer(together: bool) -> None:
    a, b = _two()
    with closing(a), closing(b):
        a.enter()
        asked = b
        if together:
            asked = PeerConnection("c", Hello("c", (1, 8, 8), 10, "uint8", 5, (0.5,), (0.5,)), a.session)
        asked.enter()
        soon(lambda: a.others() == {asked.name})
        found: list[dict[ClientId, bytes]] = []
        asker = threading.Thread(
            target=lambda: found.append(a.fetch(0, [asked.name], kind="model", seconds=LONG)), daemon=True
        )
        asker.start()
        soon(lambda: asked._waiting)
        began = time.monotonic()
        asked.leave()
        soon(lambda: found)
        assert found == [{}]
        assert time.monotonic() - began < PATIENCE
        assert asked._waiting == []


def test_models_do_not_stay_in_shared_memory() -> None:
    """zenoh took 16 MB for each session that had sent a model, until the process ended."""
    maps = Path("/proc/self/maps")
    if not maps.is_file():
        pytest.skip("what a process shares is read where Linux tells it")
    a, b = _two()
    with closing(a), closing(b):
        a.enter()
        b.enter()
        soon(lambda: a.others() == {"b"})
        b.offer(0, {"model": bytes(1 << 19)}, latest_is_fine=False)
        assert len(a.fetch(0, ["b"], kind="model", seconds=LONG)["b"]) == 1 << 19
        shared = [line for line in maps.read_text().splitlines() if "/dev/shm/" in line and "zenoh" in line]
        assert shared == []
    assert Address("127.0.0.1:1").config(1).get_json("transport/shared_memory/enabled") == "false"


def test_no_two_peers_are_given_the_same_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which two of a test were, once in some thousand times: the others of the one that could not listen waited."""
    first = free_port()
    drawn = iter([first, first, first + 1, first + 2, first + 3])

    class Same:
        def randrange(self, *_: int) -> int:
            return next(drawn)

    monkeypatch.setattr("tests.deploy.processes.random.SystemRandom", Same)
    assert free_port() != first

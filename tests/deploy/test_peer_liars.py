"""Members of a network of peers that lie about who is there and how far: nobody else is lost, kept or filled up."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from coterie.core.samples import ClientId
from coterie.deploy.certificates import make_certificates
from coterie.deploy.presence import Presence
from coterie.deploy.zenoh.address import PeerSecurity

from .processes import LONG, free_port, until
from .test_peer_host import entered, session_of
from .test_peer_losses import _two
from .test_peers import soon


@pytest.mark.parametrize("tls", [False, True], ids=["open", "with certificates"])
def test_nobody_takes_another_peer_out_of_the_network(tls: bool, tmp_path: Path) -> None:
    """%61 is a, written otherwise: a token of that name that went was taken for the end of a, and a was gone for good.

    That m is there comes after the word of that end, since both go the same way.
    """
    own: dict[ClientId, Any] = dict.fromkeys("acm")
    if tls:
        make_certificates(tmp_path, "acm", ["127.0.0.1"])
        own = {**PeerSecurity.of_each(tmp_path / "clients", "acm")}
    ports = [free_port() for _ in range(3)]
    with (
        closing(session_of(ports[0], security=own["a"])) as first,
        closing(session_of(ports[1], ports[0], security=own["c"])) as second,
        closing(session_of(ports[2], ports[0], ports[1], security=own["m"])) as third,
    ):
        entered("a", first, own["a"])
        c = entered("c", second, own["c"])
        third.settle()
        soon(lambda: c.others() == {"a"})
        third.zenoh.liveliness().declare_token(f"{third.root}/alive/%61").undeclare()  # type: ignore[no-untyped-call]
        entered("m", third, own["m"])
        soon(lambda: "m" in c.others())
        assert c.others() == {"a", "m"}


def test_one_that_moves_to_and_fro_keeps_nobody_for_ever() -> None:
    """Each of three rounds and the start may take 0.3 seconds: 1.2 in all."""
    a, b = _two()
    with closing(a), closing(b):
        a.enter()
        b.enter()
        soon(lambda: a.others() == {"b"})
        over = threading.Event()

        def lie() -> None:
            number = 0
            while not over.wait(0.05):
                number = 1 - number
                b._own_progress = -1
                b.announce(number)

        liar = threading.Thread(target=lie, daemon=True)
        liar.start()
        lingers = threading.Thread(target=a.linger, args=(3, 0.3), daemon=True)
        began = time.monotonic()
        lingers.start()
        until(lambda: not lingers.is_alive(), "the end of what one stays for", LONG / 4)
        over.set()
        liar.join(LONG)
        assert time.monotonic() - began > 1


def test_progress_of_those_who_are_not_there_is_not_kept() -> None:
    """Ten thousand names that nobody has took the places of all who came later, and of any length."""
    there = Presence([], lambda _: None)
    for number in range(10_001):
        there.take_progress(f"nobody-{number}", b"1;1")
        there.reach(f"nobody-{number}", 1)
    assert not there._progress
    for number in range(10_001):  # they come, say how far they are, and go
        there.claim(f"{number}")
        there.take_progress(f"{number}", b"1;1")
        there.leave(f"{number}")
    there.claim("honest")
    there.admit("honest")
    there.take_progress("honest", b"3;5")
    assert there.progress("me") == {"honest": 3}
    assert len(there._progress) <= 10_000
    assert there._stamps.keys() == there._progress.keys()


def test_names_that_nobody_answers_for_keep_no_newcomer_out() -> None:
    """One member with a certificate said that ten thousand were there: with the list full, all who came were late."""
    there = Presence([], lambda _: None)
    for number in range(10_000):
        there.claim(f"nobody-{number}")
    assert not there.claim("honest"), "they have not been asked yet"
    assert len(there.strangers()) == 10_000
    assert there.claim("honest")
    assert there.strangers() == ["honest"], "who is new is asked first"
    there.admit("honest")
    again = {name for _ in range(99) for name in there.strangers()}
    assert len(again) == 9_900, "then some of the others in turn"
    assert len(there.strangers()) == 100
    there.leave("honest")
    assert there.claim("honest")
    assert len(there._claimed) == 10_000


def test_a_session_that_is_closed_in_the_midst_of_a_question_ends_quietly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Peers with certificates ask newcomers who they are: a traceback was the last that a user saw of a run."""
    raised: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    make_certificates(tmp_path, ["a"], ["127.0.0.1"])
    before = set(threading.enumerate())
    session = session_of(free_port(), security=PeerSecurity.of_each(tmp_path / "clients", ["a"])["a"])
    asking, closed, get = threading.Event(), threading.Event(), session.get

    def slowly(*given: Any, **named: Any) -> Any:
        asking.set()
        closed.wait(LONG)
        return get(*given, **named)

    monkeypatch.setattr(session, "get", slowly)
    working = [thread for thread in set(threading.enumerate()) - before if not thread.name.startswith("Dummy")]
    session.presence.claim("b")
    session._news.set()
    assert asking.wait(LONG)
    session.close()
    closed.set()
    until(lambda: not any(thread.is_alive() for thread in working), "the end of the session's threads")
    assert raised == []

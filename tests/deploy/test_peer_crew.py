"""The threads, the folders and the table of several peers in one process."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from coterie.cli.peers import _peer_table, _usual_folder
from coterie.core.errors import CoterieError, Interrupted
from coterie.deploy.certificates import make_certificates
from coterie.deploy.zenoh.address import PeerSecurity
from coterie.runs.folder import RunFolder, RunKind, home_of
from coterie.runs.peer_host import _Crew

from .processes import until
from .test_peers import config_of


def test_every_name_that_a_peer_can_have_has_its_certificates_and_its_folder(tmp_path: Path) -> None:
    """`coterie certs` writes names as they are; older versions did so with the folders of peers, too."""
    names = ["ward 1", "a@b+c", "n" * 64]
    make_certificates(tmp_path, names, ["127.0.0.1"])
    assert list(PeerSecurity.of_each(tmp_path / "clients", names)) == names
    for name in names:
        assert _usual_folder("peers", name).parent == Path("runs")
    assert _usual_folder("peer", "ward 1") == Path("runs/peer-ward%201")
    assert home_of(tmp_path, "ward 1") == tmp_path / "peers" / "ward%201"
    (tmp_path / "peers" / "ward 1").mkdir(parents=True)
    assert home_of(tmp_path, "ward 1") == tmp_path / "peers" / "ward 1"


def test_peers_may_fail_while_it_is_looked_how_far_all_are() -> None:
    """A dictionary that grew while it was gone through ended the process, and with it all peers that had not failed."""
    crew = _Crew.__new__(_Crew)
    crew._rounds = {"a": 3, "b": 2, "c": 5}

    class Lost(CoterieError):
        @property  # type: ignore[misc]
        def __class__(self) -> type:  # what isinstance looks at: another peer fails meanwhile
            crew._failed["c"] = CoterieError("lost, too")
            return CoterieError

    crew._failed = {"b": Lost("lost")}
    assert crew._lowest == 3


def test_a_request_to_end_may_come_while_peers_are_being_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first has begun, the second has not: a thread that was never started cannot be waited for."""
    crew = _Crew.__new__(_Crew)
    crew._config, crew._note, crew._failed = config_of("gossip"), lambda _: None, {}
    crew._seats, crew._rounds = ["a", "b"], {"a": 0, "b": 0}  # type: ignore[list-item]
    ran: list[object] = []
    monkeypatch.setattr(crew, "_run", ran.append)
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        if ran:
            raise KeyboardInterrupt
        start(thread)
        until(lambda: ran, "the first peer")

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(Interrupted, match="Stopped after 0 of 4 rounds; nothing is lost"):
        crew.work(RunFolder(tmp_path, RunKind.HOST))
    assert ran == ["a"]


def test_the_table_shows_what_the_run_is_judged_by() -> None:
    """A run that predicts numbers has no accuracy: its column was empty."""
    sizes = {"bytes_up": 1, "bytes_down": 1, "failures": 0}
    run = SimpleNamespace(method="gossip", clusters=None)
    console = Console(width=200)
    for record, said in (
        ({"metric": "rmse", "score": 0.125, "accuracy": None}, ("RMSE", "0.125")),
        ({"metric": "accuracy", "score": 0.5, "accuracy": 0.5}, ("accuracy", "50.0 %")),
    ):
        with console.capture() as shown:
            console.print(_peer_table(run, {"a": {**record, **sizes}}))
        assert all(text in shown.get() for text in said)

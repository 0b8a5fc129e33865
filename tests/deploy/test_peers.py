"""Peers over zenoh: in lock-step the simulator's results, bit for bit; at their own pace the same accuracy."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie import Result
from coterie.core.errors import CoterieError, Unfinished
from coterie.core.samples import ClientId
from coterie.deploy.zenoh.address import Address, PeerSecurity
from coterie.deploy.zenoh.connection import PeerConnection
from coterie.deploy.zenoh.peer import PeerPace
from coterie.methods import METHODS
from coterie.methods.p2p.base import PeerMethod
from coterie.report.observers import ReportWriter
from coterie.runs.config import RunConfig, from_tables
from coterie.runs.experiment import execute
from coterie.runs.peer import PeerOptions, run_peer
from coterie.runs.peer_terms import network_of
from coterie.runs.view import Views

from .processes import LONG, free_port, until

PEERS = [name for name, kind in METHODS.items() if issubclass(kind, PeerMethod)]
NAMES = ("0", "1", "2", "3", "4")


def config_of(method: str, /, **changes: Any) -> RunConfig:
    tables: dict[str, Any] = {
        "method": method,
        "rounds": 4,
        "seed": 3,
        "dtype": "float64",
        "scenario": {"name": "rotated-digits", "clients": len(NAMES), "groups": 2, "samples": 12, "test_samples": 10},
        "settings": {"epochs": 1, "batch": 4, "l": 3, "k": 2},
    }
    return from_tables({**tables, **changes})


class Slow:
    """Watches a run, and takes its time after every round until something is there."""

    def __init__(self, there: Callable[[], bool]) -> None:
        self.there = there

    def update(self, row: Mapping[str, Any]) -> None:
        if not self.there():
            time.sleep(0.6)

    def note(self, text: str) -> None: ...


class Crowd:
    """Peers in threads of this process, each with a zenoh session of its own."""

    def __init__(self, folder: Path, config: RunConfig, pace: PeerPace) -> None:
        self.folder, self.config, self.pace = folder, config, pace
        self.ports = {name: free_port() for name in NAMES}
        self.results: dict[ClientId, Result | Exception] = {}
        (folder / "run.toml").write_text(config.to_toml())

    def run(self, name: ClientId, peers: int = len(NAMES), fast: Callable[[], bool] = lambda: True) -> None:
        address = Address(f"127.0.0.1:{self.ports[name]}", (f"127.0.0.1:{self.ports[NAMES[0]]}",))
        options = PeerOptions(peers, LONG, self.pace)
        try:
            view = Views(Slow(fast), ReportWriter())
            self.results[name] = run_peer(
                self.config, name, self.folder / "run.toml", address, self.folder / name, options, view=view
            )
        except Exception as error:
            self.results[name] = error

    def start(
        self, names: tuple[ClientId, ...] = NAMES, peers: int = len(NAMES), fast: Callable[[], bool] = lambda: True
    ) -> list[threading.Thread]:
        threads = [threading.Thread(target=self.run, args=(name, peers, fast), daemon=True) for name in names]
        for thread in threads:
            thread.start()
        return threads

    def finished(self, threads: list[threading.Thread]) -> None:
        """Wait for all of them; the others of one that cannot go on would wait for it, and nobody would see why."""

        def failed() -> dict[ClientId, Exception]:
            return {name: found for name, found in self.results.items() if isinstance(found, Exception)}

        until(lambda: failed() or not any(thread.is_alive() for thread in threads), "the end of all peers")
        assert not failed()

    def result(self, name: ClientId) -> Result:
        found = self.results[name]
        assert isinstance(found, Result), found
        return found


FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in PEERS},
    "panm by models": ("panm", {"sketch_length": 0}),
    "panm by loss": ("panm", {"metric": "loss", "judge": "half"}),
    "panm on a ring": ("panm", {"topology": "ring", "degree": 2, "hearsay": 1, "t1": 1, "tau": 1}),
    "gossip on islands": ("gossip", {"topology": "islands", "degree": 1, "bridges": 1, "hearsay": 2}),
}


@pytest.mark.parametrize("form", FORMS)
def test_peers_in_lock_step_end_as_simulated_ones(form: str, tmp_path: Path) -> None:
    method, settings = FORMS[form]
    config = config_of(method, settings={"epochs": 1, "batch": 4, "l": 3, "k": 2, **settings})
    crowd = Crowd(tmp_path, config, PeerPace(lock_step=True, seconds=LONG))
    crowd.finished(crowd.start())
    alone = execute(crowd.config, None)
    accuracy = dict(zip(alone.client_ids, alone.per_client_accuracy, strict=True))
    for name in NAMES:
        real, simulated = crowd.result(name).models[f"client-{name}"], alone.models[f"client-{name}"]
        assert all(torch.equal(real[entry], tensor) for entry, tensor in simulated.items())
        assert crowd.result(name).per_client_accuracy == [accuracy[name]]
        health = json.loads((tmp_path / name / "checkpoint" / "latest.json").read_text())["health"]
        assert health["watches_training"], "a peer watches its own training loss"
        assert 0 < health["lowest"] <= health["first"]
        assert (tmp_path / name / "report.html").is_file()
    received = sum(crowd.result(name).bytes_down for name in NAMES)
    assert received == alone.bytes_down
    assert sum(crowd.result(name).failures for name in NAMES) == 0


def test_peers_at_their_own_pace_reach_the_same_accuracy(tmp_path: Path) -> None:
    longer = dataclasses.replace(
        config_of("panm", settings={"epochs": 2, "batch": 8, "l": 3, "k": 2}),
        rounds=15,
        scenario=dataclasses.replace(config_of("panm").scenario, samples=60, test_samples=40),
    )
    crowd = Crowd(tmp_path, longer, PeerPace(lock_step=False, seconds=LONG))
    crowd.finished(crowd.start())
    free = sum(crowd.result(name).accuracy for name in NAMES) / len(NAMES)
    assert free > execute(longer, None).accuracy - 0.1
    assert free > 0.5


def test_a_late_peer_skips_what_the_others_have_done_and_is_asked(tmp_path: Path) -> None:
    config = dataclasses.replace(config_of("gossip"), rounds=40)
    crowd = Crowd(tmp_path, config, PeerPace(lock_step=True, seconds=LONG))
    late, early, metrics = tmp_path / "4/events.jsonl", tmp_path / "0/events.jsonl", tmp_path / "0/metrics.csv"

    def met() -> bool:
        return late.is_file() and '"aggregated": 2' in late.read_text() and '"others": 4' in early.read_text()

    first = crowd.start(NAMES[:4], 4, met)
    soon(lambda: metrics.is_file() and metrics.read_text().count("\n") >= 4)
    crowd.finished([*first, *crowd.start(NAMES[4:], peers=2)])
    log = late.read_text()
    assert '"skipped": 1' in log
    assert '"aggregated": 2' in log
    assert crowd.result("4").rounds == 40
    assert '"others": 4' in early.read_text()


def connected(
    name: str,
    port: int,
    seeds: tuple[str, ...] = (),
    security: PeerSecurity | None = None,
    *,
    limit: int = 1 << 20,
    note: Callable[[str], None] = lambda _: None,
) -> PeerConnection:
    from coterie.deploy.hello import Hello

    hello = Hello(name, (1, 8, 8), 10, "uint8", 5, (0.5,), (0.5,))
    return PeerConnection.alone(name, "test", hello, Address(f"127.0.0.1:{port}", seeds, security), limit, note)


def soon(true: Callable[[], object]) -> None:
    end = time.monotonic() + LONG
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_peer_answers_when_it_is_there_and_a_silent_one_is_gone_on_without() -> None:
    ports = [free_port(), free_port()]
    a, b = connected("a", ports[0]), connected("b", ports[1], (f"127.0.0.1:{ports[0]}",))
    try:
        a.enter()
        b.enter()
        soon(lambda: a.others() == {"b"} and b.others() == {"a"})
        assert a.session.hellos(["b"])["b"].name == "b"
        assert a.fetch(0, ["b"], kind="model", seconds=0.3) == {}  # it has nothing yet: not waited for any longer
        waiting: dict[str, bytes] = {}
        asker = threading.Thread(target=lambda: waiting.update(a.fetch(0, ["b"], kind="change", seconds=LONG)))
        asker.start()
        soon(lambda: [wanted.kind for wanted in b._waiting if wanted.until > time.monotonic()] == ["change"])
        b.offer(0, {"model": b"short", "change": b"long"}, latest_is_fine=False)
        asker.join(LONG)
        assert waiting == {"b": b"long"}
        assert a.fetch(0, ["b"], kind="model", seconds=LONG) == {"b": b"short"}
        soon(lambda: a.progress() == {"b": 0})
        soon(lambda: (b.sent, a.received) == (9, 9))
        twin = connected("b", free_port(), (f"127.0.0.1:{ports[0]}",))
        with closing(twin), pytest.raises(CoterieError, match="There is a peer 'b' in this network already"):
            twin.enter()
    finally:
        b.close()
        soon(lambda: a.others() == set())
        a.close()


def test_peers_of_another_authority_do_not_get_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.deploy.zenoh.session._CONNECT_SECONDS", 1.0)  # two of them wait for it in vain
    from coterie.deploy.certificates import make_certificates

    make_certificates(tmp_path / "ours", ["a", "b"], ["127.0.0.1"])
    make_certificates(tmp_path / "theirs", ["c"], ["127.0.0.1"])
    ports = [free_port() for _ in range(4)]
    seed = (f"127.0.0.1:{ports[0]}",)
    a = connected("a", ports[0], (), PeerSecurity.of(tmp_path / "ours/clients/a"))
    b = connected("b", ports[1], seed, PeerSecurity.of(tmp_path / "ours/clients/b"))
    c = connected("c", ports[2], seed, PeerSecurity.of(tmp_path / "theirs/clients/c"))
    d = connected("d", ports[3], seed)
    try:
        for peer in (a, b, c, d):
            peer.enter()
        soon(lambda: a.others() == {"b"})
        time.sleep(1.0)
        assert a.others() == {"b"}
        assert c.others() == set()
        assert d.others() == set()
        with pytest.raises(Unfinished, match="2 peers are needed and after 0 s there are: c"):
            c.session.wait_for(2, 0.0)
    finally:
        for peer in (a, b, c, d):
            peer.close()


def test_a_peer_under_anothers_name_is_turned_away(tmp_path: Path) -> None:
    """m is of our CA, and calls itself b: before b comes and while it is there."""
    from coterie.deploy.certificates import make_certificates

    make_certificates(tmp_path, ["a", "b", "m"], ["127.0.0.1"])
    own = {name: PeerSecurity.of(tmp_path / "clients" / name) for name in ("a", "b", "m")}
    with pytest.raises(CoterieError, match=r"is the certificate of 'm', not of 'b'"):
        connected("b", free_port(), (), own["m"])
    heard: list[str] = []
    ports = [free_port() for _ in range(3)]
    seed = (f"127.0.0.1:{ports[0]}",)
    a = connected("a", ports[0], (), own["a"], note=heard.append)
    m, b = connected("m", ports[1], seed, own["m"]), connected("b", ports[2], seed, own["b"])
    try:
        a.enter()
        m.name = "b"
        m.enter()
        soon(lambda: heard)
        assert heard == ["turned away a peer that calls itself 'b': its certificate is that of 'm'"]
        assert a.others() == set()
        b.enter()  # nobody can keep it from its own name
        soon(lambda: a.others() == {"b"})
        m.offer(5, {"model": b"false", "change": b"false"}, latest_is_fine=False)
        b.offer(0, {"model": b"true", "change": b"true"}, latest_is_fine=False)
        for _ in range(5):
            assert a.fetch(0, ["b"], kind="model", seconds=LONG) == {"b": b"true"}
        assert a.fetch(5, ["b"], kind="model", seconds=1.0) == {}
        soon(lambda: a.progress() == {"b": 0})
        assert a.session.ask("progress", ["b"]) == {"b": "0"}
        assert any("has not signed" in text for text in heard)
    finally:
        for peer in (m, b, a):
            peer.close()


def test_an_answer_that_is_too_long_is_not_put_together() -> None:
    """1 MB is allowed: a little more is refused by its length, much more is dropped by zenoh piece by piece."""
    heard: list[str] = []
    ports = [free_port(), free_port()]
    a = connected("a", ports[0], note=heard.append)
    b = connected("b", ports[1], (f"127.0.0.1:{ports[0]}",), limit=1 << 26)
    try:
        a.enter()
        b.enter()
        soon(lambda: a.others() == {"b"})
        with pytest.raises(CoterieError, match="1048577 bytes; allow that at every peer with --max-megabytes"):
            a.offer(0, {"model": bytes((1 << 20) + 1)}, latest_is_fine=False)
        for number, size in enumerate((1 << 20, (1 << 20) + 1, 1 << 25)):
            b.offer(number, {"model": bytes(size)}, latest_is_fine=False)
        assert len(a.fetch(0, ["b"], kind="model", seconds=LONG)["b"]) == 1 << 20
        assert a.fetch(1, ["b"], kind="model", seconds=5.0) == {}
        assert "it sends 1048577 bytes, more than the 1048576 allowed" in heard[-1]
        before = len(heard)
        assert a.fetch(2, ["b"], kind="model", seconds=5.0) == {}
        assert len(heard) == before  # it never arrived
        soon(lambda: a.others() == {"b"})
        assert len(a.fetch(0, ["b"], kind="model", seconds=LONG)["b"]) == 1 << 20  # and b is heard as before
    finally:
        b.close()
        a.close()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": "fedavg", "settings": {}}, "needs a server"),
        ({"faults": {"loss": 0.5}}, "leave the table"),
        ({"settings": {"fraction": 0.5}}, "shapes a simulated network"),
        ({"settings": {"partners": "oracle"}}, "The true groups of real peers are not known"),
    ],
)
def test_what_real_peers_cannot_do_is_refused(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    config = config_of("gossip", **changes)
    with pytest.raises(CoterieError, match=said):
        run_peer(config, "0", tmp_path, Address("127.0.0.1:1"), tmp_path / "out", PeerOptions())


def test_networks_with_different_settings_do_not_see_each_other() -> None:
    assert network_of(config_of("gossip")) == network_of(config_of("gossip"))
    assert network_of(config_of("gossip")) != network_of(config_of("gossip", seed=4))


def test_certificates_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match=r"There is no .*ca\.pem"):
        PeerSecurity.of(tmp_path)

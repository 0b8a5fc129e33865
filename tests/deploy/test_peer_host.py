"""Several peers in one process: the peers they would be alone, with one connection and one view of who is there."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie import Result
from coterie.core.errors import CoterieError
from coterie.core.samples import ClientId
from coterie.deploy.certificates import make_certificates
from coterie.deploy.hello import Hello
from coterie.deploy.presence import Presence
from coterie.deploy.turns import Turns
from coterie.deploy.zenoh.address import Address, PeerSecurity
from coterie.deploy.zenoh.connection import PeerConnection
from coterie.deploy.zenoh.peer import PeerPace
from coterie.deploy.zenoh.session import PeerSession
from coterie.runs.config import RunConfig
from coterie.runs.experiment import clients_data, execute
from coterie.runs.folder import RunKind, home_of, kind_of
from coterie.runs.peer import PeerOptions
from coterie.runs.peer_host import Hosted, run_peers
from coterie.runs.trained import load
from coterie.runs.view import NotesOnly

from ..conftest import Command as Terminal
from .processes import LONG, Command, Stage, free_port, until, write_run
from .test_peers import config_of, soon

HOUSES = (("0", "1", "2"), ("3", "4"))


class Street:
    """Processes of several peers, here as threads: each has a session of its own."""

    def __init__(self, folder: Path, config: RunConfig, workers: int = 1) -> None:
        self.folder, self.config, self.workers = folder, config, workers
        self.ports = [free_port() for _ in HOUSES]
        self.results: dict[int, Result | Exception] = {}
        self.heard: list[str] = []
        (folder / "run.toml").write_text(config.to_toml())

    def run(self, house: int, certs: Path | None) -> None:
        names = HOUSES[house]
        try:
            own = clients_data(self.folder / "run.toml", names)
            security = None if certs is None else PeerSecurity.of_each(certs, names)
            first = None if security is None else security[names[0]]
            address = Address(f"127.0.0.1:{self.ports[house]}", (f"127.0.0.1:{self.ports[0]}",), first)
            options = PeerOptions(5, LONG, PeerPace(True, LONG))
            hosted, view = Hosted(own, security, self.workers), NotesOnly(self.heard.append)
            self.results[house] = run_peers(
                self.config, hosted, address, self.folder / f"house-{house}", options, view=view
            )
        except Exception as error:
            self.results[house] = error

    def finished(self, certs: Path | None = None) -> list[Result]:
        threads = [threading.Thread(target=self.run, args=(house, certs)) for house in range(len(HOUSES))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
        found = [self.results[house] for house in range(len(HOUSES))]
        assert all(isinstance(result, Result) for result in found), found
        return [result for result in found if isinstance(result, Result)]


@pytest.mark.parametrize(
    ("method", "settings", "tls", "workers"),
    [
        ("panm", {}, True, 1),
        ("gossip", {"topology": "ring", "degree": 2, "hearsay": 1}, False, 1),
        ("pens", {}, False, 3),
    ],
)
def test_peers_of_two_processes_end_as_simulated_ones(
    method: str, settings: dict[str, Any], tls: bool, workers: int, tmp_path: Path
) -> None:
    config = config_of(method, settings={"epochs": 1, "batch": 4, "l": 3, "k": 2, **settings})
    if tls:
        make_certificates(tmp_path / "certs", "01234", ["127.0.0.1"])
    street = Street(tmp_path, config, workers)
    results = street.finished(tmp_path / "certs" / "clients" if tls else None)
    alone = execute(config, None)
    accuracy = dict(zip(alone.client_ids, alone.per_client_accuracy, strict=True))
    for house, result in enumerate(results):
        out = tmp_path / f"house-{house}"
        assert result.client_ids == list(HOUSES[house])
        assert result.per_client_accuracy == [accuracy[name] for name in HOUSES[house]]
        assert result.failures == 0
        assert kind_of(out) is RunKind.HOST
        assert json.loads((out / "result.json").read_text())["rounds"] == config.rounds
        for name in HOUSES[house]:
            assert kind_of(home_of(out, name)) is RunKind.PEER
            real = load(out).model(name).network.state_dict()
            simulated = alone.models[f"client-{name}"]
            assert all(torch.equal(real[entry], tensor) for entry, tensor in simulated.items())
    assert sum(result.bytes_down for result in results) == alone.bytes_down
    assert sum(result.bytes_up for result in results) == alone.bytes_down
    assert any("all peers have finished round 4 of 4" in text for text in street.heard)
    assert sum("local training by" in text for text in street.heard) == len(HOUSES), "what all say is said once"
    own = clients_data(tmp_path / "run.toml", HOUSES[0])
    with pytest.raises(CoterieError, match="is finished; choose another --out"):
        run_peers(config, Hosted(own), Address("127.0.0.1:1"), tmp_path / "house-0", PeerOptions())


def test_one_that_does_not_fit_leaves_and_the_others_go_on(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "wards").mkdir()
    for name, width in (("a", 4), ("b", 4), ("c", 4), ("odd", 5)):
        x = rng.normal(size=(30, width)).astype(np.float32)
        np.savez(tmp_path / "wards" / f"{name}.npz", x=x, y=np.arange(30) % 3)
    own = {"model": "mlp", "scenario": {"data": "wards"}, "settings": {"epochs": 1}}
    config, heard = config_of("gossip", **own), list[str]()
    theirs = clients_data(tmp_path / "wards", ["all"], config.task, config.scenario)
    address, options = Address(f"127.0.0.1:{free_port()}"), PeerOptions(3, LONG, PeerPace(True, LONG))
    result = run_peers(config, Hosted(theirs), address, tmp_path / "out", options, view=NotesOnly(heard.append))
    assert result.client_ids == ["a", "b", "c"]
    assert result.failures == 0
    assert any("odd does not take part: it does not fit the others" in text for text in heard)


def session_of(port: int, *seeds: int, security: PeerSecurity | None = None) -> PeerSession:
    address = Address(f"127.0.0.1:{port}", tuple(f"127.0.0.1:{seed}" for seed in seeds), security)
    return PeerSession("test", address, 1 << 20)


def entered(name: ClientId, session: PeerSession, security: PeerSecurity | None = None) -> PeerConnection:
    identity = None if security is None else security.identity(name)
    made = PeerConnection(name, Hello(name, (1, 8, 8), 10, "uint8", 5, (0.5,), (0.5,)), session, identity)
    made.enter()
    return made


def test_peers_that_share_a_session_sign_with_their_own_keys(tmp_path: Path) -> None:
    """a and b share a process, c is alone: it believes each by its own certificate, and b cannot speak for a."""
    make_certificates(tmp_path, ["a", "b", "c"], ["127.0.0.1"])
    own = PeerSecurity.of_each(tmp_path / "clients", ["a", "b", "c"])
    ports = [free_port(), free_port()]
    with (
        closing(session_of(ports[0], security=own["a"])) as shared,
        closing(session_of(ports[1], ports[0], security=own["c"])) as other,
    ):
        a, b, c = entered("a", shared, own["a"]), entered("b", shared, own["b"]), entered("c", other, own["c"])
        with pytest.raises(CoterieError, match="There is a peer 'a' in this network already"):
            entered("a", shared, own["a"])
        soon(lambda: c.others() == {"a", "b"} and a.others() == {"b", "c"})
        for peer in (a, b):
            peer.offer(0, {"model": peer.name.encode()}, latest_is_fine=False)
        assert c.fetch(0, ["a", "b"], kind="model", seconds=LONG) == {"a": b"a", "b": b"b"}
        assert a.fetch(0, ["b"], kind="model", seconds=LONG) == {"b": b"b"}
        assert (a.sent, a.received, b.sent, c.received) == (1, 1, 2, 2)
        soon(lambda: c.progress() == {"a": 0, "b": 0})
        a._identity = own["b"].identity("b")  # b's key under a's name
        assert c.fetch(0, ["a"], kind="model", seconds=0.5) == {}
        b.leave()
        soon(lambda: c.others() == {"a"} and a.others() == {"c"})
    other_ca = tmp_path / "other"
    make_certificates(other_ca, ["d"], ["127.0.0.1"])
    (other_ca / "clients" / "d").rename(tmp_path / "clients" / "d")
    with pytest.raises(CoterieError, match="are of different CAs"):
        PeerSecurity.of_each(tmp_path / "clients", ["a", "d"])


def test_who_is_waited_for_is_counted_by_round() -> None:
    there = Presence(["me"], lambda _: None)
    there.enter("me")
    for name in ("a", "b", "c"):
        there.claim(name)
        there.admit(name)
    assert there.usual("me") == -1
    there.reach("me", 0)
    there.reach("a", 0)
    assert sorted(there.behind(0)) == ["b", "c"]
    assert not there.wait(0, 0.0)
    waiter = threading.Thread(target=there.wait, args=(0, LONG), daemon=True)
    waiter.start()
    there.reach("b", 0)
    assert there.give_up("c") == -1
    waiter.join(LONG / 2)
    assert not waiter.is_alive(), "nobody is waited for any more"
    assert there.roster(0).names == ("a", "b", "me")
    assert there.roster(0) is there.roster(0), "made once for all peers of the process"
    there.reach("c", 0)  # it moves again
    assert there.roster(0).names == ("a", "b", "c", "me")
    for name in ("me", "a", "b"):
        there.reach(name, 5)
    assert there.behind(5) == ["c"], "as it moved, it is waited for"
    assert (there.lowest(), there.usual("me")) == (0, 5)
    there.leave("c")
    assert there.wait(5, 0.0)
    assert there.lowest() == 5
    there.claim("late")
    there.admit("late")
    assert there.wait(5, 0.0), "who has never begun skips, and is not waited for"


def test_one_computes_at_a_time_and_who_waits_lets_another_on() -> None:
    turns, inside, most, waits = Turns(1), [0], [0], threading.Barrier(3)

    def work() -> None:
        with turns.taken():
            for _ in range(20):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                time.sleep(0.0001)
                inside[0] -= 1
                with turns.let_on():
                    waits.wait(LONG)  # all three wait at once: none keeps its turn

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert (most[0], inside[0]) == (1, 0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((), "Give either --name for one peer, or --names for several"),
        (("--name", "0", "--names", "1,2"), "Give either --name for one peer, or --names for several"),
        (("--names", "0,x"), "has no client 'x'"),
        (("--names", ","), "Give either --name for one peer, or --names for several"),
        (("--names", "all", "--workers", "0"), "--workers must be at least 1"),
        (("--names", "all", "--certs", "nowhere"), "There is no nowhere/0/ca.pem"),
    ],
)
def test_bad_names_and_numbers_are_one_sentence(
    given: tuple[str, ...], said: str, tmp_path: Path, coterie: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path, "gossip", clients=3)
    found = coterie("peer", "--config", "run.toml", "--data", "run.toml", "--listen", "127.0.0.1:7501", *given)
    assert found.code == 2
    assert said in found.err
    assert not (tmp_path / "runs").exists()


class Houses(Stage):
    """Processes of several peers, and one of a single one."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.ports = {name: free_port() for name in ("left", "right", "alone")}
        settings = {"k": 2, "l": 3, "epochs": 1}
        write_run(folder, "panm", clients=7, rounds=100_000, checkpoint_seconds=0.2, settings=settings)
        make_certificates(folder / "certs", "0123456", ["127.0.0.1"])

    def start(self, house: str, names: str, certs: str, log: str | None = None, peers: int = 7) -> Command:
        seeds = ",".join(f"127.0.0.1:{self.ports[seed]}" for seed in ("left", "right"))
        who = ("--names", names) if "," in names else ("--name", names)
        return self.command(
            log or house, "peer", "--config", "run.toml", "--data", "run.toml", *who, "--listen",
            f"127.0.0.1:{self.ports[house]}", "--seeds", seeds, "--peers", peers, "--timeout", 3, "--patience", LONG,
            "--certs", certs, "--out", house,
        )  # fmt: skip


@pytest.fixture
def houses(tmp_path: Path) -> Iterator[Houses]:
    made = Houses(tmp_path)
    yield made
    made.stop()


def test_a_process_of_several_peers_is_killed_and_the_others_go_on(houses: Houses) -> None:
    left = houses.start("left", "0,1,2", "certs/clients")
    right = houses.start("right", "3,4,5", "certs/clients")
    alone = houses.start("alone", "6", "certs/clients/6")
    houses.goes_on("left/peers/0", "left/peers/2", "right/peers/4", "alone")
    until(lambda: '"others": 6' in houses.events("alone"), "a round of all seven")

    left.signal(signal.SIGKILL)
    until(lambda: '"others": 3' in houses.events("alone"), "the loss of three at once")
    houses.goes_on("right/peers/3", "right/peers/5", "alone")

    back = houses.start("left", "0,1,2", "certs/clients", log="left-again", peers=2)
    back.says("going on from round")
    houses.goes_on("left/peers/0", "left/peers/1", "left/peers/2")

    for command in (back, right, alone):
        command.signal(signal.SIGINT)
    for command in (back, right, alone):
        said = command.ends(130)
        assert "nothing is lost" in said
        assert "Stopped after 0 of" not in said
    assert {path.name for path in (houses.folder / "left" / "peers").iterdir()} == {"0", "1", "2"}

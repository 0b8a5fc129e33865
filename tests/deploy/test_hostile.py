"""Real processes that are attacked: a server by its clients and by other users of its machine, a peer by a peer."""

from __future__ import annotations

import signal
import threading
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from coterie.core.samples import Population
from coterie.data.own import OwnPopulation
from coterie.deploy.client import Device
from coterie.deploy.flower import client as flower_client
from coterie.deploy.flower.client import Security, join
from coterie.deploy.flower.directory import Directory
from coterie.deploy.protocol import to_text
from coterie.deploy.zenoh.address import Address
from coterie.deploy.zenoh.connection import PeerConnection
from coterie.runs.config import from_tables, read_tables
from coterie.runs.experiment import client_data
from coterie.runs.peer_terms import believed, most_told, network_of
from coterie.runs.spec import agree

from .processes import LONG, Stage, free_port, until, write_run

RUN: dict[str, Any] = {
    "rounds": 100_000, "clients": 2, "model": "digits-mlp", "checkpoint_seconds": 0.5, "evaluate_every": 1000,
    "settings": {"epochs": 1},
}  # fmt: skip


class Attacker(Device):
    """A client that introduces itself as it likes."""

    def __init__(self, folder: Path, **said: Any) -> None:
        name = "0"
        super().__init__(name, client_data(folder / "run.toml", name), folder / "attacker")
        self.__dict__["hello"] = {**asdict(self.hello), "name": "attacker", **said}


class Guest(threading.Thread):
    """A client in a thread of this process; it leaves when it is told to, by losing its connection."""

    def __init__(self, device: Device, address: str) -> None:
        super().__init__(daemon=True)
        self.heard: list[str] = []
        self._device, self._address = device, address
        self.start()

    def run(self) -> None:
        join(self._device, self._address, Security(), wait=LONG, limit=1 << 20, note=self.heard.append)

    def hears(self, what: str) -> None:
        until(lambda: any(what in line for line in self.heard), f"{what!r} among {self.heard}")


def other_shape(population: Population) -> OwnPopulation:
    from coterie.core.samples import ClientData, Samples

    own = population.client("0")
    cut = {part: Samples(getattr(own, part).x[..., :7], getattr(own, part).y) for part in ("train", "test")}
    return OwnPopulation({"odd": ClientData(**cut)}, (1, 8, 7), population.classes, population.normalise)


@pytest.mark.timeout(1200)
def test_no_client_and_no_other_user_of_the_machine_ends_a_run(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower_client, "_POLL_SECONDS", 1.0)  # the guests in this process: they stay, and are idle
    write_run(stage.folder, "fedavg", **RUN)
    server = stage.command(
        "server", "serve", "--config", "run.toml", "--out", "run", "--port", stage.port, "--clients", 2,
        "--timeout", 30, "--patience", LONG,
    )  # fmt: skip
    server.says("waiting for 2 clients")

    # introductions that ended the server, or were believed
    hostile: list[dict[str, Any]] = [
        {"samples": int("9" * 400)}, {"samples": 0}, {"mean": [], "deviation": []}, {"classes": 10**8},
        {"mean": [1e300]}, {"mean": [float("nan")]}, {"name": "\x1b[2J\nround 1/9: all fine"},
    ]  # fmt: skip
    for said in hostile:
        Guest(Attacker(stage.folder, **said), stage.address)
    until(lambda: server.text.count("turned away a client") >= len(hostile), "all attackers turned away")
    assert "\x1b" not in server.text
    assert "\nround 1/9" not in server.text

    # an odd one at the start is told why, and the run begins with the others
    data = client_data(stage.folder / "run.toml", "0")
    odd = Guest(Device("odd", other_shape(data), stage.folder / "odd"), stage.address)
    honest = {name: stage.join(name) for name in ("0", "1")}
    until(lambda: stage.rounds() >= 1, "the first round")
    server.says("odd is not admitted: it has bytes of shape (1, 8, 7)")
    odd.hears("the server says: you are not admitted to this run")

    # a second client takes a name, and goes: both are told, and the first is asked again
    twin = stage.join("1", log="twin")
    server.says("1 has come back, or a second client has its name; the latest is asked")
    honest["1"].says("the server says: another client calls itself 1")
    twin.says("the server says: there was a client 1 already")
    stage.goes_on()
    twin.signal(signal.SIGTERM)
    assert "1 has left" in twin.ends(0)
    server.says("the other client that called itself 1 is gone; the one that was there is asked")
    honest["1"].says("you are asked again")
    stage.goes_on()

    # operators' calls are for those who have the token of the run
    for path in ("control/list-runs", "control/stop-run", "runtime/acquire-task"):
        answer = httpx.post(f"http://{stage.address}/v1/{path}", headers={"coterie-operator": "0" * 64})
        assert (answer.status_code, "without the token" in answer.text) == (403, True)
    stage.goes_on()

    # a service that is asked to end has saved what it had, and ends well
    server.signal(signal.SIGTERM)
    assert "nothing is lost: coterie serve --resume run" in server.ends(0)
    honest["0"].signal(signal.SIGINT)
    honest["0"].ends(130)


@pytest.mark.timeout(600)
def test_a_peer_runs_no_code_that_another_peer_names(stage: Stage) -> None:
    """The first peer's word was taken for the whole network's: `model = "evil.py:build"` ran that file here."""
    write_run(stage.folder, "gossip", **RUN)
    (stage.folder / "evil.py").write_text("open('pwned', 'w')\ndef build():\n    open('pwned', 'w')\n")
    config = from_tables(read_tables(stage.folder / "run.toml"))
    own = Device("0", client_data(stage.folder / "run.toml", "0"), stage.folder).hello
    notes: list[str] = []
    port = free_port()
    with closing(
        PeerConnection.alone("0", network_of(config), own, Address(f"127.0.0.1:{port}"), 1 << 20, notes.append)
    ) as evil:
        evil.agree(to_text(replace(agree(config, {"0": own}), model="evil.py:build")))
        evil.enter()
        evil.announce(10**8 - 1)  # far ahead: nobody skips its rounds for that
        victim = stage.command(
            "victim", "peer", "--config", "run.toml", "--data", "run.toml", "--name", "1", "--listen",
            f"127.0.0.1:{free_port()}", "--seeds", f"127.0.0.1:{port}", "--peers", 2, "--timeout", 1, "--out", "run",
        )  # fmt: skip
        victim.says("what 0 says of the run is not believed")
        until(lambda: stage.rounds() >= 2, "two rounds of the victim")
        # garbage where a round and a patience belong
        for question in ("x;1;1;y", f"{'9' * 60};1;{'9' * 60};y", ";;;", "1"):
            for reply in evil.session.zenoh.get(f"{evil.session.root}/model/1?{question}", timeout=0.3):
                assert reply.ok is None
        evil.session.zenoh.put(f"{evil.session.root}/progress/..%2Fx", b"\xff" * 50)
        now = stage.rounds()
        until(lambda: stage.rounds() > now, "another round")
        victim.signal(signal.SIGTERM)
        assert "nothing is lost" in victim.ends(0)
    assert not (stage.folder / "pwned").exists()


@pytest.mark.parametrize("lie", [{"shape": (1, 8, 7)}, {"classes": 9999}, {"task": "regression", "classes": 1}])
def test_one_peer_that_lies_about_the_data_locks_nobody_out(stage: Stage, lie: dict[str, Any]) -> None:
    """In a tie the word that came first in the alphabet was believed, and the newcomer told that its data are odd."""
    write_run(stage.folder, "gossip", **RUN)
    config = from_tables(read_tables(stage.folder / "run.toml"))
    own = Device("0", client_data(stage.folder / "run.toml", "0"), stage.folder).hello
    honest = agree(config, {"0": own})
    words = {"0": to_text(honest), "evil": to_text(replace(honest, **lie))}

    class Answers:
        def ask(self, what: str, others: list[str]) -> dict[str, str]:
            return {name: words[name] for name in others}

    told = most_told(believed(config, Answers(), ["0", "evil"], print), own)  # type: ignore[arg-type]
    assert told == honest
    assert most_told(believed(config, Answers(), ["evil"], print), own) != honest  # type: ignore[arg-type]


def test_a_client_that_joins_without_end_does_not_fill_the_log() -> None:
    notes: list[str] = []
    directory = Directory(None, None, None, notes.append)  # type: ignore[arg-type]
    directory._say = lambda node, text: None  # type: ignore[method-assign]
    for number in range(100):
        directory._replace(number, number + 1, "a")
    assert len(notes) == 20
    assert notes[-1].endswith("that is not said again")

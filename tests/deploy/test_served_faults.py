"""One run on Flower, with TLS and keys, that goes through everything that can happen to it."""

from __future__ import annotations

import json
import re
import resource
import signal
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from flwr.supernode import node_auth_http_interceptor

from coterie.core.errors import CoterieError
from coterie.deploy.certificates import make_certificates
from coterie.deploy.client import Device
from coterie.deploy.flower import client as flower_client
from coterie.deploy.flower import refusals
from coterie.deploy.flower.client import Security, join
from coterie.runs.experiment import client_data

from .processes import LONG, Command, Stage, until, write_run


class Scene(Stage):
    """A server, its clients, and what is known of the run on disk."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        settings = {"k": 2, "epochs": 1}
        often = {"rounds": 5000, "checkpoint_seconds": 0.5, "evaluate_every": 1000}
        write_run(folder, "ifca", clients=6, settings=settings, **often)
        make_certificates(folder / "certs", ["0", "1", "2", "3"], ["127.0.0.1"])
        make_certificates(folder / "strangers", ["5"], ["127.0.0.1"])

    def serve(self, name: str, *arguments: object, clients: int = 3, timeout: float = 4) -> Command:
        return self.command(
            name, "serve", *arguments, "--port", self.port, "--clients", clients, "--timeout", timeout,
            "--patience", LONG, "--certs", "certs",
        )  # fmt: skip

    def join_with_key(self, client: str, log: str | None = None) -> Command:
        return self.join(client, "--certs", f"certs/clients/{client}", log=log)

    def stranger(self, certs: Path, name: str = "5") -> str:
        """What a client, in this process, hears that comes with these certificates."""
        key = certs / "node.key"
        device = Device(name, client_data(self.folder / "run.toml", name), self.folder / "stranger")
        security = Security(certs / "ca.pem", key if key.is_file() else None)
        with pytest.raises(CoterieError) as caught:
            join(device, f"127.0.0.1:{self.port}", security, wait=LONG, limit=1 << 20)
        return str(caught.value)

    def lost(self, client: str) -> bool:
        events = [json.loads(line) for line in self.events().splitlines() if line.endswith("}")]
        return any(event["event"] == "failure" and event["client"] == client for event in events)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.stop()


def strangers_are_turned_away(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    # the server has read its clients' keys, so there is nothing to wait for
    monkeypatch.setattr(flower_client, "_LEAST_GRACE_SECONDS", 0.0)

    # strangers: a CA that the client does not know, and a key that the server does not know
    assert "is not the server that the CA in" in scene.stranger(scene.folder / "strangers/clients/5")
    mixed = scene.folder / "mixed"
    mixed.mkdir()
    (mixed / "ca.pem").write_bytes((scene.folder / "certs/ca.pem").read_bytes())
    (mixed / "node.key").write_bytes((scene.folder / "strangers/clients/5/node.key").read_bytes())
    assert "turned this client away: it does not accept this key" in scene.stranger(mixed)
    (mixed / "node.key").unlink()
    assert "it does not accept clients without a key" in scene.stranger(mixed)
    assert "turned away: 127.0.0.1" in (scene.folder / "run" / "superlink.log").read_text()

    # a client whose clock is six seconds fast: Flower takes no signature from the future
    with monkeypatch.context() as fast:
        fast.setattr(node_auth_http_interceptor, "now", lambda: datetime.now(UTC) + timedelta(seconds=6))
        fast.setattr(refusals, "_now", lambda: datetime.now(UTC) + timedelta(seconds=6))
        said = scene.stranger(scene.folder / "certs/clients/3", "3")
    found = re.search(r"this machine's clock is (\d+) s ahead of the server's; set the clocks", said)
    assert found, said
    assert 5 <= int(found[1]) <= 40  # a slow machine adds to the six seconds

    # another user of the machine, who may read ca.pem, cannot stop the run
    verify = ssl.create_default_context(cafile=str(scene.folder / "certs/ca.pem"))
    answer = httpx.post(f"https://127.0.0.1:{scene.port}/v1/control/stop-run", verify=verify)
    assert (answer.status_code, "without the token" in answer.text) == (403, True)


def the_run_is_whole(scene: Scene, rounds: int) -> None:
    result = json.loads((scene.folder / "run" / "result.json").read_text())
    assert result["rounds"] == rounds
    assert result["clients"] == 4
    assert sorted(result["client_ids"]) == ["0", "1", "2", "3"]
    assert len(result["clusters"]) == 4
    assert result["truth"] is None
    assert result["engine"] == "clients over Flower"
    assert (scene.folder / "run" / "report.html").is_file()
    for client in ("0", "1", "3"):
        assert "the run is over" in next(c for c in scene.started if c.log.stem == f"client-{client}").ends(0)


@pytest.mark.timeout(1200)  # eight processes one after the other, each a while to start where others work, too
def test_a_run_survives_what_happens_to_it(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    server = scene.serve("server", "--config", "run.toml", "--out", "run")
    clients = {name: scene.join_with_key(name) for name in ("0", "1", "2")}

    until(lambda: scene.rounds() >= 1, "the first round")
    strangers_are_turned_away(scene, monkeypatch)

    # a client killed in the middle: the run goes on without it
    clients["2"].signal(signal.SIGKILL)
    until(lambda: scene.lost("2"), "the loss of client 2")
    server.says("going on without 2 in round")
    assert "2 is there (" in server.text
    # it is started again at once, while Flower still thinks that it is there
    again = scene.join_with_key("2", "client-2-again")
    scene.goes_on()

    # one that is new joins late, and gets its cluster
    scene.join_with_key("3")
    server.says("3 joins in round")
    scene.goes_on()

    # a frozen client is gone on without, and taken back when it thaws
    clients["1"].signal(signal.SIGSTOP)
    until(lambda: scene.lost("1"), "the loss of client 1")
    scene.goes_on()
    clients["1"].signal(signal.SIGCONT)

    # the one that was killed is back under its name
    again.says("2 has joined")
    scene.goes_on()

    # the server's disk is full: one sentence, and the checkpoint before is whole
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (2000, 2000))
    assert "what was saved before is intact: make room, then coterie serve --resume run" in server.ends(2)

    # the server is killed at once, without a word, and started again
    server = scene.serve("server-again", "--resume", "run")
    server.says("going on from round")
    scene.goes_on()
    reached = scene.rounds()
    server.signal(signal.SIGKILL)
    server.process.wait()
    rest = ("--resume", "run", "--rounds", reached + 2)
    server = scene.serve("server-at-last", *rest, clients=4, timeout=LONG)  # all are there to the end
    server.says("going on from round")
    said = server.text.partition("going on from round ")[2]
    assert int(said.split()[0]) >= reached - 3  # nothing but the rounds since the last checkpoint
    server.ends(0)
    the_run_is_whole(scene, reached + 2)

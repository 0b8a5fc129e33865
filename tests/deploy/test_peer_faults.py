"""Peers in processes of their own, with mTLS: killed, frozen, late, without their seed; and a first look at four."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coterie.deploy.certificates import make_certificates

from .. import forked
from ..conftest import Command as Coterie
from ..laws.golden import differences, of_folder
from .processes import LONG, Command, Stage, free_port, until, write_run

RUN: dict[str, Any] = {
    "clients": 5, "checkpoint_seconds": 0.2, "dtype": "float64", "settings": {"k": 2, "l": 3, "epochs": 1},
}  # fmt: skip


class Network(Stage):
    """Peers, and what their folders say."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.ports = {name: free_port() for name in ("0", "1", "2", "3", "4")}
        write_run(folder, "panm", rounds=100_000, **RUN)
        make_certificates(folder / "certs", sorted(self.ports), ["127.0.0.1"])

    def peer(self, name: str, peers: int = 4, log: str | None = None) -> Command:
        seeds = ",".join(f"127.0.0.1:{self.ports[seed]}" for seed in ("0", "1"))
        return self.command(
            log or f"peer-{name}", "peer", "--config", "run.toml", "--data", "run.toml", "--name", name,
            "--listen", f"127.0.0.1:{self.ports[name]}", "--seeds", seeds, "--peers", peers, "--timeout", 3,
            "--patience", LONG, "--certs", f"certs/clients/{name}", "--out", name,
        )  # fmt: skip


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    made = Network(tmp_path)
    yield made
    made.stop()


def test_a_network_survives_what_happens_to_its_peers(network: Network) -> None:
    peers = {name: network.peer(name) for name in ("0", "1", "2", "3")}
    network.goes_on("1", "2", "3")
    until(lambda: '"others": 3' in network.events("1"), "a round of all four")

    # the seed is killed: the others know each other, and go on
    peers["0"].signal(signal.SIGKILL)
    network.goes_on("1", "2", "3")
    until(lambda: '"others": 2' in network.events("1"), "the loss of peer 0")

    # a late one comes by the second seed, skips what is over, and is asked
    late = network.peer("4", peers=2)
    until(lambda: network.rounds("4") > 0 and '"aggregated": 2' in network.events("4"), "the late peer's first models")
    assert '"skipped": 1' in network.events("4")

    # a frozen one is gone on without, and catches up when it thaws
    peers["3"].signal(signal.SIGSTOP)
    until(lambda: '"client": "3", "fault": "refused"' in network.events("1"), "the loss of peer 3")
    network.goes_on("1", "2", "4")
    peers["3"].signal(signal.SIGCONT)
    network.goes_on("3")

    # the first one comes back and goes on from its checkpoint
    back = network.peer("0", peers=2, log="peer-0-again")
    back.says("going on from round")
    network.goes_on("0")

    for command in (back, peers["1"], peers["2"], peers["3"], late):
        command.signal(signal.SIGINT)
    for command in (back, peers["1"], peers["2"], peers["3"], late):
        assert "nothing is lost" in command.ends(130)


def test_a_local_network_for_a_first_look(tmp_path: Path, coterie: Coterie, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path, "panm", rounds=3, **RUN)
    monkeypatch.setattr("coterie.runs.launch_local.subprocess.Popen", forked.Process)
    port = free_port()
    said = coterie(
        "peers", "--local", 4, "--config", tmp_path / "run.toml", "--out", tmp_path / "out", "--port", port, "--tls",
        "--timeout", LONG,
    )  # fmt: skip
    assert said.code == 0, said.err
    assert "all peers have finished round 3 of 3" in said.out + said.err
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["client_ids"] == ["0", "1", "2", "3"]
    assert result["engine"] == "peers over zenoh"
    assert result["rounds"] == 3
    assert result["failures"] == 0
    assert result["bytes_up"] == result["bytes_down"] > 0
    assert len(result["clusters"]) == 4
    assert (tmp_path / "out" / "report.html").is_file()
    assert differences("zenoh panm", of_folder(tmp_path / "out")) == []

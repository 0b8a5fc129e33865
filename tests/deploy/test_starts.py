"""Starts that come to nothing: another command's folder, a method or a port that cannot be; nothing is left behind."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from coterie.core.errors import CoterieError, Unfinished
from coterie.deploy.zenoh.address import Address
from coterie.runs.config import RunConfig, from_tables
from coterie.runs.folder import RunFolder, RunKind, kind_of
from coterie.runs.launch_local import run_local
from coterie.runs.peer import PeerOptions, run_peer
from coterie.runs.serve import _opened
from coterie.runs.spec import check_deployable

from ..conftest import Command
from .processes import free_port


def config_of(method: str) -> RunConfig:
    return from_tables({"method": method, "scenario": {"name": "rotated-digits", "clients": 4}})


def made_by(kind: RunKind, path: Path, method: str) -> Path:
    return RunFolder.create(path, config_of(method).to_toml(), kind).path


def test_each_command_refuses_the_folder_of_another(coterie: Command, tmp_path: Path) -> None:
    simulated = made_by(RunKind.SIMULATION, tmp_path / "simulated", "fedavg")
    served = made_by(RunKind.SERVED, tmp_path / "served", "fedavg")
    peer = made_by(RunKind.PEER, tmp_path / "peer", "gossip")
    network = made_by(RunKind.NETWORK, tmp_path / "network", "gossip")
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    assert f"holds a served run; go on with it: coterie serve --resume {served}." in coterie("resume", served).err
    assert f"go on with it: the same coterie peer command with --out {peer}." in coterie("resume", peer).err
    assert "which nothing can go on with; begin again: coterie peers with another" in coterie("resume", network).err
    for folder, says in ((simulated, f"coterie resume {simulated}"), (peer, "the same coterie peer command")):
        said = coterie("serve", "--resume", folder, "--patience", 0)
        assert (said.code, f"go on with it: {says}" in said.err) == (2, True), said.err
    config = ("--config", peer / "config.toml")
    for folder, says in (
        (simulated, "holds a simulation; go on with it: coterie resume"),
        (served, "coterie serve --resume"),
        (network, "which nothing can go on with"),
    ):
        with pytest.raises(CoterieError, match=says):
            run_peer(config_of("gossip"), "0", peer / "config.toml", Address("127.0.0.1:1"), folder, PeerOptions())
    said = coterie("peers", "--local", 2, *config, "--out", network, "--port", two_free_ports())
    assert said.err.endswith("already holds something; choose another --out.\n")
    assert f"coterie serve --resume {served}." in coterie("run", "fedavg", "--out", served).err
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize(
    ("file", "content", "kind"),
    [
        ("deployment.json", "{}", RunKind.SERVED),
        ("superlink.log", "", RunKind.SERVED),
        ("peers/0/config.toml", "", RunKind.NETWORK),
        ("events.jsonl", '{"event": "engine", "path": "peers over zenoh"}\n', RunKind.PEER),
        ("events.jsonl", '{"event": "engine", "path": "kernel"}\n', RunKind.SIMULATION),
    ],
)
def test_folders_from_before_are_what_they_were(file: str, content: str, kind: RunKind, tmp_path: Path) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(content)
    assert kind_of(tmp_path) is kind


def two_free_ports() -> int:
    """The first of two ports in a row that nobody uses."""
    while True:
        port = free_port()
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port + 1)) != 0:
                return port


def test_peers_are_not_started_where_they_cannot_run(coterie: Command, tmp_path: Path) -> None:
    config, out = tmp_path / "run.toml", tmp_path / "out"
    config.write_text('method = "fedavg"\n[scenario]\nname = "rotated-digits"\nclients = 4\n')

    def refused(local: int = 3, **options: object) -> str:
        given = [part for name, value in options.items() for part in (f"--{name}", value)]
        said = coterie("peers", "--local", local, "--config", config, "--out", out, *given)
        assert (said.code, out.exists()) == (2, False), said
        return said.err

    assert "needs a server" in refused()
    config.write_text(config.read_text().replace("fedavg", "gossip"))
    for local in (-1, 0, 1, 5):
        assert f"--local {local}: give at least 2, and no more than the scenario's 4 clients" in refused(local)
    assert "65536 is not a port; choose a --port from 1 to 65535" in refused(port=65534)
    assert "--timeout above 0" in refused(timeout=0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "choose another --port" in refused(port=taken.getsockname()[1])


def test_a_network_that_ends_before_its_first_round_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, out = tmp_path / "run.toml", tmp_path / "out"
    config.write_text('method = "gossip"\n[scenario]\nname = "rotated-digits"\nclients = 4\n')
    monkeypatch.setattr(sys, "executable", "false")
    with pytest.raises(Unfinished, match="No peer came to the end; 0 said: nothing"):
        run_local(config, 2, out, two_free_ports(), free=False, tls=False)
    assert not out.exists()


def test_a_peer_that_cannot_enter_leaves_no_folder(tmp_path: Path) -> None:
    config = config_of("gossip")
    (tmp_path / "run.toml").write_text(config.to_toml())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address(f"127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(CoterieError, match="Cannot listen at"):
            run_peer(config, "0", tmp_path / "run.toml", address, tmp_path / "out", PeerOptions())
    assert not (tmp_path / "out").exists()


def test_a_server_that_cannot_start_leaves_no_folder(
    coterie: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, out = tmp_path / "run.toml", tmp_path / "out"
    config.write_text('method = "fedavg"\n')

    def refused(*options: object) -> str:
        said = coterie("serve", "--config", config, "--out", out, *options)
        assert (said.code, out.exists()) == (2, False), said
        return said.err

    for port in (99999, 0, -1):
        assert f"{port} is not a port; choose a --port from 1 to 65535" in refused("--port", port)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "choose another --port or --host" in refused("--port", taken.getsockname()[1])
    assert "takes no runs" in refused("--superlink", f"127.0.0.1:{free_port()}")
    monkeypatch.setattr(sys, "executable", "false")
    assert "The SuperLink did not start" in refused("--port", free_port())


def test_what_only_a_simulation_has_is_refused() -> None:
    with pytest.raises(CoterieError, match=r"faults are simulated ones, .*; leave the table \[faults\] out"):
        check_deployable(from_tables({"method": "fedavg", "faults": {"dropout": 0.1}}))


def test_certificates_are_not_put_among_other_files(coterie: Command, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    said = coterie("certs", tmp_path, "--names", "a")
    assert (said.code, [file.name for file in tmp_path.iterdir()]) == (2, ["thesis.tex"])
    assert "choose a folder that is new or empty" in said.err


def test_an_extra_that_is_missing_is_named(coterie: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "coterie.runs.serve", raising=False)
    monkeypatch.setitem(sys.modules, "flwr.serverapp", None)
    assert "pip install 'coterie[flower]'." in coterie("serve").err


def test_a_damaged_checkpoint_is_said_before_clients_are_waited_for(tmp_path: Path) -> None:
    config = from_tables({"method": "fedavg", "scenario": {"name": "rotated-digits"}})
    folder = RunFolder.create(tmp_path / "run", config.to_toml(), RunKind.SERVED)
    assert _opened(config, folder.path, True).path == folder.path, "a run without a checkpoint begins anew"
    (folder.path / "checkpoint").mkdir(exist_ok=True)
    (folder.path / "checkpoint" / "latest.json").write_text("{}")
    with pytest.raises(CoterieError, match="cannot be read"):
        _opened(config, folder.path, True)

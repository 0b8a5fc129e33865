"""Own data between real processes: numbers from tables with text and gaps, fine-tuned, and used afterwards."""

from __future__ import annotations

import json
from pathlib import Path

from ..conftest import Command as Coterie
from .processes import Command, free_port
from .test_own_tasks import NAMES, write

HEAD = """
rounds = 2
seed = 5
model = "mlp"
task = "regression"
metric = "mae"
"""
SCENARIO = """
[scenario]
data = "our clinics"
missing = "mean"
"""


def test_numbers_are_learnt_on_flower_and_fine_tuned_by_their_clients(
    tmp_path: Path, running: list[Command], coterie: Coterie
) -> None:
    write(tmp_path / "data", "regression")
    (tmp_path / "run.toml").write_text(
        f'method = "fedavg"{HEAD}{SCENARIO}\n[settings]\npersonalise = "finetune"\nepochs = 2\n'
    )
    port = free_port()
    where = ("--port", port, "--clients", 3, "--out", "run")
    server = Command(tmp_path, "server", "serve", "--config", "run.toml", *where, spawned=True)
    running.append(server)
    join = ("join", "--server", f"127.0.0.1:{port}", "--set", "scenario.missing=mean")
    for name in NAMES:
        own = ("--name", name, "--data", f"data/{name}.csv")
        running.append(Command(tmp_path, name, *join, *own, spawned=name == NAMES[0]))
    assert "found by a test on 3 clients" in server.ends()
    for client in running[1:]:
        assert f"coterie predict .coterie/{client.log.stem} --client {client.log.stem}" in client.ends()
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert (result["task"], result["metric"], result["accuracy"]) == ("regression", "mae", None)
    assert sorted(result["metrics"]) == ["mae", "r2", "rmse"]
    assert result["finetuned_score"] == result["score"]
    assert result["score"] < result["floor"]
    done = coterie("predict", tmp_path / ".coterie/ann", "--client", "ann", "--data", tmp_path / "data/ann.csv")
    assert done.code == 0, done.err
    assert done.out.splitlines()[0] == "y"
    assert len(done.out.splitlines()) == 21
    refused = coterie("predict", tmp_path / "run", "--client", "ann", "--data", tmp_path / "data/ann.csv")
    assert (refused.code, "is on its own device" in refused.err) == (2, True)


def test_numbers_are_learnt_between_peers(tmp_path: Path, running: list[Command], coterie: Coterie) -> None:
    write(tmp_path / "data", "regression")
    (tmp_path / "run.toml").write_text(f'method = "gossip"{HEAD}{SCENARIO}\n[settings]\nepochs = 2\n')
    ports = [free_port() for _ in NAMES]
    for name, port in zip(NAMES, ports, strict=True):
        where = ("--listen", f"127.0.0.1:{port}", "--seeds", f"127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}")
        peer = ("peer", "--config", "run.toml", "--name", name, "--data", f"data/{name}.csv", "--peers", 3)
        running.append(Command(tmp_path, name, *peer, *where, "--out", f"runs/{name}", spawned=name == NAMES[0]))
    for peer_ in running:
        assert "found by a test on 1 clients" in peer_.ends()
    result = json.loads((tmp_path / "runs/bob/result.json").read_text())
    assert (result["task"], result["metric"]) == ("regression", "mae")
    assert result["floor"] is not None
    assert result["finetuned_score"] is not None
    done = coterie("predict", tmp_path / "runs/bob", "--client", "bob", "--data", tmp_path / "data/ann.csv")
    assert (done.code, len(done.out.splitlines())) == (0, 21), done.err

"""A run as a folder: what is in it, and what happens when it is stopped, killed, damaged or full."""

from __future__ import annotations

import csv
import json
import re
import shlex
import tomllib
from dataclasses import asdict
from html import unescape
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from coterie import run
from coterie.core import wire
from coterie.core.cohort import Cohort
from coterie.core.errors import CoterieError
from coterie.core.evaluation import Scores
from coterie.core.states import State
from coterie.data import build
from coterie.data.own import OwnPopulation
from coterie.methods import METHODS
from coterie.runs.records import METRICS, read_metrics
from coterie.simulation.faults import Faults
from coterie.simulation.simulator import EngineOptions
from tests.conftest import Command
from tests.tiny import (
    Rows,
    StopAt,
    largest_gap,
    made,
    one_weight,
    rows,
    small_net,
)

PATIENCE = 150  # seconds; only a hang takes as long
SMALL = ("--clients", 6, "--samples", 8, "--groups", 2, "--set", "epochs=1", "--set", "scenario.test_samples=10")
KEYS = {
    "method", "scenario", "seed", "rounds", "clients", "accuracy", "worst_accuracy", "clusters", "n_clusters", "ari",
    "bytes_down", "bytes_up", "bytes_evaluation", "seconds", "failures",
}  # fmt: skip


def models_in(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted((folder / "models").iterdir())}


def test_a_run_leaves_everything_in_its_folder(coterie: Command, tmp_path: Path) -> None:
    out = tmp_path / "run"
    said = coterie("run", "oracle", *SMALL, "--rounds", 3, "--seed", 4, "--out", out)
    assert said.code == 0, said.err
    assert "report.html" in said.out
    assert {"config.toml", "events.jsonl", "metrics.csv", "checkpoint", "models", "report.html", "result.json"} <= {
        file.name for file in out.iterdir()
    }
    assert not [file for file in out.rglob("*") if file.name.endswith(".new")]
    result = json.loads((out / "result.json").read_text())
    assert result.keys() >= KEYS
    assert (result["method"], result["scenario"], result["seed"], result["rounds"]) == (
        "oracle",
        "rotated-digits",
        4,
        3,
    )
    assert result["clients"] == len(result["clusters"]) == 6
    assert result["n_clusters"] == 2
    assert result["ari"] == 1.0
    assert 0 <= result["worst_accuracy"] <= result["accuracy"] <= 1
    assert result["failures"] == 0
    with open(out / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == METRICS
    assert [row["round"] for row in rows] == ["1", "2", "3"]
    assert int(rows[-1]["bytes_down"]) == result["bytes_down"]
    assert float(rows[-1]["accuracy"]) == result["accuracy"]
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    kinds = [event["event"] for event in events if event["event"] != "warning"]  # so little training is not enough
    assert kinds == ["start", "engine", "round", "round", "round", "end"]
    config = tomllib.loads((out / "config.toml").read_text())
    assert config["method"] == "oracle"
    assert config["scenario"]["clients"] == 6
    assert models_in(out).keys() == {"cluster-0.safetensors", "cluster-1.safetensors"}
    model = wire.decode((out / "models" / "cluster-0.safetensors").read_bytes(), State)
    assert all(tensor.dtype == torch.float32 for tensor in model.values())


def test_the_configuration_makes_the_run_again(coterie: Command, tmp_path: Path) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    coterie("run", "ifca", *SMALL, "--rounds", 2, "--set", "k=2", "--set", "faults.dropout=0.2", "--out", first)
    said = coterie("run", "--config", first / "config.toml", "--out", again)
    assert said.code == 0, said.err
    assert models_in(first) == models_in(again)
    assert (first / "config.toml").read_text() == (again / "config.toml").read_text()


def test_evaluation_can_be_rarer(digits: OwnPopulation, tmp_path: Path) -> None:
    run(made("fedavg"), digits, small_net, rounds=5, out=tmp_path / "run", evaluate_every=3, evaluate_clients=4)
    rows = read_metrics(tmp_path / "run")
    assert [row["accuracy"] is not None for row in rows] == [True, False, False, True, True]
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert len(result["client_ids"]) == 4


def test_a_client_whose_model_has_diverged_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """a has 3 of 4 right and loss 0.5, b 1 of 4 and no finite loss, c nothing to be tested on.

    So the accuracy is (3/4 + 1/4) / 2, the worst 1/4, and the mean loss that of a alone.
    """
    known = {"a": (0.5, 3.0, 4.0), "b": (torch.nan, 1.0, 4.0), "c": (0.0, 0.0, 0.0)}

    def scored(c: Cohort, models: State) -> Scores:
        return Scores(*torch.tensor([known[client] for client in c.ids], dtype=torch.float64).T)

    monkeypatch.setattr("coterie.methods.served.evaluate", scored)
    clients = rows(*[([1.0], [2])] * 3)
    result = run(made("fedavg"), clients, nn.Linear(1, 10).double(), rounds=1, out=tmp_path / "run")
    assert result.client_ids == ["a", "b", "c"]
    assert result.per_client_accuracy == [0.75, 0.25, None]
    assert (result.accuracy, result.worst_accuracy, result.failures) == (0.5, 0.25, 0)
    assert read_metrics(tmp_path / "run")[0]["loss"] == 0.5


def test_a_loss_beyond_all_numbers() -> None:
    """The model is w x with loss (w x - y)^2: one step of rate 0.25 makes a's w 1 (loss 1) and b's 1e30.

    b's loss, about 1e60^2, is infinite; b is there all the same.
    """
    clients = rows(([1.0], [2]), ([1e30], [2]))
    watching = Rows()
    method = made("local", lr=0.25, epochs=1, batch=0, momentum=0.0)
    result = run(method, clients, one_weight(), rounds=1, loss="mse", view=watching)
    assert float(result.models["client-b"]["weight"]) == pytest.approx(1e30)
    assert (result.client_ids, result.failures) == (["a", "b"], 0)
    assert watching.rows[0]["loss"] == pytest.approx(1.0)


def test_resuming_what_is_finished_or_no_run(coterie: Command, tmp_path: Path) -> None:
    out = tmp_path / "run"
    coterie("run", "fedavg", *SMALL, "--rounds", 1, "--out", out)
    before = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}
    said = coterie("resume", out)
    assert said.code == 2
    assert said.err.strip() == f"coterie: The run in {out} is finished; see {out / 'report.html'}."
    assert {file: file.read_bytes() for file in out.rglob("*") if file.is_file()} == before
    for folder in (tmp_path, tmp_path / "nothing"):
        said = coterie("resume", folder)
        assert said.code == 2
        assert said.err.startswith(f"coterie: {folder} is not the folder of a run")


def test_models_of_clients_with_any_name(digits: OwnPopulation, tmp_path: Path) -> None:
    names = ["../up", "a/b", "ü.x", "..", "c0"]
    clients = dict(zip(names, (digits.client(client) for client in digits.ids), strict=False))
    population = OwnPopulation(clients, digits.shape, 10, digits.normalise)
    out = tmp_path / "inside" / "run"
    with pytest.raises(CoterieError):
        run(made("local"), population, small_net, rounds=2, out=out, view=StopAt(1))
    result = run(made("local"), population, small_net, rounds=2, out=out, resume=True)
    assert len(models_in(out)) == 5
    assert {file.parent for file in tmp_path.rglob("*") if file.is_file()} == {
        out, out / "checkpoint", out / "checkpoint" / "memory", out / "models",
    }  # fmt: skip
    whole = run(made("local"), population, small_net, rounds=2)
    assert largest_gap(result.models["client-a/b"], whole.models["client-a/b"]) == 0


def test_own_data_are_not_a_named_scenario_and_the_report_says_how_to_run_them_again(
    coterie: Command, digits: OwnPopulation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command of the report is run as it stands there, and makes the same models."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my data").mkdir()
    for client in digits.ids[:3]:
        train = digits.client(client).train
        np.savez(tmp_path / "my data" / f"{client}.npz", x=train.x.numpy(), y=train.y.numpy() % 5)
    said = coterie(
        "run", "fedavg", "--data", "my data", "--model", "digits-mlp", "--rounds", 2, "--out", "runs/one run"
    )
    assert said.code == 0, said.err
    config = tomllib.loads(Path("runs/one run/config.toml").read_text())
    assert config["scenario"] == {"data": "my data"}
    assert "rotated-digits" not in Path("runs/one run/report.html").read_text(encoding="utf-8")
    page = unescape(Path("runs/one run/report.html").read_text(encoding="utf-8"))
    found = re.search(r"<pre>(coterie run .*?)</pre>", page)
    assert found
    command = shlex.split(found[1])
    assert coterie(*command[1:]).code == 0
    assert models_in(Path("runs/one run")) == models_in(Path(command[-1]))


def test_a_named_scenario_brings_its_rate_to_python_too(tmp_path: Path) -> None:
    """rotated-digits has 0.1 for SGD, and 0.5 for SCAFFOLD, and what the user sets counts (Adam: see test_rates)."""
    population = build("rotated-digits", seed=0, clients=4, samples=8, test_samples=4, groups=2)
    cases = [
        (METHODS["fedavg"](), 0.1),
        (METHODS["scaffold"](), 0.5),
        (METHODS["fedavg"](lr=0.02), 0.02),
    ]
    for number, (method, rate) in enumerate(cases):
        out = tmp_path / str(number)
        run(method, population, small_net, rounds=1, out=out)
        assert tomllib.loads((out / "config.toml").read_text())["settings"]["lr"] == rate


def test_a_run_from_python_writes_all_its_settings(coterie: Command, digits: OwnPopulation, tmp_path: Path) -> None:
    """They are in config.toml and in the report; no command can have the data, and that is said."""
    out = tmp_path / "run"
    method, faults = made("ifca", k=2, lr=None), Faults(dropout=0.1)
    run(method, digits, small_net, rounds=2, seed=3, out=out, faults=faults, engine=EngineOptions(workers=1))
    config = tomllib.loads((out / "config.toml").read_text())
    assert config["scenario"] == {"name": "own data in Python"}
    assert config["settings"] == {**asdict(method), "lr": 0.01}  # the optimiser's default, which was used
    assert (config["rounds"], config["seed"], config["dtype"]) == (2, 3, "float32")
    assert (config["faults"], config["engine"]) == ({"dropout": 0.1}, {"workers": 1})
    assert "given in Python: run that program again" in (out / "report.html").read_text(encoding="utf-8")
    (out / "result.json").unlink()
    for arguments in (("resume", out), ("run", "--config", out / "config.toml", "--out", tmp_path / "again")):
        said = coterie(*arguments)
        assert (said.code, "were given in Python; start it again, or resume it" in said.err) == (2, True)
    with pytest.raises(CoterieError, match=r"began with other settings \(settings\.k\)"):
        run(made("ifca", k=3, lr=None), digits, small_net, rounds=2, seed=3, out=out, faults=faults, resume=True)
    again = run(method, digits, small_net, rounds=2, seed=3, out=out, faults=faults, resume=True)
    assert again.rounds == 2

"""Tasks of every kind between machines: what clients learn there is what they learn in the simulator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.core import wire
from coterie.core.errors import CoterieError, Unfinished
from coterie.core.states import State
from coterie.data.folders import from_file
from coterie.deploy.client import Device
from coterie.runs.client_folder import keeping
from coterie.runs.config import RunConfig, from_tables
from coterie.runs.experiment import execute, population_of
from coterie.runs.folder import RunFolder, RunKind
from coterie.runs.result import Result
from coterie.runs.serve import ServeOptions, conduct
from coterie.runs.trained import load

from ..tiny import Rows
from .wiring import Here

NAMES = ("ann", "bob", "cyd")


def write(folder: Path, kind: str, samples: int = 20) -> None:
    """Three clients with a number, a gap now and then, and a town; the target is of the kind that is asked for."""
    g = np.random.default_rng(4)
    folder.mkdir()
    for client, towns in zip(NAMES, (["Ulm", "Rome"], ["Bern", "Ulm"], ["Rome", "Bern"]), strict=True):
        lines = []
        for _ in range(samples):
            a, b, town = g.normal(50, 20), g.normal(), towns[int(g.integers(2))]
            line = 0.1 * a + 2 * b + (3 if town == "Ulm" else 0)
            gap = "" if g.random() < 0.1 else f"{b:.4f}"
            target = {
                "regression": f"{line:.4f}",
                "binary": "ill" if line > 6 else "well",
                "multilabel": f"{int(line > 6)},{int(b > 0)}",
                "classification": ["low", "middle", "high"][int(line > 4) + int(line > 7)],
            }[kind]
            lines.append(f"{a:.3f},{gap},{town},{target}")
        head = "u,v" if kind == "multilabel" else "y"
        (folder / f"{client}.csv").write_text("\n".join([f"a,b,town,{head}", *lines, ""]))


def config(folder: Path, kind: str, **tables: Any) -> RunConfig:
    scenario = {"data": str(folder), "missing": "mean", "normalise": "standard"}
    if kind == "multilabel":
        scenario["target_column"] = "u,v"
    outputs = {"model": "mlp", "dtype": "float64", "rounds": 2, "seed": 5, "method": "fedavg"}
    return from_tables({**outputs, "scenario": scenario, **tables})


def served(folder: Path, given: RunConfig, out: Path, notes: Rows | None = None, code: tuple[str, ...] = ()) -> Result:
    """The run with every client a device of its own, which reads its own file and nothing else."""
    how = {"missing": "mean", "target": given.scenario.target_column}
    devices = {
        name: Device(
            name,
            from_file(folder / f"{name}.csv", name, **how),  # type: ignore[arg-type]
            out / name,
            given.model,
            code=code,
            at_end=keeping(out / name),
        )
        for name in NAMES
    }
    run = RunFolder.create(out / "run", given.to_toml(), RunKind.SERVED)
    return conduct(given, run, Here(devices), ServeOptions(clients=3, patience=0.0), view=notes)


def model_in(folder: Path) -> State:
    state: State = wire.decode((folder / "models/global.safetensors").read_bytes(), State)
    return state


@pytest.mark.parametrize("asked", [{"lr": "auto"}, {"optimiser": "adam"}])
def test_a_server_tests_a_scenario_too_where_its_rate_does_not_count(asked: dict[str, str], tmp_path: Path) -> None:
    """The scenario's rate is for its own optimiser; what the clients find is what the simulator finds."""
    scenario = {"name": "rotated-digits", "clients": 3, "groups": 1}
    settings = {**asked, "finetune_epochs": 0}
    given = from_tables({"method": "fedavg", "rounds": 1, "scenario": scenario, "settings": settings})
    execute(given, tmp_path / "simulated")
    population = population_of(given.scenario, given.seed)
    clients = {name: Device(name, population, tmp_path / name) for name in population.ids}
    run, notes = RunFolder.create(tmp_path / "run", given.to_toml(), RunKind.SERVED), Rows()
    conduct(given, run, Here(clients), ServeOptions(clients=3, patience=0.0), view=notes)
    rates = [from_tables(_toml(tmp_path / name)).settings["lr"] for name in ("run", "simulated")]
    assert rates[0] == rates[1]
    assert any(f"lr = {rates[0]:g}, found by a test on 3 clients" in note for note in notes.notes)


def test_a_server_that_waited_in_vain_says_which_file_it_reads_next(tmp_path: Path) -> None:
    """It goes on from its folder: who corrects the file that was given first would see no change."""
    given = from_tables({"method": "fedavg", "rounds": 1, "scenario": {"name": "rotated-digits"}})
    run = RunFolder.create(tmp_path / "run", given.to_toml(), RunKind.SERVED)
    with pytest.raises(Unfinished, match=r"--resume .*run \(it reads .*run.config\.toml; what is wrong with the run"):
        conduct(given, run, Here({}), ServeOptions(clients=3, patience=0.0))


@pytest.mark.parametrize("kind", ["classification", "binary", "multilabel", "regression"])
def test_a_served_run_ends_as_the_simulated_one(kind: str, tmp_path: Path) -> None:
    """From CSV files with text, gaps and words: the same rate, model, metrics and floor."""
    write(tmp_path / "data", kind)
    given = config(tmp_path / "data", kind, settings={"batch": 2})  # the test of rates is on 8 of their 16 samples
    simulated = execute(given, tmp_path / "simulated")
    notes = Rows()
    result = served(tmp_path / "data", given, tmp_path, notes)
    assert (result.task, result.metric) == (simulated.task, simulated.metric) == (kind, simulated.metric)
    here, there = model_in(tmp_path / "run"), model_in(tmp_path / "simulated")
    assert all(torch.allclose(here[name], there[name], rtol=1e-6, atol=1e-7) for name in there)
    assert result.score == pytest.approx(simulated.score, rel=1e-6)
    assert result.floor == pytest.approx(simulated.floor, rel=1e-9)
    assert result.metrics == pytest.approx(simulated.metrics, rel=1e-5)
    assert result.finetuned_score == pytest.approx(simulated.finetuned_score, rel=1e-5)
    rate = from_tables(_toml(tmp_path / "run")).settings["lr"]
    assert rate == from_tables(_toml(tmp_path / "simulated")).settings["lr"]
    assert any(f"lr = {rate:g}, found by a test on 3 clients" in note for note in notes.notes)
    assert notes.rows[0]["floor"] == pytest.approx(simulated.floor)  # known from the first round on
    both = [load(tmp_path / name) for name in ("run", "simulated")]
    here_said, there_said = (run.predict("ann", tmp_path / "data/ann.csv") for run in both)
    alike = np.allclose(here_said, there_said) if kind == "regression" else np.asarray(here_said == there_said).all()
    assert alike


def _toml(folder: Path) -> dict[str, Any]:
    import tomllib

    return tomllib.loads((folder / "config.toml").read_text())


def test_a_model_that_is_worse_than_a_constant_answer_is_warned_of(tmp_path: Path) -> None:
    """At a rate of 1e-9 nothing is learnt, and no client is served better than by its own constant answer."""
    write(tmp_path / "data", "regression")
    notes = Rows()
    given = config(tmp_path / "data", "regression", settings={"lr": 1e-9})
    result = served(tmp_path / "data", given, tmp_path, notes)
    assert result.floor is not None
    assert [note.split("RMSE")[0] for note in notes.notes if "warning" in note] == ["warning: round 1: the mean "]
    assert "not better than where every client always answers the mean of its own targets" in result.warnings[0]


def test_code_of_the_servers_runs_only_where_the_client_has_named_it(tmp_path: Path) -> None:
    """The loss and the metric of a run are names, and code is each machine's own."""
    write(tmp_path / "data", "regression")
    code = tmp_path / "mine.py"
    code.write_text(
        "from torch.nn import functional as F\n"
        "def loss(output, target):\n    return F.l1_loss(output.flatten(), target.flatten())\n"
        "def near(prediction, target):\n    return ((prediction - target).abs() < 1).double().mean()\n"
    )
    names = {"loss": f"{code}:loss", "metric": f"{code}:near"}
    given = config(tmp_path / "data", "regression", settings={"lr": 0.01}, **names)
    with pytest.raises(CoterieError, match=r"code of another machine's; have the same file here and join with --set"):
        served(tmp_path / "data", given, tmp_path / "refused")
    result = served(tmp_path / "data", given, tmp_path, code=tuple(names.values()))
    assert (result.metric, result.task) == ("near", "regression")
    assert json.loads((tmp_path / "run/deployment.json").read_text())["agreement"]["loss"] == names["loss"]


@pytest.mark.parametrize(
    ("method", "settings"), [("fedavg", {"personalise": "finetune"}), ("ditto", {}), ("fedper", {}), ("ifca", {"k": 2})]
)
def test_a_client_uses_its_own_model_afterwards(method: str, settings: dict[str, Any], tmp_path: Path) -> None:
    """The model that the simulator's client has, from the client's own folder alone; the server has none of its own."""
    write(tmp_path / "data", "binary")
    given = config(tmp_path / "data", "binary", method=method, settings={"lr": 0.05, "epochs": 2, **settings})
    execute(given, tmp_path / "simulated")
    result = served(tmp_path / "data", given, tmp_path)
    simulated = load(tmp_path / "simulated")
    for index, name in enumerate(NAMES):
        own, file = load(tmp_path / name), tmp_path / f"data/{name}.csv"
        assert own.clients == (name,)
        assert own.result.score == result.per_client_score[index]
        assert list(own.predict(name, file)) == list(simulated.predict(name, file))
        for mine, theirs in zip(own.model(name).parameters(), simulated.model(name).parameters(), strict=True):
            assert torch.allclose(mine, theirs, rtol=1e-5, atol=1e-7)
    with pytest.raises(CoterieError, match="There is no client 'bob'"):
        load(tmp_path / "ann").predict("bob", tmp_path / "data/bob.csv")
    with pytest.raises(CoterieError, match="has the model of ann alone; admit newcomers to a whole run"):
        load(tmp_path / "ann").admit(tmp_path / "data/bob.csv")
    if method != "ifca":
        with pytest.raises(CoterieError, match="is on its own device"):
            load(tmp_path / "run").predict("ann", tmp_path / "data/ann.csv")

"""`coterie advise`, as a user types it."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

import coterie as package
from coterie.report.advice import print_advice

from ..conftest import Command


def test_groups_are_found_named_and_judged(coterie: Command, tmp_path: Path) -> None:
    """Four rotations of the digits: the advice names the true groups, and the command that it recommends is real."""
    done = coterie("advise", "--clients", 16, "--seed", 3, "--out", tmp_path / "advice")
    assert done.code == 0, done.err
    assert "There are 4 groups" in done.out
    assert "Run: coterie run auto --clients 16 --seed 3" in done.out
    found = json.loads((tmp_path / "advice" / "advice.json").read_text())
    assert found["groups"] == 4
    assert found["recommended"]["method"] == "auto"
    assert found["evidence"]["low"] > 0
    members = {frozenset(c for c, g in found["clients"].items() if g == group) for group in range(4)}
    assert members == {frozenset(f"{number:02d}" for number in range(first, 16, 4)) for first in range(4)}
    scores = found["scores"]
    assert {"local training", "FedAvg", "FedAvg, fine-tuned", "auto"} <= scores.keys()
    assert scores["FedAvg"]["over_fedavg"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
    assert scores["auto"]["over_local"]["mean"] == pytest.approx(
        scores["auto"]["score"] - scores["local training"]["score"]
    )
    page = (tmp_path / "advice" / "advice.html").read_text()
    assert "There are 4 groups" in page
    assert "coterie run auto" in page
    assert "docs/which-method.md" in page
    assert "docs/which-method.md" in done.out


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half as many rounds as a trial has."""
    monkeypatch.setattr(import_module("coterie.runs.advice.advise"), "_ROUNDS", (5, 10))


@pytest.mark.usefixtures("short")
def test_no_groups_no_auto() -> None:
    population = package.build("rotated-digits", seed=1, clients=12, groups=1)
    model = package.build_model("digits-mlp", population.shape, population.classes)
    advice = package.advise(population, model, **population.training)
    assert advice.groups == 1
    assert set(advice.clients.values()) == {0}
    assert advice.recommended.method == "fedavg"
    assert "No evidence of groups" in str(advice)
    assert "Inputs" not in advice.apart


@pytest.mark.usefixtures("short")
def test_regression_is_judged_by_its_own_metric(capsys: pytest.CaptureFixture[str]) -> None:
    """Half of the clients have the opposite slope: together they learn nothing, in their groups all of it."""
    g = np.random.default_rng(0)
    clients = {}
    for number in range(8):
        x = g.normal(size=(120, 3)).astype(np.float32)
        slope = 1 if number < 4 else -1
        clients[f"site-{number}"] = (x, (slope * 50 * x[:, 0] + g.normal(size=120)).astype(np.float32))
    population = package.from_arrays(clients)
    advice = package.advise(population, lambda: torch.nn.Linear(3, 1))
    assert advice.task == "regression"
    assert advice.lower_is_better == (advice.metric in ("rmse", "mae"))
    scores = {choice.name: choice for choice in advice.choices}
    assert scores["auto"].over_fedavg.mean > 0
    print_advice(advice)
    shown = capsys.readouterr().out
    assert advice.metric in shown
    assert "%" not in shown.split("choice")[1].split("Recommended")[0]


def test_bad_input_is_one_sentence(coterie: Command, tmp_path: Path) -> None:
    done = coterie("advise", "--data", tmp_path / "nothing", "--model", "x.py:y")
    assert done.code == 2
    assert done.err.count("\n") == 1

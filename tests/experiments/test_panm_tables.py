"""The tables of PANM: every row is a run that can be made, with the paper's training."""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import Any

import numpy as np
import pytest

from coterie.data import SCENARIOS
from coterie.runs.config import ScenarioConfig, from_tables
from coterie.runs.experiment import population_of
from experiments import EXPERIMENTS

TABLES: list[dict[str, Any]] = tomllib.loads((resources.files("experiments.papers") / "panm.toml").read_text())["table"]
OF_THE_PAPER = [table for table in TABLES if table["name"] != "panm-digits"]


@pytest.mark.parametrize("table", OF_THE_PAPER, ids=[table["name"] for table in OF_THE_PAPER])
def test_every_row_is_a_valid_run(table: dict[str, Any]) -> None:
    labels = [row["label"] for row in table["row"]]
    assert len(set(labels)) == len(labels)
    for row in table["row"]:
        settings = {**table["base"]["settings"], **row["run"].get("settings", {})}
        config = from_tables({**table["base"], **row["run"], "settings": settings})
        method = config.build_method(SCENARIOS[config.scenario.name].training)
        assert (method.optimiser, method.epochs, method.batch) == ("sgd", 3, 128)
        assert (method.lr, method.lr_decay, method.momentum) == (0.08, 0.99, 0.9)


def test_all_are_known_to_reproduce() -> None:
    known = EXPERIMENTS.load()
    assert {table["name"] for table in TABLES} | {"panm-figure2", "panm-figure3"} <= set(known)


def test_a_scenarios_samples_can_be_shared_out_another_way() -> None:
    """rotated-digits shares out at random; 20 class-balanced samples are two of each class."""
    small: dict[str, Any] = {"name": "rotated-digits", "clients": 4, "samples": 20}
    even = population_of(ScenarioConfig(**small, partition="balanced"), seed=0)
    usual = population_of(ScenarioConfig(**small), seed=0)
    assert all(np.bincount(even.client(client).train.y).tolist() == [2] * 10 for client in even.ids)
    assert any(np.bincount(usual.client(client).train.y, minlength=10).tolist() != [2] * 10 for client in usual.ids)

"""The tables of MD-ICFL: every row is a run that can be made."""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import Any

import pytest
from experiments.tables import _merged

from coterie.data import SCENARIOS
from coterie.runs.config import from_tables
from experiments import EXPERIMENTS

TABLES: list[dict[str, Any]] = tomllib.loads((resources.files("experiments.papers") / "md_icfl.toml").read_text())[
    "table"
]


@pytest.mark.parametrize("table", TABLES, ids=[table["name"] for table in TABLES])
def test_every_row_is_a_valid_run(table: dict[str, Any]) -> None:
    labels = [row["label"] for row in table["row"]]
    assert len(set(labels)) == len(labels)
    for row in table["row"]:
        config = from_tables(_merged(table["base"], row["run"]))
        assert config.scenario.name in SCENARIOS
        method = config.build_method({})
        # the paper's training; three convolutions do not learn with it
        ours = (0.01, 20, 0.9) if config.model == "cifar-cnn" else (0.1, 50, 0.0)
        assert (method.lr, method.batch, method.momentum) == ours


def test_all_are_known_to_reproduce() -> None:
    known = EXPERIMENTS.load()
    assert {table["name"] for table in TABLES} | {"md-icfl-figures", "md-icfl-server-work"} <= set(known)

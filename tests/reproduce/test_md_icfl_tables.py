"""The tables of MD-ICFL: every row is a run that can be made."""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import Any

import pytest

from coterie.config import from_tables
from coterie.data import SCENARIOS
from coterie.reproduce import EXPERIMENTS

TABLES: list[dict[str, Any]] = tomllib.loads((resources.files("coterie.papers") / "md_icfl.toml").read_text())["table"]


@pytest.mark.parametrize("table", TABLES, ids=[table["name"] for table in TABLES])
def test_every_row_is_a_valid_run(table: dict[str, Any]) -> None:
    labels = [row["label"] for row in table["row"]]
    assert len(set(labels)) == len(labels)
    for row in table["row"]:
        scenario = {**table["base"]["scenario"], **row["run"].get("scenario", {})}
        config = from_tables({**table["base"], **row["run"], "scenario": scenario})
        assert config.scenario.name in SCENARIOS
        method = config.build_method({})
        assert (method.lr, method.batch, method.momentum) == (0.1, 50, 0.0)


def test_all_are_known_to_reproduce() -> None:
    known = EXPERIMENTS.load()
    assert {table["name"] for table in TABLES} | {"md-icfl-figures", "md-icfl-server-work"} <= set(known)

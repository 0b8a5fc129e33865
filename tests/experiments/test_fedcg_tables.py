"""FedCG's tables: every row is a run that can be made, and shows what became of the domains."""

from __future__ import annotations

import copy
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from experiments.tables import DOMAIN_COLUMNS, cell, tables_of

from coterie.data import SCENARIOS
from coterie.runs.config import from_tables
from experiments import EXPERIMENTS, run_table

TABLES = tables_of(tomllib.loads((resources.files("experiments.papers") / "fedcg.toml").read_text()))


@pytest.mark.parametrize("table", TABLES, ids=[table["name"] for table in TABLES])
def test_every_row_is_a_valid_run(table: dict[str, Any]) -> None:
    labels = [row["label"] for row in table["row"]]
    assert len(set(labels)) == len(labels)
    assert set(DOMAIN_COLUMNS) <= set(table["columns"])
    for row in table["row"]:
        settings = {**table["base"]["settings"], **row["run"].get("settings", {})}
        config = from_tables({**table["base"], **row["run"], "settings": settings})
        assert config.scenario.name in SCENARIOS
        assert config.build_method({}).batch == table["base"]["settings"]["batch"]


def test_all_are_known_to_reproduce() -> None:
    functions = {"fedcg-mixed", "fedcg-unseen-domain", "fedcg-poor-domain", "fedcg-domains", "fedcg-table3-attributes"}
    assert {table["name"] for table in TABLES} | functions <= set(EXPERIMENTS.load())


def test_a_table_has_the_rows_of_the_one_it_names() -> None:
    by_name = {table["name"]: table for table in TABLES}
    fashion, digits = by_name["fedcg-table4-fashion"], by_name["fedcg-table4-digits"]
    assert fashion["row"] == digits["row"]
    assert fashion["base"]["scenario"]["name"] == "rotated-fashion"


def test_lists_in_a_cell_by_hand() -> None:
    """Shares are sorted before the mean over seeds: (.5 .3 .2) and (.2 .7 .1) give (.5 + .7) / 2 and so on."""
    assert cell("domains", [[0.5, 0.3, 0.2], None, [0.2, 0.7, 0.1]]) == "0.60 0.25 0.15"
    assert cell("domains", [[0.1] * 10]) == " ".join(["0.10"] * 8) + " …"
    assert cell("adjacency", [[0.5, 0.5, 0.4, 0.6], [0.5, 0.5, 0.25, 0.75]]) == "0.500 to 0.750; 0.250 to 0.500"
    assert cell("adjacency", [[1.0]]) == "1.000"
    assert cell("adjacency", [None]) == "–"


def test_a_table_shows_lambda_domains_and_the_graph(tmp_path: Path) -> None:
    table = copy.deepcopy(next(table for table in TABLES if table["name"] == "fedcg-table3-digits"))
    table["base"] |= {"rounds": 1, "evaluate_every": 1, "engine": {"workers": 1}}
    table["base"]["scenario"] |= {"clients": 4, "unseen": 1, "samples": 16, "test_samples": 8}
    table["row"] = [row for row in table["row"] if row["label"] in ("FedAvg", "FedCG, U, W")]
    head, _, average, graph = (
        [part.strip() for part in line.split("|")[1:-1]]
        for line in run_table(table, tmp_path, [0, 1], lambda _: None).splitlines()
    )
    shown = [head.index(name) for name in ("lambda", "samples by domain, largest first", "A: diagonal; the rest")]
    assert [average[place] for place in shown] == ["–", "–", "–"]
    assert float(graph[shown[0]].split(" ± ")[0]) > 0
    assert graph[shown[1]] == "0.25 0.25 0.25 0.25", "every client has one of four domains and 16 images"
    assert graph[shown[2]] == "0.500; 0.167"

"""`coterie.compare`: methods by name or ready, several seeds, one table that prints itself."""

from __future__ import annotations

from pathlib import Path

import pytest

import coterie
from coterie.core.errors import CoterieError
from coterie.data.own import OwnPopulation

from ..tiny import made, small_net


def test_methods_are_compared(digits: OwnPopulation, tmp_path: Path) -> None:
    found = coterie.compare(["fedavg", made("ifca")], digits, small_net, rounds=2, seeds=[0, 1], out=tmp_path / "both")
    assert [row["method"] for row in found.rows] == ["fedavg", "ifca"]
    assert sorted(found.results) == [("fedavg", 0), ("fedavg", 1), ("ifca", 0), ("ifca", 1)]
    both = [found.results["ifca", seed].accuracy for seed in (0, 1)]
    assert found.rows[1]["accuracy_mean"] == pytest.approx(sum(both) / 2)
    text = str(found)
    assert "FedAvg" in text
    assert "IFCA" in text
    assert found._repr_html_().startswith("<pre>")
    assert "FedAvg" in found._repr_html_()  # it was an empty page once
    assert (tmp_path / "both" / "report.html").is_file()
    again = coterie.compare(["fedavg", made("ifca")], digits, small_net, rounds=2, seeds=[0, 1], out=tmp_path / "both")
    assert [row["accuracy_mean"] for row in again.rows] == [row["accuracy_mean"] for row in found.rows]


def test_a_comparison_needs_no_folder_and_is_that_of_single_runs(digits: OwnPopulation) -> None:
    found = coterie.compare([made("fedavg"), made("local")], digits, small_net, rounds=2)
    alone = coterie.run(made("fedavg"), digits, small_net, rounds=2)
    assert found.path is None
    assert found.results["fedavg", 0].accuracy == alone.accuracy


def test_a_run_that_comes_to_nothing_is_named_and_the_others_go_on(digits: OwnPopulation) -> None:
    found = coterie.compare([made("fedavg", lr=1e30, aggregate="mean"), made("local")], digits, small_net, rounds=1)
    assert [row["method"] for row in found.rows] == ["local"]
    assert found.failed[0]["method"] == "fedavg"
    assert "fedavg, seed 0: " in str(found)


def test_what_cannot_be_compared_is_one_sentence(digits: OwnPopulation, tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match="fedavg is there twice; name each once"):
        coterie.compare(["fedavg", made("fedavg")], digits, small_net)
    with pytest.raises(CoterieError, match="There is no method 'fedvag'; did you mean 'fedavg'"):
        coterie.compare(["fedvag"], digits, small_net)
    with pytest.raises(CoterieError, match="at least one seed"):
        coterie.compare(["fedavg"], digits, small_net, seeds=[])
    coterie.run("fedavg", digits, small_net, rounds=1, out=tmp_path / "one")
    with pytest.raises(CoterieError, match="holds a single run"):
        coterie.compare(["local"], digits, small_net, out=tmp_path / "one")

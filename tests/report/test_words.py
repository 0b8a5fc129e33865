from __future__ import annotations

from typing import Any

import pytest

from coterie.report.headlines import compare_headline, run_headline

BASE: dict[str, Any] = {
    "method": "ifca",
    "clients": 40,
    "accuracy": 0.941,
    "worst_accuracy": 0.886,
    "n_clusters": 4,
    "ari": 1.0,
    "clusters": [0, 1, 2, 3] * 10,
}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {},
            "IFCA serves 40 clients in 4 groups (ARI 1.00 against the true ones) with 94.1 % mean accuracy; "
            "the worst client has 88.6 %.",
        ),
        ({"ari": None}, "IFCA serves 40 clients in 4 groups with 94.1 %"),
        ({"method": "oracle"}, "Oracle was told the 4 true groups of 40 clients and serves them"),
        ({"method": "fedavg", "n_clusters": 1}, "FedAvg serves 40 clients with one common model and 94.1 %"),
        ({"method": "panm", "n_clusters": 40}, "PANM gives each of 40 clients a model of its own and reaches 94.1 %"),
        ({"method": "local", "n_clusters": None, "clusters": None}, "Local training serves 40 clients with 94.1 %"),
        ({"worst_accuracy": None}, "94.1 % mean accuracy."),
        # the report itself has this line too, so it does not say "see the report"
        ({"warnings": ["round 1: ..."]}, "the worst client has 88.6 %. There is 1 warning."),
        ({"accuracy": None, "n_clusters": None}, "IFCA serves 40 clients with – mean accuracy"),
    ],
)
def test_run_headline(changes: dict[str, Any], words: str) -> None:
    assert words in run_headline(BASE | changes)


def _row(method: str, mean: float | None, **more: object) -> dict[str, object]:
    return {"method": method, "runs": 2, "accuracy_mean": mean, "accuracy_sd": 0.003, **more}


def test_compare_headline_names_the_best_the_gain_the_yardstick_and_the_price() -> None:
    rows = [
        _row("fedavg", 0.87),
        _row("fedprox", 0.90),
        _row("ifca", 0.94, bytes_to_target=31e6),
        _row("oracle", 0.945),
    ]
    assert compare_headline({"scenario": "rotated-digits", "target": 0.9, "rows": rows}) == (
        "IFCA serves the clients of rotated-digits best, with 94.0 ± 0.3 % mean accuracy, 7.0 points above FedAvg; "
        "knowing the true groups would give 94.5 %. It reaches 90 % after 31.0 MB."
    )


def test_methods_that_are_equally_good_are_all_named() -> None:
    rows = [_row("local", 0.7), _row("fedavg", 0.9), _row("ifca", 0.9)]
    assert compare_headline({"scenario": "x", "rows": rows}) == (
        "FedAvg and IFCA serve the clients of x equally well, with 90.0 ± 0.3 % mean accuracy, "
        "20.0 points above Local training."
    )
    rows = [*rows, _row("cfl", 0.9), _row("panm", 0.9)]
    assert compare_headline({"scenario": "x", "rows": rows}).startswith("FedAvg, IFCA and 2 other methods serve the")


def test_compare_headline_with_little_to_compare() -> None:
    assert compare_headline({"scenario": "x", "rows": [_row("ifca", None)]}) == "No method has a result on x yet."
    alone = compare_headline({"scenario": "x", "rows": [_row("oracle", 0.9)]})
    assert alone == "Oracle serves the clients of x best, with 90.0 ± 0.3 % mean accuracy."
    second = compare_headline({"scenario": "x", "rows": [_row("local", 0.7), _row("ifca", 0.9)]})
    assert "20.0 points above Local training" in second

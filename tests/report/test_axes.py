"""Axes for curves that are flat, or nearly so."""

from __future__ import annotations

from pathlib import Path

import pytest

from coterie.core.panels import Lines
from coterie.report import axes, figures
from coterie.runs.folder import RunFolder

from .fakes import fake_run


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [
        ([0.5, 0.5, None], 0.45, 0.55),  # flat: ten points around it
        ([0.108, 0.13], 0.069, 0.169),  # 2 points would be labelled 11 %, 12 %, 12 %, 13 %, 13 %
        ([1.0, 1.0], 0.905, 1.005),  # not up to 105 %
        ([0.0], -0.005, 0.095),  # not down to -5 %
    ],
)
def test_accuracies_that_hardly_differ(values: list[float | None], low: float, high: float) -> None:
    assert axes.shares(values)["range"] == pytest.approx([low, high])


def test_other_accuracies_are_left_to_plotly() -> None:
    assert axes.shares([0.2, 0.31]) == axes.shares([0.88, 0.98]) == {}  # a point at either end is not cut
    assert axes.shares([None]) == axes.shares([]) == {}


def test_a_flat_curve_of_any_size() -> None:
    """plotly draws 1e-6 on an axis from -1 to 1, and rounding errors of 5 as mountains."""
    assert axes.plain([1e-6, 1e-6])["range"] == pytest.approx([0.5e-6, 1.5e-6])
    assert axes.plain([5.0, 5.0 + 1e-12])["range"] == pytest.approx([2.5, 7.5])
    assert axes.plain([-4.0])["range"] == pytest.approx([-6.0, -2.0])
    assert axes.plain([0.0, 0.0]) == axes.plain([1.0, 1.1]) == axes.plain([]) == {}


def test_whole_numbers_are_counted_one_by_one() -> None:
    assert axes.whole([1, 2, 3]) == {"dtick": 1}
    assert axes.whole([1, 50]) == axes.whole([]) == axes.whole([None]) == {}
    assert axes.whole([1]) == {"dtick": 1}


def test_figures_use_them(tmp_path: Path) -> None:
    run = RunFolder.of_finished(fake_run(tmp_path / "ifca"))
    flat = {"accuracy": 0.7, "worst_accuracy": 0.7, "ari": -0.2}
    run.metrics = [{**row, **flat} for row in run.metrics]
    assert figures.accuracy_over_rounds(run)["layout"]["yaxis"]["range"] == pytest.approx([0.65, 0.75])
    assert figures.compare_over_bytes({"ifca": [run]}, None)["layout"]["yaxis"]["range"] == pytest.approx([0.65, 0.75])
    assert figures.groups_over_rounds(run)["layout"]["yaxis2"]["range"][0] == pytest.approx(-0.25)
    assert figures.lines(Lines("x", [1, 2], {"a": [3.0, 3.0]}))["layout"]["yaxis"]["range"] == [1.5, 4.5]
    bars = figures.accuracy_histogram([0.7, 0.7, None])
    assert bars["layout"]["xaxis"]["range"] == pytest.approx([0.65, 0.75])
    assert bars["data"][0]["xbins"]["size"] == pytest.approx(0.005)
    boxes = figures.client_accuracies({"a": [1.0, 1.0]}, [0], "")
    assert boxes["layout"]["yaxis"]["range"] == pytest.approx([0.905, 1.005])

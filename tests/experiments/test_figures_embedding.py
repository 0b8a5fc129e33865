"""The measurements of embedding clustering, on the embedded digits."""

from __future__ import annotations

from pathlib import Path

import pytest
from experiments.figures_embedding import _ratio
from experiments.figures_embedding_drift import _FreshHalf
from experiments.figures_embedding_ladd import _lines

from coterie.data import build
from coterie.data.population import LazyPopulation
from coterie.runs.config import ScenarioConfig
from experiments import EXPERIMENTS, figures_embedding


def test_the_digits_against_flips_and_a_second_call_that_only_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures_embedding, "_FLIPS", (0.05, 0.1))
    said: list[str] = []
    text = EXPERIMENTS.load()["embedding-digits"].run(tmp_path, (0,), said.append)
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| 5% ")]
    assert rows[0][1] == "1.00 (4.0)", "four groups"
    assert rows[1][1] == "1.00 (1.0)", "one group"
    assert (tmp_path / "table.md").read_text() == text
    embedded = [line for line in said if "embedded in" in line]
    assert EXPERIMENTS["embedding-digits"].run(tmp_path, (0,), said.append) == text
    assert [line for line in said if "embedded in" in line] == embedded


def test_embedding_is_timed_against_an_epoch() -> None:
    embed, plain, kernel, ratio = _ratio(build("rotated-digits", seed=0), "digits-mlp", clients=2)
    assert float(embed) > 0
    assert float(plain) > 0
    assert kernel == "–" or float(kernel) >= 0
    assert float(ratio) >= 0


def test_every_way_to_read_styles_has_a_line() -> None:
    """Two rotations are all that LADD sees in the digits, however it fills the classes that clients lack."""
    lines = _lines(ScenarioConfig("rotated-digits"), (0,), lambda _: None)
    assert [line[1:3] for line in lines[:2]] == [["raw", "mean"], ["raw", "noise"]]
    assert len(lines) == 6
    assert lines[0][4] == "0.48 (2)"


def test_fresh_halves_change_and_keep_their_group() -> None:
    whole: LazyPopulation = build("rotated-digits", seed=0)
    half = _FreshHalf(whole, 0)
    first, later = half.client("03", 0), half.client("03", 1)
    assert len(first.train) == len(later.train) == len(whole.client("03").train) // 2
    assert not (first.train.y == later.train.y).all()
    assert half.group("03") == whole.group("03")
    assert (half.ids, half.shape, half.classes) == (whole.ids, whole.shape, whole.classes)
    assert half.normalise == whole.normalise

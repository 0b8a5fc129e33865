from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.report.formatting import (
    clock,
    duration,
    human_bytes,
    method_title,
    number,
    percent,
    plural,
    score,
)


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (999_499, "999 kB"),
        (999_500, "1.00 MB"),
        (12_345_678, "12.3 MB"),
        (123_456_789, "123 MB"),
        (9_996_000, "10.0 MB"),
        (5e15, "5000 TB"),
        (None, "–"),
        (math.nan, "–"),
    ],
)
def test_bytes(count: float | None, words: str) -> None:
    assert human_bytes(count) == words


@given(st.integers(0, 10**14))
def test_bytes_keep_three_digits(count: int) -> None:
    value, unit = human_bytes(count).split(" ")
    scale = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}[unit]
    assert abs(float(value) * scale - count) <= 0.0051 * max(count, 1)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.6, "1 min"),
        (200, "3 min 20 s"),
        (3599.9, "1 h"),
        (7500, "2 h 5 min"),
        (-1.0, "0.0 s"),
        (None, "–"),
        (math.inf, "–"),
    ],
)
def test_durations(seconds: float | None, words: str) -> None:
    assert duration(seconds) == words


def test_shares_scores_and_counts() -> None:
    assert percent(0.9412) == "94.1 %"
    assert percent(None) == percent(math.nan) == "–"
    assert score(-0.001) == "0.00"
    assert score(None) == "–"
    assert number(4.0) == "4"
    assert number(4.5) == "4.5"
    assert number(12_000) == "12,000"
    assert number(100, 0) == "100"
    assert number(None) == "–"
    assert plural(1, "client") == "1 client"
    assert plural(1_200, "client") == "1,200 clients"


def test_methods_are_spelt_as_in_their_papers() -> None:
    assert method_title("md-icfl") == "MD-ICFL"
    assert method_title("my-method") == "my-method"


@pytest.mark.parametrize(
    ("seconds", "said"), [(None, "–"), (0.4, "0.4 s"), (12, "12 s"), (59.7, "1:00"), (200, "3:20"), (7500, "2:05:00")]
)
def test_clock(seconds: float | None, said: str) -> None:
    assert clock(seconds) == said
    assert len(said) <= 7

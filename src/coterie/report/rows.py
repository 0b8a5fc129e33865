"""Rows of metrics as a terminal shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coterie.report.formatting import UNKNOWN, duration

Row = Mapping[str, Any]


def cell(row: Row, key: str) -> float | None:
    """A number of the row; an empty cell or a missing key is unknown."""
    value = row.get(key)
    return None if value is None or value == "" else float(value)


def is_known(value: Any) -> bool:
    """Whether a cell has a value."""
    return value is not None and value != ""


def is_number(value: Any) -> bool:
    """One number, not a list of them."""
    return isinstance(value, (int, float))


def short(value: float | None) -> str:
    """A number with three digits."""
    return UNKNOWN if value is None else f"{value:.3g}"


def whole(value: Any) -> int:
    """A whole number; 0 where it is unknown."""
    return 0 if value is None or value == "" else int(value)


def sent(row: Row) -> float | None:
    """Bytes in both directions."""
    down, up = cell(row, "bytes_down"), cell(row, "bytes_up")
    return None if down is None or up is None else down + up


def remaining(row: Row, rounds: int) -> str:
    """What the rest takes if it goes on at the mean pace."""
    done, seconds = whole(row.get("round")), cell(row, "seconds")
    if done >= rounds:
        return f"done in {duration(seconds)}"
    left = None if not done or seconds is None else seconds / done * (rounds - done)
    return f"{duration(left)} left"

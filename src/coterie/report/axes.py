"""Axes for numbers that hardly differ, which plotly would blow up until noise looks like a result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Axis = dict[str, Any]
_LEAST_SHARE = 0.1
_EDGE = 0.005
_NOISE = 1e-3
_FEW = 10


def shares(values: Sequence[float | None]) -> Axis:
    """An axis of accuracies spans ten points or more: within 0 and 100 % and with no two labels alike."""
    known = [value for value in values if value is not None]
    # what nearly fills ten points would be cut at both ends; the page's own axis leaves room
    if not known or max(known) - min(known) >= 0.9 * _LEAST_SHARE:
        return {}
    middle = (max(known) + min(known)) / 2
    low = min(max(middle - _LEAST_SHARE / 2, -_EDGE), 1 + _EDGE - _LEAST_SHARE)
    return {"range": [low, low + _LEAST_SHARE]}


def plain(values: Sequence[float | None]) -> Axis:
    """A curve that is flat but for a thousandth of its height is drawn as flat, on an axis of its own size."""
    known = [value for value in values if value is not None]
    size = max((abs(value) for value in known), default=0.0)
    if not known or not size or max(known) - min(known) > _NOISE * size:
        return {}
    middle = (max(known) + min(known)) / 2
    return {"range": [middle - size / 2, middle + size / 2]}


def whole(values: Sequence[float | None]) -> Axis:
    """Few rounds or groups are counted one by one; there is no round 1.5."""
    known = [value for value in values if value is not None]
    return {"dtick": 1} if known and max(known) - min(0, *known) <= _FEW else {}

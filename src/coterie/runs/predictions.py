"""Predictions as a CSV file."""

from __future__ import annotations

import csv
import io
from typing import Any

import numpy.typing as npt

from coterie.data.schema import Schema
from coterie.data.tables import is_number


def as_csv(predicted: npt.NDArray[Any], schema: Schema) -> str:
    """One line for each sample, under the name of the target."""
    table = predicted.reshape(len(predicted), -1)
    names = [name for name in schema.target.split(",") if name] or ["prediction"]
    if len(names) != table.shape[1]:
        names = [f"prediction-{place}" for place in range(1, table.shape[1] + 1)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_cell, names))
    writer.writerows(map(_cell, row) for row in table.tolist())
    return text.getvalue()


def _cell(value: Any) -> Any:
    """A value as a spreadsheet shows it. A word may be another client's: one that begins like a formula is quoted."""
    formula = isinstance(value, str) and len(value) > 1 and value[0] in "=+-@＝＋－＠" and not is_number(value)
    return f"'{value}" if formula else value

"""Tables: CSV and Parquet files, DataFrames and whatever else has named columns, all as one kind of object.

CSV is read by Python's csv module, so that it needs no other package; Parquet by pyarrow (`coterie[tables]`).
DataFrames of pandas and polars, tables of pyarrow and mappings of columns are recognised by what they can do.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import isnan
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from coterie.core.errors import UNREADABLE, CoterieError, installing
from coterie.core.terminal import brief, shown

Values = npt.NDArray[Any]
"""A column: float64 (NaN is missing), int64, or objects that are text (None is missing)."""
_ROW_NUMBERS = re.compile(r"__index_level_\d+__")
"""The name under which pandas writes an index without a name to Parquet: numbers of rows, no column of the user's."""
_NAMELESS = re.compile(r"Unnamed: \d+")
"""The name that pandas gives to a CSV file's column without one, which most often is such an index."""
TABLE_ENDINGS = (".csv", ".parquet")
_SEPARATORS = (",", ";", "\t")
_MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})
_PADDED = re.compile(r"\s*[+-]?0\d+\s*")
_MOST_COLUMNS = 1 << 16
_MOST_SHOWN = 60


@dataclass(frozen=True, eq=False)
class DataTable:
    """Named columns of one length; `where` says in messages whose they are."""

    columns: Mapping[str, Values]
    where: str
    padded: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    """Of columns of whole numbers, those that are written with zeros before them somewhere, as 007 is, and how."""
    doubled: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Columns in which one of these numbers is written in two ways, and how."""

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def rows(self, index: npt.NDArray[np.int64], where: str) -> DataTable:
        """The table of these rows."""
        return replace(self, columns={name: values[index] for name, values in self.columns.items()}, where=where)

    def column(self, name: str) -> Values:
        """A column, or an error that says which there are."""
        if name not in self.columns:
            raise CoterieError(f"{self.where} has no column {shown(name)}; its columns are {listed(self.columns)}.")
        return self.columns[name]


@runtime_checkable
class Frame(Protocol):
    """What a DataFrame of pandas or polars can do."""

    @property
    def columns(self) -> Iterable[Any]:
        """The names of the columns."""

    def __getitem__(self, name: Any) -> Any: ...


def read_table(path: Path) -> DataTable:
    """The table of a CSV or a Parquet file."""
    return _read_parquet(path) if path.suffix.lower() == ".parquet" else read_csv(path)


def is_frame(value: Any) -> bool:
    """Whether something has named columns."""
    return not isinstance(value, (str, bytes)) and (
        isinstance(value, (Mapping, Frame)) or hasattr(value, "column_names")
    )


def as_table(frame: Any, where: str) -> DataTable:
    """A DataFrame, a table of pyarrow or a mapping of columns as a table."""
    if isinstance(frame, DataTable):
        return frame
    if isinstance(frame, Mapping):
        names = list(frame)
    elif hasattr(frame, "column_names"):
        names = list(frame.column_names)
    elif isinstance(frame, Frame):
        names = list(frame.columns)
    else:
        raise CoterieError(f"{where} is a {type(frame).__name__}; give a DataFrame, or columns by name.")
    names = [name for name in names if not _ROW_NUMBERS.fullmatch(str(name))]
    _check_names([str(name) for name in names], where)
    columns = {str(name): _typed(frame[name], str(name), where) for name in names}
    lengths = {len(values) for values in columns.values()}
    if len(lengths) > 1:
        raise CoterieError(f"The columns of {where} have different lengths; give them one.")
    return _checked(columns, where)


def read_csv(path: Path) -> DataTable:
    """The table of a CSV file: a line of names, then rows; separated by commas, semicolons or tabs, as the first line.

    Columns whose every value is a number hold numbers. Empty fields, NA, N/A, NaN, null, None and ? are missing values.
    """
    where = str(path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise CoterieError(f"{where} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise CoterieError(
            f"{where} is not UTF-8 (byte {error.start}); save it again with the encoding UTF-8."
        ) from error
    rows = _rows(text, where)
    names = [name.strip() for name in rows[0]]
    _check_names(names, where)
    if all(is_number(name) for name in names):
        raise CoterieError(f"The first line of {where} holds numbers alone; give the columns names there.")
    if len(rows) == 1:
        raise CoterieError(f"{where} has a line of names and no rows; give it some, or remove it.")
    cells = zip(*rows[1:], strict=True)
    texts = dict(zip(names, cells, strict=True))
    columns = {name: _numbers_or_text(column) for name, column in texts.items()}
    padded = {name: _padded(texts[name]) for name, values in columns.items() if values.dtype == np.int64}
    padded = {name: found for name, found in padded.items() if found}
    doubled = {name: _doubled(texts[name], found) for name, found in padded.items()}
    table = _checked(columns, where)
    return replace(table, padded=padded, doubled={name: both for name, both in doubled.items() if both})


def _padded(cells: Iterable[str]) -> dict[int, str]:
    """The whole numbers that are written with zeros before them, and how."""
    return {int(cell): cell.strip() for cell in sorted(set(cells), reverse=True) if _PADDED.fullmatch(cell)}


def _doubled(cells: Iterable[str], padded: Mapping[int, str]) -> tuple[str, str] | None:
    """Two writings of one of these numbers: without zeros or with another number of them, and as it is in `padded`."""
    written = ((cell.strip(), padded.get(int(cell))) for cell in sorted(set(cells)))
    return next(((cell, other) for cell, other in written if other is not None and cell != other), None)


def _rows(text: str, where: str) -> list[list[str]]:
    """The fields of every line that is not empty, all as many as in the first."""
    head = text.lstrip("\r\n").partition("\n")[0]
    counts = {separator: head.count(separator) for separator in _SEPARATORS}
    separator = max(_SEPARATORS, key=lambda each: counts[each])
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    rows: list[list[str]] = []
    try:
        for row in reader:
            if not row or (len(row) == 1 and not row[0].strip()):
                continue
            if rows and len(row) != len(rows[0]):
                raise CoterieError(
                    f"Line {reader.line_num} of {where} has {len(row)} fields and the first line has {len(rows[0])}; "
                    "correct it, and put text with commas into quotes."
                )
            rows.append(row)
    except csv.Error as error:
        raise CoterieError(
            f"Line {reader.line_num} of {where} cannot be read ({error}); correct its quotes."
        ) from error
    if not rows:
        raise CoterieError(f"{where} is empty; give it a line of names and rows, or remove it.")
    return rows


def _read_parquet(path: Path) -> DataTable:
    try:
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise CoterieError(f"Parquet files need pyarrow: {installing('tables')}, or give CSV files.") from None
    try:
        table = parquet.ParquetFile(path).read()
    except Exception as problem:  # a damaged file can fail in any way at all
        raise CoterieError(f"{path} cannot be read: it is damaged, or not a Parquet file; write it again.") from problem
    return as_table(table, str(path))


def _check_names(names: Sequence[str], where: str) -> None:
    if len(names) > _MOST_COLUMNS:
        raise CoterieError(f"{where} has {len(names)} columns; {_MOST_COLUMNS} at most can be read.")
    for place, name in enumerate(names, start=1):
        if not name or _NAMELESS.fullmatch(name):
            raise CoterieError(
                f"Column {place} of {where} has no name; give it one, or write the table without it "
                "(index=False in pandas)."
            )
    doubled = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if doubled:
        raise CoterieError(f"{where} has two columns {shown(doubled[0])}; give each a name of its own.")


def _checked(columns: dict[str, Values], where: str) -> DataTable:
    if not columns:
        raise CoterieError(f"{where} has no columns; give it some.")
    if not len(next(iter(columns.values()))):
        raise CoterieError(f"{where} has no rows; give it some, or remove it.")
    return DataTable(columns, where)


def _numbers_or_text(cells: Sequence[str]) -> Values:
    """A column of text as numbers where all that is there are numbers."""
    for read, kind in ((int, np.int64), (float, np.float64)):
        with suppress(*UNREADABLE):
            return np.fromiter(map(read, cells), kind, len(cells))
    known = [None if cell.strip().lower() in _MISSING else cell.strip() for cell in cells]
    try:
        return np.array([np.nan if cell is None else float(cell) for cell in known], np.float64)
    except UNREADABLE:
        return _objects(known)


def _typed(column: Any, name: str, where: str) -> Values:
    """A column of a frame as numbers or as text."""
    try:
        values = np.asarray(column)
        if values.dtype.kind in "SUT":
            values = values.astype(object)
    except Exception as problem:  # a column can be an object of any library
        raise CoterieError(
            f"Column {shown(name)} of {where} is not an array ({brief(str(problem), 100)})."
        ) from problem
    if values.ndim != 1 or values.dtype.kind not in "biufO":
        what = f"of shape {values.shape}" if values.ndim != 1 else f"of {values.dtype}"
        raise CoterieError(
            f"Column {shown(name)} of {where} is {what}; give one number or text a row, or leave the column out."
        )
    if values.dtype.kind in "bi":
        return values.astype(np.int64)
    if values.dtype.kind in "uf":
        whole = values.dtype.kind == "u" and (not len(values) or values.max() < 1 << 63)
        return values.astype(np.int64 if whole else np.float64)
    return _from_objects(values, name, where)


def _from_objects(values: Values, name: str, where: str) -> Values:
    """A column of Python objects: text if any of them is, otherwise numbers."""
    known = [None if _is_missing(value) else value for value in values.tolist()]
    if any(isinstance(value, (str, bytes)) for value in known):
        texts = [None if value is None else str(value).strip() for value in known]
        return _objects([None if text is None or text.lower() in _MISSING else text for text in texts])
    try:
        numbers = [np.nan if value is None else float(value) for value in known]
    except UNREADABLE as problem:
        odd = next(type(value).__name__ for value in known if value is not None)
        raise CoterieError(
            f"Column {shown(name)} of {where} holds values of type {odd}; give one number or text a row, or leave the "
            "column out."
        ) from problem
    whole = all(isinstance(value, int) and abs(value) < 1 << 63 for value in known)
    return np.array(known, np.int64) if whole and known else np.array(numbers, np.float64)


def _is_missing(value: Any) -> bool:
    """None, NaN, and the NA and NaT of pandas."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float) and isnan(value)


def _objects(values: Sequence[Any]) -> Values:
    made = np.empty(len(values), object)
    made[:] = values
    return made


def is_number(text: str) -> bool:
    """Whether Python reads it as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def listed(names: Iterable[str]) -> str:
    """The first few names, for a sentence."""
    given = list(names)
    return ", ".join(shown(name, _MOST_SHOWN) for name in given[:8]) + (", ..." if len(given) > 8 else "")

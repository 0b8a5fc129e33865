"""From tables to arrays: which columns are inputs, text as categories, missing values, the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.samples import ClientId
from coterie.core.targets import TaskName
from coterie.core.terminal import shown

from .labels import sorted_names
from .schema import LONGEST_NAME, Column, Missing, Schema
from .split import training_rows
from .tables import DataTable, Values, is_number, listed

MOST_CATEGORIES = 100
"""A text column with more different values is refused: each would be an input of its own."""
_FEW_CLASSES = 100
_TARGETS = ("target", "label", "y")


@dataclass(frozen=True)
class Reading:
    """What the user says about tables."""

    target: str | None = None
    """The column to predict; several by commas. None: the one of target, label and y that is there."""
    client: str | None = None
    """Of one table for all clients: the column with their names."""
    ignore: tuple[str, ...] = ()
    """Columns that are not inputs."""
    missing: Missing = "refuse"
    tokens: bool = False
    """Whether the inputs are token ids."""
    task: TaskName = "auto"


@dataclass(frozen=True, eq=False)
class Encoded:
    """Tables as arrays: inputs and targets of every client, and how they were made."""

    arrays: dict[ClientId, tuple[npt.NDArray[np.generic], Values]]
    columns: tuple[Column, ...]
    targets: tuple[str, ...]


def encode(
    tables: Mapping[ClientId, DataTable], how: Reading, seed: int, agreed: tuple[Column, ...] | None = None
) -> Encoded:
    """All clients' tables as arrays; the inputs are in the order of the first client's columns.

    `agreed` is what the columns are where other clients, whose tables are elsewhere, have a say in it.
    """
    first = next(iter(tables.values()))
    targets = target_columns(first, how.target)
    unknown = [name for name in how.ignore if name not in first.columns]
    if unknown:
        raise CoterieError(
            f"{first.where} has no column {shown(unknown[0])} to ignore; its columns are {listed(first.columns)}."
        )
    left_out = {*targets, *how.ignore, *([how.client] if how.client else [])}
    names = [name for name in first.columns if name not in left_out]
    if not names:
        raise CoterieError(f"{first.where} has no column beside {listed(left_out)}; the inputs need at least one.")
    for table in tables.values():
        _check_columns(table, first, left_out, [*names, *targets])
    if how.missing == "drop":
        tables = {client: _without_gaps(table, [*names, *targets]) for client, table in tables.items()}
    for name in targets if how.missing == "drop" else [*names, *targets]:
        if how.missing == "refuse" or name in targets:
            _refuse_gaps(tables, name, how.missing)
    columns = tuple(_learnt(tables, name, how, seed) for name in names) if agreed is None else agreed
    labels = _target_values(tables, targets, how)
    return Encoded(
        {client: (_inputs(table, columns, how.tokens), labels[client]) for client, table in tables.items()},
        columns,
        targets,
    )


def new_inputs(table: DataTable, schema: Schema) -> Tensor:
    """New rows as raw inputs, in the way the data of a run were read; other columns of the table are not looked at.

    A text that no client of the run had stands for no category: all its inputs are 0.
    """
    if not schema.columns:
        raise CoterieError(f"The data of this run were not tables; {table.where} cannot be read as they were.")
    for column in schema.columns:
        values = table.column(column.name)
        gaps = int(_gaps(values).sum())
        if gaps and column.fill is None and not (column.categories and schema.missing == "mean"):
            raise CoterieError(
                f"Column {shown(column.name)} of {table.where} lacks {gaps} values, and the run was trained without "
                "missing ones; fill them in, or remove these rows."
            )
        if column.categories and values.dtype != object:
            table = replace(table, columns={**table.columns, column.name: texts(values)})
    return torch.from_numpy(_inputs(table, schema.columns, schema.layout == "tokens"))


def target_columns(table: DataTable, given: str | None) -> tuple[str, ...]:
    """The columns to predict: as given, or the only one that has a usual name."""
    if given is not None:
        parts = (given,) if given in table.columns else tuple(part.strip() for part in given.split(","))
        for part in parts:
            table.column(part)
        return parts
    usual = [name for name in _TARGETS if name in table.columns]
    if len(usual) != 1:
        which = f"both {' and '.join(usual)}" if usual else f"none of the columns {', '.join(_TARGETS)}"
        raise CoterieError(
            f"{table.where} has {which}; say which column is to be predicted: --target-column NAME, or target= in "
            f"Python. Its columns are {listed(table.columns)}."
        )
    return (usual[0],)


def by_client(table: DataTable, column: str) -> dict[ClientId, DataTable]:
    """One table for each client that a column names, in the order of their names."""
    values = table.column(column)
    gaps = int(_gaps(values).sum())
    if gaps:
        raise CoterieError(
            f"Column {shown(column)} of {table.where}, which names the clients, is empty in {gaps} rows; fill it in, "
            "or remove these rows."
        )
    names, places = np.unique(texts(values).astype(str), return_inverse=True)
    order = np.argsort(places, kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(places))[:-1])
    ordered = {name: number for number, name in enumerate(names.tolist())}
    return {
        name: table.rows(np.asarray(parts[ordered[name]], np.int64), f"client {name} in {table.where}")
        for name in sorted_names(names.tolist())
    }


def _check_columns(table: DataTable, first: DataTable, left_out: set[str], wanted: Sequence[str]) -> None:
    lacking = [name for name in wanted if name not in table.columns]
    more = [name for name in table.columns if name not in first.columns and name not in left_out]
    if lacking or more:
        what = f"lacks the column {shown(lacking[0])}" if lacking else f"has a column {shown(more[0])}"
        raise CoterieError(
            f"{table.where} {what}, unlike {first.where}; give all clients the same columns, or leave columns out with "
            "--set scenario.ignore=NAME."
        )


def _gaps(values: Values) -> npt.NDArray[np.bool_]:
    """Which values are missing."""
    if values.dtype == object:
        return np.fromiter((value is None for value in values), bool, len(values))
    return np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), bool)


def _refuse_gaps(tables: Mapping[ClientId, DataTable], name: str, missing: Missing) -> None:
    counts = {client: int(_gaps(table.columns[name]).sum()) for client, table in tables.items()}
    gaps = sum(counts.values())
    if not gaps:
        return
    rows = sum(len(table) for table in tables.values())
    worst = max(counts, key=lambda client: counts[client])
    what = f"Column {shown(name)} lacks {gaps} of {rows} values (client {worst}: {counts[worst]})"
    if missing == "mean":
        raise CoterieError(f"{what}, and it is what is predicted; remove these rows, or use missing = drop.")
    raise CoterieError(
        f"{what}; fill them in, or say --set scenario.missing=mean (the mean of the column) or "
        "--set scenario.missing=drop (leave these rows out)."
    )


def _without_gaps(table: DataTable, names: Sequence[str]) -> DataTable:
    whole = ~np.logical_or.reduce([_gaps(table.columns[name]) for name in names])
    if not whole.any():
        raise CoterieError(
            f"Every row of {table.where} lacks a value, so that missing = drop leaves none; leave out the column that "
            "is empty with --set scenario.ignore=NAME, or use missing = mean."
        )
    rest = table.rows(np.flatnonzero(whole), table.where)
    return replace(rest, columns={name: _whole(table.columns[name], values) for name, values in rest.columns.items()})


def _whole(before: Values, rest: Values) -> Values:
    """What is left of a column: whole numbers are such again where only the gaps had made them floats."""
    gaps = before.dtype.kind == "f" and len(rest) < len(before) and np.isnan(before).any()
    return rest.astype(np.int64) if gaps and (rest == np.round(rest)).all() and np.abs(rest).max() < 1e15 else rest


def _learnt(tables: Mapping[ClientId, DataTable], name: str, how: Reading, seed: int) -> Column:
    """What a column of the inputs is, over all clients."""
    words = {client: table for client, table in tables.items() if table.columns[name].dtype == object}
    if words:
        return _category(tables, words, name)
    for table in tables.values():
        if np.isinf(table.columns[name]).any():
            raise CoterieError(f"Column {shown(name)} of {table.where} holds infinity; correct it.")
    if how.missing != "mean":
        return Column(name)
    train = [table.columns[name][training_rows(client, len(table), seed)] for client, table in tables.items()]
    known = np.concatenate([part[~_gaps(part)] for part in train])
    if not len(known):
        raise CoterieError(f"Column {shown(name)} has no values; leave it out: --set scenario.ignore={name}.")
    return Column(name, fill=float(known.mean(dtype=np.float64)), known=len(known))


def _category(tables: Mapping[ClientId, DataTable], words: Mapping[ClientId, DataTable], name: str) -> Column:
    texts = [value for table in words.values() for value in table.columns[name] if value is not None]
    numeric = [text for text in texts if is_number(text.replace(",", "."))]
    elsewhere = [table for client, table in tables.items() if client not in words and not _empty(table.columns[name])]
    if elsewhere or len(numeric) * 2 >= len(texts):
        odd = next((text for text in texts if not is_number(text)), texts[0])
        where = next(table.where for table in words.values() if odd in table.columns[name])
        comma = "; write numbers with a decimal point" if "," in odd and is_number(odd.replace(",", ".")) else ""
        raise CoterieError(
            f"Column {shown(name)} holds numbers, but {where} has {shown(odd, 60)} in it{comma}; correct it, or leave "
            f"the column out with --set scenario.ignore={name}."
        )
    categories = sorted_names(texts)
    if len(categories) > MOST_CATEGORIES:
        raise CoterieError(
            f"Column {shown(name)} holds text with {len(categories)} different values, such as {shown(texts[0], 60)}; "
            f"{MOST_CATEGORIES} at most become inputs: leave it out with --set scenario.ignore={name}, or give numbers."
        )
    long = [category for category in categories if len(category) > LONGEST_NAME or not category.isprintable()]
    if long:
        raise CoterieError(
            f"Column {shown(name)} holds the text {shown(long[0], 60)}, which is not a category (one line of at most "
            f"{LONGEST_NAME} characters); leave it out with --set scenario.ignore={name}."
        )
    return Column(name, categories)


def _empty(values: Values) -> bool:
    return bool(_gaps(values).all())


def _inputs(table: DataTable, columns: Sequence[Column], tokens: bool) -> npt.NDArray[np.generic]:
    """The inputs of a table, [rows, sum of the columns' widths]."""
    if tokens:
        odd = [c.name for c in columns if table.columns[c.name].dtype != np.int64]
        if odd:
            raise CoterieError(f"Column {shown(odd[0])} of {table.where} holds no whole numbers; tokens are such.")
        return np.stack([table.columns[column.name] for column in columns], 1)
    x = np.zeros((len(table), sum(column.width for column in columns)), np.float32)
    place = 0
    for column in columns:
        values = table.columns[column.name]
        if column.categories:
            number = {category: place + i for i, category in enumerate(column.categories)}
            where = np.fromiter((number.get(value, -1) for value in values), np.int64, len(values))
            x[np.flatnonzero(where >= 0), where[where >= 0]] = 1
        elif values.dtype == object and not _empty(values):
            odd = next(value for value in values if value is not None)
            raise CoterieError(
                f"Column {shown(column.name)} of {table.where} has {shown(odd, 60)} where numbers belong."
            )
        else:
            x[:, place] = np.where(_gaps(values), column.fill or 0.0, 0.0 if values.dtype == object else values)
        place += column.width
    return x


def _target_values(
    tables: Mapping[ClientId, DataTable], names: tuple[str, ...], how: Reading
) -> dict[ClientId, Values]:
    """The targets of every client: words, numbers, or several numbers a row."""
    if len(names) > 1:
        for name in names:
            for table in tables.values():
                if table.columns[name].dtype == object:
                    raise CoterieError(
                        f"Column {shown(name)} of {table.where} holds text; several targets are numbers."
                    )
        return {client: np.stack([table.columns[name] for name in names], 1) for client, table in tables.items()}
    values = {client: table.columns[names[0]] for client, table in tables.items()}
    words = [client for client, part in values.items() if part.dtype == object]
    numbers = [client for client in values if client not in words]
    if words and numbers:
        raise CoterieError(
            f"Column {shown(names[0])} holds words in {tables[words[0]].where} and numbers in "
            f"{tables[numbers[0]].where}; write the same labels for all clients."
        )
    if words:
        return values
    if how.task in ("regression", "multilabel") or any(part.dtype != np.int64 for part in values.values()):
        return values
    _refuse_two_writings(tables, names[0])
    different = np.unique(np.concatenate(list(values.values())))
    if len(different) > _FEW_CLASSES and how.task == "auto":
        raise CoterieError(
            f"Column {shown(names[0])} holds {len(different)} different whole numbers, which may be classes or numbers "
            "to predict; say --set task=classification or --set task=regression (task= in Python)."
        )
    if int(different[0]) == 0 and int(different[-1]) < 2 * len(different):
        return values
    return {client: texts(part) for client, part in values.items()}  # classes 1 to 6, or -1 and 1, by their names


def _refuse_two_writings(tables: Mapping[ClientId, DataTable], name: str) -> None:
    """Refuse labels of which one is written as 007 here and as 7 there: are they one class, or two?"""
    padded = {number: text for table in tables.values() for number, text in table.padded.get(name, {}).items()}
    for table in tables.values() if padded else ():
        own = table.padded.get(name, {})
        here = [number for number in np.unique(table.columns[name]).tolist() if number in padded]
        written = [(own.get(number, str(number)), padded[number]) for number in here]
        both = table.doubled.get(name) or next((pair for pair in written if pair[0] != pair[1]), None)
        if both:
            raise CoterieError(
                f"Column {shown(name)} of {table.where} has the label {shown(both[0])}, which is also written "
                f"{shown(both[1])}; write one class in one way, two classes with a letter, such as "
                f"{shown('c' + both[1])}."
            )


def texts(values: Values) -> Values:
    """A column as text; whole numbers are written without a point."""
    if values.dtype == object:
        return values
    made = np.empty(len(values), object)
    made[:] = [str(int(v)) if abs(v) < 1e15 and v == round(v) else str(v) for v in values.tolist()]
    return made

"""Own data from other libraries: DataFrames, torch datasets, Hugging Face datasets and flwr-datasets.

None of these libraries is imported: each is recognised by what its objects can do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.core.errors import UNREADABLE, CoterieError
from coterie.core.samples import ClientId
from coterie.core.settings import check_keywords
from coterie.core.terminal import brief, shown

from .encoding import Reading, by_client, encode, target_columns
from .labels import ClientArrays
from .own import OwnOptions, OwnPopulation, described, from_arrays
from .schema import Missing
from .tables import DataTable, as_table, listed

_OF_TABLES = ("target", "client", "ignore", "missing")


class TableOptions(OwnOptions, total=False):
    """What can be said of tables, beside what can be said of all own data."""

    target: str | None
    client: str | None
    ignore: Sequence[str]
    missing: Missing


def from_frames(clients: Mapping[ClientId, Any], **options: Unpack[TableOptions]) -> OwnPopulation:
    """A population of DataFrames (pandas, polars), tables of pyarrow or mappings of columns, one a client.

    `target` is the column to predict (several by commas); without it, the only one of target, label and y. All other
    columns are inputs, but for those that `ignore` names. Columns of text become one 0/1 input for each of their
    values. `missing` says what to do about missing values: "refuse" them, fill in the "mean" of the column over all
    clients' training rows, or "drop" such rows. For the other options see `from_arrays`.
    """
    check_keywords("from_frames", TableOptions, options)
    if not clients:
        raise CoterieError("There is no client; give at least one with its table.")
    if options.get("client"):
        raise CoterieError("client names a column of one table for all clients; leave it out, or use from_table.")
    return _from_tables({c: as_table(frame, f"the table of client {c}") for c, frame in clients.items()}, options)


def from_table(table: Any, **options: Unpack[TableOptions]) -> OwnPopulation:
    """A population of one DataFrame (or other table) for all clients; its column `client` names them.

    For the other options see `from_frames`.
    """
    check_keywords("from_table", TableOptions, options)
    column = options.get("client")
    if not column:
        raise CoterieError('Say which column names the clients, such as client="hospital".')
    return _from_tables(by_client(as_table(table, "the table"), column), options)


def from_datasets(clients: Any, *, inputs: str | None = None, **options: Unpack[TableOptions]) -> OwnPopulation:
    """A population of datasets, one a client, or a pair of them (training, test).

    They are torch datasets of (input, label) pairs, or Hugging Face datasets, whose columns `inputs` and `target` are
    taken (or all columns, if they hold one number or word a row, as `from_frames` does). Instead of a mapping of
    clients it may be a flwr-datasets FederatedDataset, or one of its partitioners: every partition is a client. Each
    dataset is read once, now; for the other options see `from_arrays`.
    """
    check_keywords("from_datasets", TableOptions, options)
    given = _partitions(clients)
    if not given:
        raise CoterieError("There is no client; give at least one with its dataset.")
    pairs = {client: value if isinstance(value, tuple) else (value,) for client, value in given.items()}
    for client, pair in pairs.items():
        if len(pair) not in (1, 2):
            raise CoterieError(f"Client {client} needs a dataset, or a pair of them (training, test).")
    first = next(iter(pairs.values()))[0]
    if not _has_columns(first):
        if inputs is not None:
            raise CoterieError("inputs names a column, and these datasets have none; leave it out.")
        plain = unwrapped(options, "these datasets have no columns")
        return from_arrays(
            {client: _joined([_pairs(client, one) for one in pair]) for client, pair in pairs.items()}, **plain
        )
    names = list(first.column_names)
    target = target_columns(DataTable({name: np.zeros(1) for name in names}, "The dataset"), options.get("target"))[0]
    ignored = {target, *options.get("ignore", ())}
    rest = [name for name in names if name not in ignored]
    chosen = inputs or (rest[0] if len(rest) == 1 else None)
    if chosen is None:
        if any(len(pair) > 1 for pair in pairs.values()):
            raise CoterieError(f"Say which column is the input: inputs= one of {listed(rest)}.")
        return _from_tables({c: as_table(pair[0], f"the dataset of client {c}") for c, pair in pairs.items()}, options)
    if chosen not in names:
        raise CoterieError(f"The datasets have no column {shown(chosen)}; their columns are {listed(names)}.")
    arrays = {c: _joined([_columns(c, one, chosen, target) for one in pair]) for c, pair in pairs.items()}
    words = getattr(getattr(first, "features", {}).get(target), "names", None)
    plain = unwrapped(options)
    if not words:
        return from_arrays(arrays, **plain)
    plain["classes"] = len(words)
    return described(from_arrays(arrays, **plain), class_names=tuple(map(str, words)))


def reading(options: TableOptions) -> Reading:
    """What the options say of tables."""
    return Reading(
        target=options.get("target"),
        client=options.get("client"),
        ignore=tuple(options.get("ignore", ())),
        missing=options.get("missing", "refuse"),
        tokens=options.get("layout") == "tokens",
        task=options.get("task", "auto"),
    )


def unwrapped(options: TableOptions, why: str = "") -> OwnOptions:
    """The options that are not of tables alone; where `why` says that there are none, the others are refused."""
    given = [name for name in _OF_TABLES if options.get(name) not in (None, (), "refuse")]
    if why and given:
        raise CoterieError(f"{', '.join(given)} says something about tables, and {why}; leave it out.")
    return {key: value for key, value in options.items() if key not in _OF_TABLES}  # type: ignore[return-value]


def _from_tables(tables: Mapping[ClientId, DataTable], options: TableOptions) -> OwnPopulation:
    if options.get("layout") not in (None, "rows", "tokens"):
        raise CoterieError(
            f"A table holds rows or tokens, not {options.get('layout')}; correct layout, or leave it out."
        )
    how = reading(options)
    encoded = encode(tables, how, options.get("seed", 0))
    made = from_arrays(encoded.arrays, **unwrapped(options))
    return described(
        made, columns=encoded.columns, target=",".join(encoded.targets), client=how.client or "", missing=how.missing
    )


def _partitions(clients: Any) -> dict[ClientId, Any]:
    """Every client's dataset; those of flwr-datasets are its partitions."""
    if isinstance(clients, Mapping):
        return dict(clients)
    load: Callable[..., Any] | None = getattr(clients, "load_partition", None)
    if load is None:
        raise CoterieError("Give a dataset for each client by name, or a FederatedDataset of flwr-datasets.")
    count = getattr(clients, "num_partitions", None)
    if count is None:
        partitioners: Mapping[str, Any] = getattr(clients, "partitioners", {})
        if len(partitioners) != 1:
            raise CoterieError(
                f"The FederatedDataset has {len(partitioners)} partitioners; give the one whose partitions are the "
                'clients, such as federated.partitioners["train"].'
            )
        split, partitioner = next(iter(partitioners.items()))
        first = clients.load_partition(0, split)  # its partitioner has no data before
        others = {str(number): clients.load_partition(number, split) for number in range(1, partitioner.num_partitions)}
        return {"0": first, **others}
    return {str(number): load(number) for number in range(count)}


def _has_columns(dataset: Any) -> bool:
    return hasattr(dataset, "column_names") and hasattr(dataset, "__getitem__")


def _columns(client: ClientId, dataset: Any, inputs: str, target: str) -> tuple[Any, Any]:
    """Two columns of a Hugging Face dataset as arrays: pictures, lists or numbers, and labels."""
    missing = [name for name in (inputs, target) if name not in dataset.column_names]
    if missing:
        raise CoterieError(
            f"The dataset of client {client} has no column {shown(missing[0])}; give all the same columns."
        )
    rows = dataset[:]
    x, y = list(rows[inputs]), list(rows[target])
    if any(isinstance(value, str) for value in x[:1]):
        raise CoterieError(f'Column {shown(inputs)} holds text; turn it into token ids first, and say layout="tokens".')
    return _stacked(client, x), y if any(isinstance(value, str) for value in y) else np.asarray(y)


def _stacked(client: ClientId, values: Sequence[Any]) -> npt.NDArray[Any]:
    """Values of one shape as one array."""
    if not values:
        raise CoterieError(f"Client {client} has no samples; leave it out or give it some.")
    try:
        arrays = [np.asarray(value) for value in values]
        shapes = {array.shape for array in arrays}
        if len(shapes) > 1:
            raise ValueError(f"shapes {listed(map(str, sorted(shapes)))}")
        return np.stack(arrays)
    except UNREADABLE as problem:
        raise CoterieError(
            f"The inputs of client {client} do not have one shape ({brief(str(problem), 200)}); pad or resize them."
        ) from problem


def _joined(parts: Sequence[tuple[Any, Any]]) -> ClientArrays:
    return (*parts[0], *parts[1]) if len(parts) == 2 else parts[0]


def _pairs(client: ClientId, dataset: Any) -> tuple[Tensor, Any]:
    """All pairs of a torch dataset as two tensors."""
    length: Callable[[], int] | None = getattr(dataset, "__len__", None)
    if length is None:
        raise CoterieError(f"The dataset of client {client} has no length; give one that can be indexed.")
    pairs = [dataset[i] for i in range(length())]
    if not pairs:
        raise CoterieError(f"Client {client} has no samples; leave it out or give it some.")
    try:
        inputs = [_as_tensor(pair[0]) for pair in pairs]
        labels = [pair[1] for pair in pairs]
        words = any(isinstance(label, str) for label in labels)
        x, y = (
            torch.stack(inputs),
            labels if words else torch.as_tensor(np.asarray([np.asarray(one) for one in labels])),
        )
    except (TypeError, ValueError, RuntimeError, IndexError) as problem:
        raise CoterieError(
            f"The dataset of client {client} does not give pairs of an input and a label of one shape each; put that "
            f"right ({problem})."
        ) from problem
    return x, y


def _as_tensor(value: Any) -> Tensor:
    """A tensor as it is; a picture or an array copied, for it may be read-only."""
    return value if isinstance(value, Tensor) else torch.as_tensor(np.array(value))

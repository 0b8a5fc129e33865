"""New samples for a run that is over, read as its own data were: arrays, tables, or whatever files `--data` takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.samples import ClientId, Samples
from coterie.core.targets import TaskKind

from .checks import as_tensor, checked_inputs
from .encoding import new_inputs as table_inputs
from .encoding import target_columns, texts
from .folders import client_file, from_path, npz_entries
from .labels import are_words, class_numbers
from .schema import Layout, Schema
from .sources.images import decode, images_in
from .sources.leaf import is_leaf
from .tables import TABLE_ENDINGS, DataTable, as_table, is_frame, read_table
from .targets import settle

_HELP = "give a .csv, .parquet or .npz file, an image or a folder of images"


def new_inputs(x: Any, schema: Schema, client: ClientId) -> Tensor:
    """Raw inputs in the form that the run's own had: an array, a table, or what is in a file."""
    found = _found(x, schema, client)
    if isinstance(found, DataTable):
        return _fitting(table_inputs(found, schema), schema, client)
    return _fitting(_laid_out(found[0], schema, client), schema, client)


def new_samples(x: Any, y: Any, schema: Schema, kind: TaskKind, client: ClientId) -> Samples:
    """Inputs with their targets; without `y` the targets are where the inputs are: a column, or an entry of a file."""
    found = _found(x, schema, client)
    inputs = new_inputs(found if isinstance(found, DataTable) else x, schema, client)
    if y is None:
        y = _targets_in(found, schema, client)
    elif isinstance(y, (str, Path)):
        raise CoterieError(f"The targets of client {client} are a path; give x and y in one file, and leave y out.")
    labels = _numbers(y, schema, client)
    if len(labels) != len(inputs):
        raise CoterieError(f"Client {client} has {len(inputs)} inputs and {len(labels)} targets; give one for each.")
    samples = Samples(inputs, as_tensor(client, "targets", labels))
    _, parts = settle({client: (samples, samples)}, kind, schema.classes)
    return parts[client][0]


def _found(x: Any, schema: Schema, client: ClientId) -> DataTable | tuple[Any, Any]:
    """A table, or inputs and targets; these are None where there are none."""
    if isinstance(x, DataTable):
        return x
    if isinstance(x, (str, Path)):
        return _in_file(Path(x), schema, client)
    if is_frame(x):
        return as_table(x, f"the table of client {client}")
    return x, None


def _in_file(path: Path, schema: Schema, client: ClientId) -> DataTable | tuple[Any, Any]:
    if path.is_dir():
        own = client_file(path, client)
        if own is not None:
            return _in_file(own, schema, client)
        if is_leaf(path):
            data = from_path(path, image_size=schema.image_size).client(client)
            return torch.cat([data.train.x, data.test.x]), torch.cat([data.train.y, data.test.y])
        return _images(path, images_in(path), schema)
    if not path.is_file():
        raise CoterieError(f"There is no file {path}; {_HELP}.")
    ending = path.suffix.lower()
    if ending in TABLE_ENDINGS:
        return read_table(path)
    return _entries(path) if ending == ".npz" else _images(path, [path], schema)


def _entries(path: Path) -> tuple[Any, Any]:
    """x of an .npz file, and y where it has one."""
    held = npz_entries(path)
    if "x" not in held:
        raise CoterieError(f"{path} holds {', '.join(sorted(held)) or 'nothing'}; give it an entry x.")
    return held["x"], held.get("y")


def _images(path: Path, files: list[Path], schema: Schema) -> tuple[Any, Any]:
    """Image files as the run's were read; the folder that an image is in names its class."""
    if not files or len(schema.shape) != 3:
        what = "no images" if not files else "no table, and the inputs of this run are not images"
        raise CoterieError(f"{path} holds {what}; {_HELP}.")
    size = schema.image_size or (schema.shape[1] if schema.shape[1] == schema.shape[2] else None)
    arrays = [decode(file, _HELP, size=size, grey=schema.shape[0] == 1) for file in files]
    return np.stack(arrays), np.array([file.parent.name for file in files], object)


def _laid_out(x: Any, schema: Schema, client: ClientId) -> Tensor:
    given = as_tensor(client, "inputs", x)
    if not given.dim() or not given.numel():
        raise CoterieError(f"Client {client} has inputs of shape {tuple(given.shape)}; give a row for each sample.")
    layout: Any = schema.layout if schema.layout in get_args(Layout) else None
    if tuple(given.shape[1:]) == schema.shape and layout == "images-last":
        layout = "images"  # laid out already as the model takes them
    return checked_inputs(client, given, layout)


def _fitting(x: Tensor, schema: Schema, client: ClientId) -> Tensor:
    """Inputs that the run's models take, or one sentence."""
    if tuple(x.shape[1:]) == schema.shape:
        return x
    if x.dim() == 2 and len(schema.shape) == 1:
        raise CoterieError(
            f"The inputs of client {client} have {x.shape[1]} features and this run's have {schema.shape[0]}; give the "
            "same features in the same order."
        )
    raise CoterieError(
        f"The inputs of client {client} have shape {tuple(x.shape)} and this run's are "
        f"[n, {', '.join(map(str, schema.shape))}]; give such ones."
    )


def _targets_in(found: DataTable | tuple[Any, Any], schema: Schema, client: ClientId) -> Any:
    if isinstance(found, DataTable):
        names = target_columns(found, schema.target or None)
        columns = [found.column(name) for name in names]
        return columns[0] if len(columns) == 1 else np.stack(columns, 1)
    if found[1] is None:
        raise CoterieError(f"Client {client} has inputs and no targets; give y too.")
    return found[1]


def _numbers(y: Any, schema: Schema, client: ClientId) -> npt.NDArray[Any] | Tensor:
    """Targets as numbers; the names of classes become the numbers that they had in the run."""
    if isinstance(y, Tensor):
        y = y.detach().cpu().numpy()
    values = np.asarray(y)
    if not schema.class_names:
        if are_words(y):
            raise CoterieError(f"The targets of client {client} are words and this run's were numbers; give numbers.")
        return values
    words = values if are_words(y) else texts(values)
    return class_numbers(np.asarray(words, object), schema.class_names, client)

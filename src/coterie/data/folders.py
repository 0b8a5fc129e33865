"""Own data from files: a folder with one file a client, one table for all, LEAF's folders, folders of images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack, get_args

import numpy as np
import numpy.typing as npt

from coterie.core.errors import CoterieError
from coterie.core.samples import ClientData, ClientId, Normalise, Population
from coterie.core.settings import check_keywords
from coterie.core.terminal import shown

from .adapters import TableOptions, from_frames, from_table, reading, unwrapped
from .checks import checked_classes
from .encoding import encode
from .labels import ClientArrays, are_words, number_said, said_classes
from .own import OwnPopulation, chosen_unseen, described, from_arrays, in_order
from .partition import by_owner
from .pool import rows_of
from .population import LazyPopulation
from .scaling import NormaliseName, moments, pooled
from .schema import Column, Layout, Schema
from .sources.files import missing
from .sources.images import has_domain_level, read_images
from .sources.leaf import is_leaf, read_leaf
from .tables import TABLE_ENDINGS, DataTable, read_table
from .users import leaf_users

_HELP = (
    "give a folder of <client>.npz (x, y or x_train, y_train, x_test, y_test), <client>.csv or <client>.parquet files, "
    "one such table with a column that names the clients (--client-column), a LEAF folder (data/train/*.json), or "
    "images as <client>/<class>/<image>"
)
_ENDINGS = (".npz", *TABLE_ENDINGS)


def from_path(path: Path | str, *, image_size: int | None = None, **options: Unpack[TableOptions]) -> Population:
    """A population from files.

    A folder of <client>.npz, <client>.csv or <client>.parquet files; one CSV or Parquet file whose column `client`
    names the clients; a LEAF folder; or images as <client>/<class>/<image>. For the options see `from_arrays` and, of
    tables, `from_frames`. .npz files may name their layout and their group themselves (entries `layout` and `group`).
    """
    check_keywords("from_path", TableOptions, options)
    place = Path(path)
    if place.is_file() and place.suffix.lower() in TABLE_ENDINGS:
        return _from_one(place, options)
    if not place.is_dir():
        raise CoterieError(
            f"There is no folder {place}; {_HELP}." if not place.exists() else f"{place} is a file; {_HELP}."
        )
    files = _client_files(place)
    if files and next(iter(files.values())).suffix.lower() != ".npz":
        _check_no_client(options, place)
        return from_frames({client: read_table(file) for client, file in files.items()}, **options)
    arrays = unwrapped(options, f"{place} holds no tables")
    if files:
        return _from_npz(files, arrays)
    if is_leaf(place):
        return _from_leaf(place, arrays, image_size)
    if has_domain_level(place):
        return _from_images(place, arrays, image_size)
    raise missing("client data", place, _HELP)


def from_file(path: Path | str, name: ClientId, **options: Unpack[TableOptions]) -> OwnPopulation:
    """A population of one client: an .npz, .csv or .parquet file, or a folder of images as <class>/<image>."""
    check_keywords("from_file", TableOptions, options)
    file = Path(path)
    if file.is_dir():
        found = read_images(file, "give images as <class>/<image>", domains=False)
        arrays: ClientArrays = (found.samples.x, np.array(found.classes, object)[found.samples.y.numpy()])
        return from_arrays({name: arrays}, **unwrapped(options, f"{file} holds no tables"))
    if not file.is_file():
        raise CoterieError(
            f"There is no file {file} with the data of client {name}; give an .npz, .csv or .parquet file, or a "
            "folder of images."
        )
    if file.suffix.lower() in TABLE_ENDINGS:
        _check_no_client(options, file)
        return _table_of_one(read_table(file), name, options, None)
    given, _, layout = _read_npz(file)
    plain = unwrapped(options, f"{file} is not a table")
    return from_arrays({name: given}, **_alone({**plain, "layout": plain.get("layout") or layout}, given))


def _table_of_one(
    table: DataTable, name: ClientId, options: TableOptions, agreed: tuple[Column, ...] | None
) -> OwnPopulation:
    """One client's table; with `agreed`, in columns that other clients have a say in."""
    how = reading(options)
    encoded = encode({name: table}, how, options.get("seed", 0), agreed)
    made = from_arrays({name: encoded.arrays[name]}, **_alone(unwrapped(options), encoded.arrays[name]))
    made = described(made, columns=encoded.columns, target=",".join(encoded.targets), missing=how.missing)
    return replace(made, reread=lambda columns: _table_of_one(table, name, options, columns))


def _alone(options: Any, arrays: ClientArrays) -> Any:
    """Options for one client alone, who may lack the first classes: that labels begin with 0 is for all to see."""
    labels = [np.asarray(y) for y in arrays[1::2] if not are_words(y)]
    whole = [int(y.max()) for y in labels if y.size and y.dtype.kind in "iu"]
    return {**options, "classes": max(0, *whole) + 1} if whole else options


def _from_one(path: Path, options: TableOptions) -> OwnPopulation:
    if not options.get("client"):
        raise CoterieError(
            f"{path} is one table; say which of its columns names the clients: --client-column NAME, or client= in "
            f"Python. Or {_HELP}."
        )
    return from_table(read_table(path), **options)


def _check_no_client(options: TableOptions, path: Path) -> None:
    if options.get("client"):
        raise CoterieError(
            f"A client column belongs to one table of all clients, and {path} has the data of each client apart; leave "
            "--client-column out."
        )


def _client_files(folder: Path) -> dict[ClientId, Path]:
    """The file of every client, all of one kind."""
    found = [file for file in sorted(folder.iterdir()) if file.suffix.lower() in _ENDINGS and file.is_file()]
    endings = sorted({file.suffix.lower() for file in found})
    if len(endings) > 1:
        raise CoterieError(
            f"{folder} holds {' and '.join(endings)} files; keep those of one kind, one for each client."
        )
    files: dict[ClientId, Path] = {}
    for file in found:
        if file.stem in files:
            raise CoterieError(f"{folder} holds two files of client {file.stem}; keep one of them.")
        files[file.stem] = file
    return files


def files_of_clients(folder: Path) -> dict[ClientId, Path]:
    """The file, or the folder of images, of every client in a folder that has one for each."""
    return _client_files(folder) or {place.name: place for place in sorted(folder.iterdir()) if place.is_dir()}


def client_file(folder: Path, client: ClientId) -> Path | None:
    """The file of one client in a folder that has one for each."""
    return _client_files(folder).get(client)


def _from_npz(files: Mapping[ClientId, Path], options: Any) -> OwnPopulation:
    arrays: dict[ClientId, ClientArrays] = {}
    groups: dict[ClientId, int | str] = {}
    layout: Layout | None = options.get("layout")
    for client, path in files.items():
        arrays[client], group, its_layout = _read_npz(path)
        layout = layout or its_layout
        if group is not None:
            groups[client] = group
    return from_arrays(arrays, **{"groups": groups or None, **options, "layout": layout})


def npz_entries(path: Path) -> dict[str, npt.NDArray[Any]]:
    """All arrays of an .npz file."""
    try:
        with np.load(path, allow_pickle=False) as body:
            return {name: body[name] for name in body.files}
    except Exception as problem:  # a damaged archive can fail in any way at all
        # not in numpy's words: they advise to load pickles
        raise CoterieError(
            f"{path} cannot be read: it is damaged, or not an .npz file of plain arrays; "
            "write it again with numpy.savez."
        ) from problem


def _read_npz(path: Path) -> tuple[ClientArrays, int | str | None, Layout | None]:
    """One client's arrays, and its group and layout where the file names them."""
    held = npz_entries(path)
    names = [n for n in (("x_train", "y_train", "x_test", "y_test"), ("x", "y")) if set(n) <= set(held)]
    if not names:
        raise CoterieError(
            f"{path} holds {', '.join(sorted(held)) or 'nothing'}; give x and y, or x_train, y_train, x_test and "
            "y_test."
        )
    values = [held[name] for name in names[0]]
    group = None if "group" not in held else held["group"].item() if held["group"].size == 1 else "?"
    layout = str(held["layout"]) if "layout" in held else None
    if layout not in (None, *get_args(Layout)):
        raise CoterieError(
            f"{path} has the layout {shown(layout)}; write one of {', '.join(get_args(Layout))}, or none."
        )
    arrays = (values[0], values[1]) if len(values) == 2 else (values[0], values[1], values[2], values[3])
    return arrays, group, layout  # type: ignore[return-value]


class _OnDemand(Mapping[ClientId, ClientData]):
    """The clients of a population whose data are made when they are asked for, and not kept."""

    def __init__(self, population: LazyPopulation) -> None:
        self._population = population
        self._ids = dict.fromkeys((*population.ids, *population.unseen_ids))

    def __getitem__(self, client: ClientId) -> ClientData:
        return self._population.client(client)

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)


def _from_leaf(folder: Path, options: Any, image_size: int | None) -> OwnPopulation:
    leaf = read_leaf(folder, _HELP)
    users = leaf_users(leaf, image_size)
    seed, said = options.get("seed", 0), number_said(said_classes(options.get("classes")))
    classes = checked_classes([leaf.train.samples.y, leaf.test.samples.y], said)
    made = users.population(seed, normalise=Normalise(), classes=classes, validation=options.get("validation", 0.0))
    unseen = chosen_unseen(made.ids, options.get("unseen", ()), seed)
    shape, dtype = tuple(made.shape), leaf.train.samples.x.dtype
    how: Normalise | NormaliseName = options.get("normalise") or "auto"
    if not isinstance(how, Normalise):
        told = [moments(made.client(client).train.x) for client in made.ids if client not in unseen]
        how = pooled(told, how, shape, dtype)
    schema = Schema(
        shape=shape,
        classes=classes,
        layout="images" if len(shape) == 3 else "rows",
        dtype=str(dtype).removeprefix("torch."),
        normalise=how,
        image_size=image_size,
    )
    return OwnPopulation(
        clients=_OnDemand(made),
        shape=shape,
        classes=classes,
        normalise=how,
        unseen_ids=(*unseen, *made.unseen_ids),
        schema=schema,
        drifts=in_order(options.get("drift", ())),
        seed=seed,
    )


def _from_images(folder: Path, options: Any, image_size: int | None) -> OwnPopulation:
    found = read_images(folder, _HELP, domains=True, size=image_size)
    names = np.array(found.classes, object)
    arrays: dict[ClientId, ClientArrays] = {}
    for number, rows in by_owner(found.domain.numpy()).items():
        part = rows_of(found.samples, rows)
        arrays[found.domains[number]] = (part.x, names[part.y.numpy()])
    return described(from_arrays(arrays, **options), image_size=image_size)

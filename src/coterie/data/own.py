"""The user's own data as a population: arrays, torch datasets, or a folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from coterie.core.errors import CoterieError
from coterie.core.rng import rng
from coterie.core.samples import (
    ClientData,
    ClientId,
    Normalise,
    Population,
    Samples,
)
from coterie.core.targets import TargetScale, TaskKind, TaskName
from coterie.core.terminal import shown

from .checks import checked_classes, checked_groups, checked_samples, measured
from .labels import ClientArrays, named_classes
from .partition import by_owner
from .pool import rows_of
from .population import LazyPopulation, Parts
from .schema import Layout, Schema
from .sources.files import missing
from .sources.images import has_domain_level, read_images
from .sources.leaf import is_leaf, read_leaf
from .targets import settle
from .users import leaf_users

_TEST_FRACTION = 0.2
_LAYOUTS: dict[int, Layout] = {2: "rows", 3: "series", 4: "images"}
_HELP = (
    "give a folder of <client>.npz files (x, y or x_train, y_train, x_test, y_test), a LEAF folder "
    "(data/train/*.json), or images as <domain>/<class>/<image>"
)


@dataclass(frozen=True, eq=False)
class OwnPopulation:
    """Clients with arrays of their own."""

    clients: Mapping[ClientId, ClientData]
    shape: tuple[int, ...]
    classes: int
    normalise: Normalise
    groups: Mapping[ClientId, int] = field(default_factory=dict)
    unseen_ids: tuple[ClientId, ...] = ()
    schema: Schema | None = None
    """How the data were read."""
    kind: TaskKind = "classification"
    target_scale: TargetScale | None = None

    @property
    def ids(self) -> Sequence[ClientId]:
        """Every client that takes part, in the order given."""
        return tuple(client for client in self.clients if client not in self.unseen_ids)

    def client(self, client: ClientId, round: int = 0) -> ClientData:
        """The data of one client; they do not drift."""
        if client not in self.clients:
            raise CoterieError(f"There is no client {client!r}; the clients are {_few(list(self.clients))}.")
        return self.clients[client]

    def group(self, client: ClientId, round: int = 0) -> int | None:
        """The group the user gave, if any."""
        return self.groups.get(client)

    def labels(self, client: ClientId, round: int = 0) -> Parts:
        """The targets alone."""
        data = self.client(client, round)
        return Parts(data.train.y, data.test.y, None if data.valid is None else data.valid.y)


def from_arrays(
    clients: Mapping[ClientId, ClientArrays],
    *,
    groups: Mapping[ClientId, int | str] | None = None,
    classes: int | None = None,
    normalise: Normalise | None = None,
    seed: int = 0,
    validation: float = 0.0,
    unseen: Sequence[ClientId] = (),
    layout: Layout | None = None,
    task: TaskName = "auto",
) -> OwnPopulation:
    """A population of numpy arrays or tensors, one entry a client.

    Labels are whole numbers from 0, or words: these are numbered in sorted order and remembered (`schema.class_names`).
    Inputs are rows [n, features], images [n, channels, height, width] or, of uint8, [n, height, width]. Where their
    axes could mean something else, `layout` must say it (see `Layout`): "series" are [n, steps, features],
    "images-last" have their channels at the end, "tokens" are whole numbers that the model gets as they are. Float
    inputs are taken as they are; uint8 inputs are scaled to [0, 1] and normalised by the mean and deviation of all
    training images, unless `normalise` says otherwise. `unseen` names clients that never take part in training.

    Targets are classes (integers from 0 up, or words, [n]), several labels a sample (0 and 1, [n, labels]) or numbers
    (floats, [n] or [n, numbers]). Where they do not clearly say which, `task` must.
    """
    if not clients:
        raise CoterieError("There is no client; give at least one with its arrays.")
    if not 0 <= validation < 1:
        raise CoterieError(f"The validation part is {validation}; give a fraction from 0 to below 1.")
    for client, arrays in clients.items():
        if not isinstance(arrays, (tuple, list)) or len(arrays) not in (2, 4):
            raise CoterieError(f"Client {client} needs (x, y) or (x_train, y_train, x_test, y_test).")
    clients, names = named_classes(clients)
    parts = {client: _split(client, arrays, seed, layout) for client, arrays in clients.items()}
    first = next(iter(parts.values()))[0]
    for client, (train, test) in parts.items():
        for part in (train, test):
            if part.x.shape[1:] != first.x.shape[1:] or part.x.dtype != first.x.dtype:
                raise CoterieError(
                    f"Client {client} has inputs {_kind(part.x)} and others have {_kind(first.x)}; bring all to one "
                    "shape and type."
                )
    strangers = [client for client in unseen if client not in clients]
    if strangers or len(set(unseen)) == len(clients):
        raise CoterieError(f"unseen names {_few(list(unseen))}; name some of the clients, and not all of them.")
    goal, parts = settle(parts, task, len(names) or classes)
    data = {client: _validated(client, train, test, validation, seed) for client, (train, test) in parts.items()}
    schema = Schema(
        shape=tuple(first.x.shape[1:]),
        classes=goal.classes,
        task=goal.kind,
        layout=layout or _LAYOUTS[first.x.dim()],
        dtype=str(first.x.dtype).removeprefix("torch."),
        normalise=normalise or measured([one.train.x for one in data.values()]),
        class_names=names,
    )
    return OwnPopulation(
        clients=data,
        shape=schema.shape,
        classes=schema.classes,
        normalise=schema.normalise,
        groups=checked_groups(groups, list(clients)),
        unseen_ids=tuple(unseen),
        schema=schema,
        kind=goal.kind,
        target_scale=goal.scale,
    )


def from_datasets(
    clients: Mapping[ClientId, Dataset[Any] | tuple[Dataset[Any], Dataset[Any]]],
    *,
    groups: Mapping[ClientId, int | str] | None = None,
    classes: int | None = None,
    normalise: Normalise | None = None,
    seed: int = 0,
    validation: float = 0.0,
    unseen: Sequence[ClientId] = (),
    layout: Layout | None = None,
    task: TaskName = "auto",
) -> OwnPopulation:
    """A population of torch datasets of (input, label) pairs, one a client, or a pair of them (training,
    test).

    Each is read once, now; see `from_arrays` for the rest.
    """
    arrays: dict[ClientId, ClientArrays] = {}
    for client, given in clients.items():
        pair = given if isinstance(given, tuple) else (given,)
        parts = [_materialise(client, dataset) for dataset in pair]
        arrays[client] = (*parts[0], *parts[1]) if len(parts) == 2 else parts[0]
    return from_arrays(
        arrays,
        groups=groups,
        classes=classes,
        normalise=normalise,
        seed=seed,
        validation=validation,
        unseen=unseen,
        layout=layout,
        task=task,
    )


def from_path(
    path: Path | str,
    *,
    seed: int = 0,
    validation: float = 0.0,
    image_size: int | None = None,
    layout: Layout | None = None,
    task: TaskName = "auto",
) -> Population:
    """A population from a folder: <client>.npz files, a LEAF folder, or images as <domain>/<class>/<image>.

    Each domain of an image folder is one client, and a group of its own. `layout` is that of `from_arrays`, for .npz
    files that do not say it themselves (an entry `layout` beside x and y), and so is `task`.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise CoterieError(f"There is no folder {folder}; {_HELP}.")
    if any(folder.glob("*.npz")):
        return _from_npz(folder, seed, validation, layout, task)
    if is_leaf(folder):
        return _from_leaf(folder, seed, validation, image_size)
    if has_domain_level(folder):
        return _from_images(folder, seed, validation, image_size)
    raise missing("client data", folder, _HELP)


def from_file(path: Path | str, client: ClientId, task: TaskName = "auto") -> OwnPopulation:
    """A population of one client whose data are one .npz file."""
    file = Path(path)
    if not file.is_file():
        raise CoterieError(f"There is no file {file} with the data of client {client}; give an .npz file.")
    arrays, _, layout = _read_npz(file)
    # one client alone may lack the first classes; that the labels begin with 0 is for all of them together to see
    highest = max((int(np.max(y)) for y in arrays[1::2] if np.size(y) and np.asarray(y).dtype.kind in "iu"), default=0)
    return from_arrays({client: arrays}, classes=max(highest, 0) + 1, layout=layout, task=task)


def _from_npz(folder: Path, seed: int, validation: float, layout: Layout | None, task: TaskName) -> OwnPopulation:
    arrays: dict[ClientId, ClientArrays] = {}
    groups: dict[ClientId, int | str] = {}
    for path in sorted(folder.glob("*.npz")):
        arrays[path.stem], group, its_layout = _read_npz(path)
        layout = layout or its_layout
        if group is not None:
            groups[path.stem] = group
    return from_arrays(arrays, groups=groups or None, seed=seed, validation=validation, layout=layout, task=task)


def _read_npz(path: Path) -> tuple[ClientArrays, int | str | None, Layout | None]:
    """One client's arrays, and its group and layout where the file names them."""
    try:
        with np.load(path, allow_pickle=False) as body:
            held = {name: body[name] for name in body.files}
    except Exception as problem:  # a damaged archive can fail in any way at all
        # not in numpy's words: they advise to load pickles
        raise CoterieError(
            f"{path} cannot be read: it is damaged, or not an .npz file of plain arrays; "
            "write it again with numpy.savez."
        ) from problem
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


def _from_leaf(folder: Path, seed: int, validation: float, image_size: int | None) -> LazyPopulation:
    leaf = read_leaf(folder, _HELP)
    users = leaf_users(leaf, image_size)
    return users.population(
        seed,
        normalise=measured([leaf.train.samples.x]),
        classes=checked_classes([leaf.train.samples.y, leaf.test.samples.y], None),
        validation=validation,
    )


def _from_images(folder: Path, seed: int, validation: float, image_size: int | None) -> OwnPopulation:
    found = read_images(folder, _HELP, domains=True, size=image_size)
    arrays: dict[ClientId, ClientArrays] = {}
    for number, rows in by_owner(found.domain.numpy()).items():
        part = rows_of(found.samples, rows)
        arrays[found.domains[number]] = (part.x, part.y)
    groups = {client: number for number, client in enumerate(arrays)}
    made = from_arrays(arrays, groups=groups, classes=len(found.classes), seed=seed, validation=validation)
    assert made.schema is not None
    return replace(made, schema=replace(made.schema, class_names=found.classes, image_size=image_size))


def _split(client: ClientId, arrays: ClientArrays, seed: int, layout: Layout | None) -> tuple[Samples, Samples]:
    """Training and test samples, with a fifth split off where there are no test samples."""
    train = checked_samples(client, arrays[0], arrays[1], layout)
    if len(arrays) == 4:
        return train, checked_samples(client, arrays[2], arrays[3], layout)
    if len(train) < 2:
        raise CoterieError(f"Client {client} has one sample and needs two, one of them to test; give it more.")
    order = rng(seed, "own-test", client).permutation(len(train))
    cut = max(1, round(_TEST_FRACTION * len(train)))
    return rows_of(train, np.sort(order[cut:])), rows_of(train, np.sort(order[:cut]))


def _validated(client: ClientId, train: Samples, test: Samples, validation: float, seed: int) -> ClientData:
    if not validation or len(train) < 2:
        return ClientData(train, test)
    order = rng(seed, "validation", client).permutation(len(train))
    cut = min(max(1, round(validation * len(train))), len(train) - 1)
    return ClientData(rows_of(train, np.sort(order[cut:])), test, rows_of(train, np.sort(order[:cut])))


def _materialise(client: ClientId, dataset: Dataset[Any]) -> tuple[Tensor, Tensor]:
    """All pairs of a dataset as two tensors."""
    length: Callable[[], int] | None = getattr(dataset, "__len__", None)
    if length is None:
        raise CoterieError(f"The dataset of client {client} has no length; give one that can be indexed.")
    pairs = [dataset[i] for i in range(length())]
    if not pairs:
        raise CoterieError(f"Client {client} has no samples; leave it out or give it some.")
    try:
        inputs = [_as_tensor(pair[0]) for pair in pairs]
        x, y = torch.stack(inputs), torch.as_tensor(np.asarray([np.asarray(pair[1]) for pair in pairs]))
    except (TypeError, ValueError, RuntimeError, IndexError) as problem:
        raise CoterieError(
            f"The dataset of client {client} does not give pairs of an input and a label of one shape each; put that "
            f"right ({problem})."
        ) from problem
    return x, y


def _as_tensor(value: Any) -> Tensor:
    """A tensor as it is; a picture or an array copied, for it may be read-only."""
    return value if isinstance(value, Tensor) else torch.as_tensor(np.array(value))


def _kind(x: Tensor) -> str:
    return f"{tuple(x.shape[1:])} of {str(x.dtype).removeprefix('torch.')}"


def _few(names: Sequence[str]) -> str:
    """The first few names of a list."""
    return ", ".join(map(repr, names[:5])) + (", ..." if len(names) > 5 else "")

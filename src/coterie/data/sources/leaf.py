"""LEAF's JSON folders: data/{train,test}/*.json with users, num_samples and user_data {x, y}."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from coterie.core.errors import UNREADABLE
from coterie.core.samples import Samples
from coterie.core.terminal import brief

from .files import corrupt, missing

Rows = npt.NDArray[np.int64]

_SMALLEST_IMAGE = 64
"""So many numbers a row, or more, are a grey image where they are a square number and all in [0, 1]."""


_HIGHEST_LABEL = (1 << 31) - 1


@dataclass(frozen=True)
class LeafPart:
    """One part (training or test): all users' samples one after another, and who owns which rows."""

    samples: Samples
    owners: dict[str, Rows]


@dataclass(frozen=True)
class Leaf:
    """A LEAF folder. A user may be in one part only (LEAF can split by user)."""

    train: LeafPart
    test: LeafPart


@dataclass(frozen=True)
class NamedPart:
    """A part whose x are names of image files (CelebA)."""

    names: tuple[str, ...]
    labels: Rows
    owners: dict[str, Rows]


def is_leaf(folder: Path) -> bool:
    """Whether the folder looks like LEAF's."""
    return any((_data(folder) / "train").glob("*.json"))


def read_leaf(folder: Path, how: str) -> Leaf:
    """All users of a LEAF folder whose x are numbers.

    Rows that are grey images (FEMNIST: 784 numbers k/255) become uint8 [1, side, side]; all others stay float
    [features].
    """
    try:
        parts = [_part(folder, part, how, as_bytes=True) for part in ("train", "test")]
    except _NotBytesError:
        parts = [_part(folder, part, how, as_bytes=False) for part in ("train", "test")]
    train, test = parts
    if train.samples.x.shape[1:] != test.samples.x.shape[1:]:
        raise corrupt(_data(folder) / "test", "its rows are longer or shorter than those of training", how)
    return Leaf(train, test)


def read_leaf_names(folder: Path, how: str) -> tuple[NamedPart, NamedPart]:
    """Training and test part of a LEAF folder whose x are names of image files."""
    train, test = (_named_part(folder, part, how) for part in ("train", "test"))
    return train, test


class _NotBytesError(Exception):
    """Some x does not fit into bytes: all must stay floats."""


def _part(folder: Path, part: str, how: str, *, as_bytes: bool) -> LeafPart:
    blocks: list[npt.NDArray[Any]] = []
    labels: list[Any] = []
    owners: dict[str, Rows] = {}
    for path, user, x, y in _users(folder, part, how):
        block = _numbers(path, user, x, how)
        if blocks and block.shape[1] != blocks[0].shape[1]:
            why = f"user {user} has {block.shape[1]} numbers a row and others have {blocks[0].shape[1]}"
            raise corrupt(path, why, how)
        owners[user] = np.arange(len(labels), len(labels) + len(y), dtype=np.int64)
        labels.extend(y)
        blocks.append(_packed(block) if as_bytes else block)
    rows = torch.from_numpy(np.concatenate(blocks))
    side = math.isqrt(rows.shape[1])
    x_all = rows.view(-1, 1, side, side) if as_bytes else rows
    return LeafPart(Samples(x_all, torch.tensor(labels, dtype=torch.int64)), owners)


def _named_part(folder: Path, part: str, how: str) -> NamedPart:
    names: list[str] = []
    labels: list[Any] = []
    owners: dict[str, Rows] = {}
    for path, user, x, y in _users(folder, part, how):
        if not all(isinstance(name, str) for name in x):
            raise corrupt(path, f"the x of user {user} are not names of image files", how)
        owners[user] = np.arange(len(names), len(names) + len(x), dtype=np.int64)
        names.extend(x)
        labels.extend(y)
    return NamedPart(tuple(names), np.asarray(labels, np.int64), owners)


def _numbers(path: Path, user: str, x: list[Any], how: str) -> npt.NDArray[np.float32]:
    try:
        block = np.asarray(x, np.float32)
    except UNREADABLE as problem:
        why = f"the x of user {user} are not rows of equally many numbers"
        raise corrupt(path, why, how) from problem
    if block.ndim != 2 or not block.shape[1] or not np.isfinite(block).all():
        raise corrupt(path, f"the x of user {user} are not rows of finite numbers", how)
    return block


def _packed(block: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Grey images as bytes: floats would take four times the memory for the whole run."""
    width = block.shape[1]
    square = width >= _SMALLEST_IMAGE and math.isqrt(width) ** 2 == width
    if not square or block.min() < 0 or block.max() > 1:
        raise _NotBytesError
    return np.round(block * 255).astype(np.uint8)


def _users(folder: Path, part: str, how: str) -> Iterator[tuple[Path, str, list[Any], list[Any]]]:
    """One user after another, one file in memory at a time. Users without samples are left out."""
    where = _data(folder) / part
    seen: set[str] = set()
    some = False
    for path in sorted(where.glob("*.json")):
        try:
            body = json.loads(path.read_bytes())
            entries = {str(user): body["user_data"][user] for user in body["users"]}
            pairs = {user: (list(entry["x"]), list(entry["y"])) for user, entry in entries.items()}
        except (OSError, *UNREADABLE) as problem:
            why = f"it is no LEAF file: {type(problem).__name__}: {brief(str(problem))}"
            raise corrupt(path, why, how) from problem
        del body, entries
        for user, (x, y) in pairs.items():
            if len(x) != len(y):
                raise corrupt(path, f"user {user} has {len(x)} x and {len(y)} y", how)
            if not all(isinstance(label, int) and 0 <= label <= _HIGHEST_LABEL for label in y):
                raise corrupt(path, f"the y of user {user} are not all whole numbers from 0 to {_HIGHEST_LABEL}", how)
            if user in seen:
                raise corrupt(path, f"user {user} is in two places", how)
            seen.add(user)
            if x:
                some = True
                yield path, user, x, y
    if not some:
        raise missing("user with samples in any *.json file", where, how)


def _data(folder: Path) -> Path:
    """LEAF keeps everything in a folder `data`; a user may point at that one too."""
    return folder / "data" if (folder / "data").is_dir() else folder

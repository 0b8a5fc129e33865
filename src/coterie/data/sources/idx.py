"""MNIST's IDX files, packed (.gz) or not: MNIST, Fashion-MNIST and whatever else is laid out like them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from coterie.core.samples import Samples

from .files import Split, contents, corrupt, find, missing

_IMAGES, _LABELS = 3, 1
_UNSIGNED_BYTE = 8


def read_idx(folder: Path, how: str) -> Split:
    """Training and test images [n, 1, height, width] from the four IDX files of a folder."""
    if not folder.is_dir():
        raise missing("folder of IDX files", folder, how)
    return Split(_part(folder, "train", how), _part(folder, "t10k", how))


def read_idx_file(path: Path, axes: int, how: str) -> npt.NDArray[np.uint8]:
    """One IDX file of unsigned bytes that must have this number of axes."""
    raw = contents(path, how)
    header = 4 + 4 * axes
    if len(raw) < header or raw[:2] != b"\0\0" or raw[2] != _UNSIGNED_BYTE or raw[3] != axes:
        raise corrupt(path, f"it is no IDX file of bytes with {axes} axes", how)
    shape = tuple(int(side) for side in np.frombuffer(raw, ">u4", axes, offset=4))
    if len(raw) != header + math.prod(shape):
        raise corrupt(path, f"it promises {math.prod(shape)} values and holds {len(raw) - header}", how)
    return np.frombuffer(raw, np.uint8, offset=header).reshape(shape).copy()


def _part(folder: Path, part: str, how: str) -> Samples:
    images_path = find(folder, _names(part, "images", _IMAGES), how)
    labels_path = find(folder, _names(part, "labels", _LABELS), how)
    images, labels = read_idx_file(images_path, _IMAGES, how), read_idx_file(labels_path, _LABELS, how)
    if len(images) != len(labels):
        raise corrupt(labels_path, f"it has {len(labels)} labels for {len(images)} images", how)
    return Samples(torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels.astype(np.int64)))


def _names(part: str, what: str, axes: int) -> list[str]:
    """The spellings in use: with a dash or a dot, packed or not."""
    return [f"{part}-{what}{dash}idx{axes}-ubyte{end}" for dash in "-." for end in (".gz", "")]

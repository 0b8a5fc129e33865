"""CelebA as LEAF lays it out: JSON with image names in data/train and data/test, the images in data/raw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from coterie.core.errors import unknown

from .files import contents, corrupt, find, missing
from .leaf import NamedPart, read_leaf_names

DOMAIN_ATTRIBUTES = ("Attractive", "Heavy_Makeup", "High_Cheekbones", "Mouth_Slightly_Open", "Wavy_Hair")
"""The five attributes whose 32 combinations FedCG calls metadata domains."""


@dataclass(frozen=True)
class Attributes:
    """list_attr_celeba.txt: which of the named attributes each image has."""

    names: tuple[str, ...]
    rows: dict[str, int]
    table: npt.NDArray[np.bool_]

    def domains(self, images: Sequence[str], names: Sequence[str] = DOMAIN_ATTRIBUTES) -> npt.NDArray[np.int64]:
        """The metadata domain of each image: its attributes as a binary number, the first one highest."""
        for name in names:
            if name not in self.names:
                raise unknown("attribute", name, self.names)
        columns = [self.names.index(name) for name in names]
        bits = self.table[[self.rows[image] for image in images]][:, columns].astype(np.int64)
        return np.asarray(bits @ (1 << np.arange(len(columns))[::-1]), np.int64)


@dataclass(frozen=True)
class Celeba:
    """The parts of a LEAF CelebA folder; the images themselves stay on the disk."""

    train: NamedPart
    test: NamedPart
    images: Path
    attributes: Attributes


def read_celeba(folder: Path, how: str) -> Celeba:
    """Users, labels and attributes; checks that the folder of images is there, reads none."""
    train, test = read_leaf_names(folder, how)
    raw = folder / "data" / "raw"
    images = raw / "img_align_celeba"
    if not images.is_dir():
        raise missing("folder img_align_celeba", raw, how)
    path = find(raw, ["list_attr_celeba.txt"], how)
    attributes = read_attributes(path, how)
    for name in (*train.names, *test.names):
        if name not in attributes.rows:
            raise corrupt(path, f"it has no line for {name}", how)
    return Celeba(train, test, images, attributes)


def read_attributes(path: Path, how: str) -> Attributes:
    """The attribute file: a count, a line of names, then one line per image with 1 or -1 per name."""
    lines = contents(path, how).decode("latin1").splitlines()
    try:
        count, names = int(lines[0]), tuple(lines[1].split())
        fields = [line.split() for line in lines[2:] if line.strip()]
        table = np.array([[int(value) for value in line[1:]] for line in fields], np.int64)
        if table.shape != (count, len(names)) or not np.isin(table, (-1, 1)).all():
            raise ValueError(f"it should have {count} lines of {len(names)} values 1 or -1")
    except (ValueError, IndexError) as problem:
        raise corrupt(path, str(problem), how) from problem
    return Attributes(names, {line[0]: i for i, line in enumerate(fields)}, table == 1)

"""A data root with a tiny copy of every dataset, in the publishers' formats."""

from __future__ import annotations

import bz2
import gzip
import pickle
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat

from coterie.core.rng import rng

from .sources.test_idx import idx
from .sources.test_leaf import write as write_leaf

TRAIN, TEST = 400, 200
"""Samples of each set: a tenth of them of every class, in turn."""


def _labels(n: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return (np.arange(n) % 10).astype(np.uint8)


def write_idx_set(folder: Path) -> None:
    """The label is written into every pixel of the upper half, so that a test can tell images apart and upright."""
    folder.mkdir(parents=True)
    for part, n in (("train", TRAIN), ("t10k", TEST)):
        images = np.zeros((n, 28, 28), np.uint8)
        images[:, :14] = _labels(n)[:, None, None] + 100
        for name, array in ((f"{part}-images-idx3-ubyte.gz", images), (f"{part}-labels-idx1-ubyte.gz", _labels(n))):
            (folder / name).write_bytes(gzip.compress(idx(array), 1))


def write_cifar(folder: Path) -> None:
    inner = folder / "cifar-10-batches-py"
    inner.mkdir(parents=True)
    for name, n in (("data_batch_1", TRAIN), ("test_batch", TEST)):
        data = np.repeat(_labels(n)[:, None] + np.uint8(100), 3072, axis=1)
        body = {b"data": data, b"labels": _labels(n).tolist()}
        (inner / name).write_bytes(pickle.dumps(body, protocol=2))


def write_digit_sources(root: Path) -> None:
    """USPS, SVHN and sign images, each of one brightness."""
    (root / "usps").mkdir()
    (root / "svhn").mkdir()
    for name, part, n in (("usps", "train", TRAIN), ("usps.t", "test", TEST)):
        pixels = " ".join(f"{i}:1" for i in range(1, 257))
        text = "".join(f"{label + 1} {pixels}\n" for label in _labels(n).tolist())
        (root / "usps" / f"{name}.bz2").write_bytes(bz2.compress(text.encode(), 1))
        y = np.where(_labels(n) == 0, 10, _labels(n)).reshape(-1, 1)
        savemat(root / "svhn" / f"{part}_32x32.mat", {"X": np.full((32, 32, 3, n), 50, np.uint8), "y": y})
    for digit in range(10):
        folder = root / "sign" / "Dataset" / str(digit)
        folder.mkdir(parents=True)
        for i in range(20):
            Image.fromarray(np.full((64, 64), 200, np.uint8)).save(folder / f"{i}.png")


def write_pacs(root: Path, classes: int = 7) -> None:
    for domain, name in enumerate(("art_painting", "cartoon", "photo", "sketch")):
        for label in range(classes):
            folder = root / "pacs" / "PACS" / name / f"class{label}"
            folder.mkdir(parents=True)
            for i in range(10):
                Image.fromarray(np.full((16, 16, 3), 40 * domain + i, np.uint8)).save(folder / f"{i}.png")


def write_writers(root: Path, name: str = "mnist-writers", users: int = 6, classes: int = 10) -> None:
    """User k has 10 + k training samples and 3 test samples; the last user has test samples only."""
    for part in ("train", "test"):
        people = {}
        for k in range(users):
            n = 10 + k if part == "train" else 3
            if part == "train" and k == users - 1:
                continue
            y = rng(k, part).integers(0, classes, n).tolist()
            people[f"w{k}"] = ([[round(k / 10, 1)] * 784] * n, y)
        write_leaf(root / name, part, people)


def write_all(root: Path) -> None:
    write_idx_set(root / "mnist")
    write_idx_set(root / "fashion-mnist")
    write_cifar(root / "cifar10")
    write_digit_sources(root)
    write_pacs(root)
    write_writers(root)
    write_writers(root, "femnist", classes=62)

"""The image sets that scenarios draw from: where they lie under the data root, how to get them, how to read them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from coterie.core.rng import rng
from coterie.core.samples import Samples

from .partition import Index
from .pool import greyed, resized, rows_of
from .sources.cifar import read_cifar10
from .sources.digits import read_digits
from .sources.files import Split
from .sources.idx import read_idx
from .sources.images import ImageFolder, read_images
from .sources.svhn import read_svhn
from .sources.usps import read_usps

ROOT_VARIABLE = "COTERIE_DATA"
DEFAULT_ROOT = ".data"


def data_root(root: Path | str | None = None) -> Path:
    """Where the datasets lie: the argument, else the environment's COTERIE_DATA, else ./.data."""
    return Path(root or os.environ.get(ROOT_VARIABLE) or DEFAULT_ROOT)


@dataclass(frozen=True)
class Dataset:
    """One labelled image set of ten classes."""

    name: str
    get: str
    """How to get it, the middle of a sentence."""
    read: Callable[[Path, str], Split | Samples]
    """Reads its folder; without an official split it returns all samples as one."""
    held_out: int | float = 0.2
    """Where there is no official split: how many samples (or which fraction) are kept for testing."""
    embedded: bool = False


def how(name: str, get: str) -> str:
    """The second half of the error for missing files."""
    return f"{get} and put it into a folder {name} under the data root (--root, or {ROOT_VARIABLE})"


def load(name: str, root: Path, seed: int, *, image_size: int, grey: bool = False) -> Split:
    """A dataset at one image size, split as published or, without an official split, by the seed."""
    dataset = DATASETS[name]
    found = dataset.read(root / dataset.name, how(dataset.name, dataset.get))
    split = found if isinstance(found, Split) else _split(found, dataset, seed)
    train, test = (greyed(part) if grey else part for part in (split.train, split.test))
    return Split(resized(train, image_size), resized(test, image_size))


def read_pacs(root: Path, image_size: int) -> ImageFolder:
    """PACS's four domains of seven classes."""
    folder = root / "pacs" / "PACS"
    get = "fetch PACS (Li et al. 2017, domaingeneralization.github.io) as PACS/<domain>/<class>/<image>"
    return read_images(folder, how("pacs", get), domains=True, size=image_size)


def _split(samples: Samples, dataset: Dataset, seed: int) -> Split:
    order: Index = rng(seed, "held-out", dataset.name).permutation(len(samples))
    count = dataset.held_out
    cut = count if isinstance(count, int) else round(count * len(samples))
    return Split(rows_of(samples, order[cut:]), rows_of(samples, order[:cut]))


def _read_sign(folder: Path, get: str) -> Samples:
    inner = folder / "Dataset"
    return read_images(inner if inner.is_dir() else folder, get, domains=False, grey=True).samples


_DATASETS = (
    Dataset(
        "digits",
        "install scikit-learn, which carries the digits,",
        lambda folder, get: read_digits(),  # noqa: ARG005
        held_out=397,
        embedded=True,
    ),
    Dataset("mnist", "download MNIST's four IDX .gz files (yann.lecun.com/exdb/mnist)", read_idx),
    Dataset(
        "fashion-mnist",
        "download Fashion-MNIST's four IDX .gz files (github.com/zalandoresearch/fashion-mnist)",
        read_idx,
    ),
    Dataset(
        "cifar10",
        "download and unpack the python version of CIFAR-10 (www.cs.toronto.edu/~kriz/cifar.html)",
        read_cifar10,
    ),
    Dataset(
        "usps",
        "download usps.bz2 and usps.t.bz2 (LIBSVM Data, www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets)",
        read_usps,
    ),
    Dataset("svhn", "download SVHN's train_32x32.mat and test_32x32.mat (ufldl.stanford.edu/housenumbers)", read_svhn),
    Dataset("sign", "fetch the folder Dataset of github.com/ardamavi/Sign-Language-Digits-Dataset", _read_sign),
)

DATASETS: dict[str, Dataset] = {dataset.name: dataset for dataset in _DATASETS}

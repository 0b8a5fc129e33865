"""USPS digits in libsvm's text format (packed as .bz2 or not): 16 x 16, labels 1..10, pixels in [-1, 1]."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import torch

from coterie.core.samples import Samples

from .files import Split, contents, corrupt, find

_SIDE = 16
_TOLERANCE = 1e-6


def read_usps(folder: Path, how: str) -> Split:
    """Training and test digits [n, 1, 16, 16]; label 1 of the file is digit 0."""
    train = _part(find(folder, ["usps.bz2", "usps"], how), how)
    return Split(train, _part(find(folder, ["usps.t.bz2", "usps.t"], how), how))


def _part(path: Path, how: str) -> Samples:
    from sklearn.datasets import load_svmlight_file

    try:
        table, labels = load_svmlight_file(io.BytesIO(contents(path, how)), n_features=_SIDE * _SIDE)
    except (ValueError, OverflowError) as problem:
        raise corrupt(path, f"it is not a libsvm file: {problem}", how) from problem
    x, y = np.asarray(table.toarray(), np.float64), np.asarray(labels)
    if not len(y) or not np.isin(y, np.arange(1, 11)).all():
        raise corrupt(path, "its labels are not all in 1..10", how)
    if not (np.abs(x) <= 1 + _TOLERANCE).all():
        raise corrupt(path, "its pixels are not all in [-1, 1]", how)
    pixels = np.round((x.clip(-1, 1) + 1) * 127.5).astype(np.uint8).reshape(-1, 1, _SIDE, _SIDE)
    return Samples(torch.from_numpy(pixels), torch.from_numpy(y.astype(np.int64) - 1))

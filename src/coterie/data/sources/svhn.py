"""Street View House Numbers, the cropped digits: train_32x32.mat and test_32x32.mat."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from coterie.core.samples import Samples

from .files import Split, corrupt, find


def read_svhn(folder: Path, how: str) -> Split:
    """Training and test digits [n, 3, 32, 32]; the files call digit 0 "10"."""
    parts = [_part(find(folder, [f"{part}_32x32.mat"], how), how) for part in ("train", "test")]
    return Split(*parts)


def _part(path: Path, how: str) -> Samples:
    from scipy.io import loadmat

    try:
        body = loadmat(str(path))
        x, y = np.asarray(body["X"]), np.asarray(body["y"]).ravel()
    except Exception as problem:  # a damaged .mat can fail in any way at all
        raise corrupt(path, str(problem) or type(problem).__name__, how) from problem
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[2] != 3 or x.shape[3] != len(y):
        raise corrupt(path, f"its images are {x.dtype} {x.shape} for {len(y)} labels", how)
    if not np.isin(y, np.arange(1, 11)).all():
        raise corrupt(path, "its labels are not all in 1..10", how)
    images = torch.from_numpy(np.ascontiguousarray(x.transpose(3, 2, 0, 1)))
    return Samples(images, torch.from_numpy(y.astype(np.int64) % 10))

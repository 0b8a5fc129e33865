"""The 1,797 handwritten digits that scikit-learn carries: 8 x 8 grey values 0..16, no download."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from coterie.core.samples import Samples

LEVELS = 16
"""The brightest value, where other image sets have 255."""


@lru_cache(maxsize=1)
def read_digits() -> Samples:
    """All digits, uint8 [1797, 1, 8, 8], in scikit-learn's order; the set has no official split.

    They are kept: they are read from text, and are small.
    """
    rows = torch.from_numpy(_rows())
    return Samples(rows[:, :64].to(torch.uint8).view(-1, 1, 8, 8), rows[:, 64].long())


def _rows() -> npt.NDArray[np.float64]:
    """64 grey values and the digit, [1797, 65], from the file itself: to import scikit-learn takes 1.8 s."""
    package = find_spec("sklearn")
    if package is not None and package.origin is not None:
        file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return np.column_stack([bunch.data, bunch.target])

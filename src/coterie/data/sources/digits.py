"""The 1,797 handwritten digits that scikit-learn carries: 8 x 8 grey values 0..16, no download."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

from coterie.core.samples import Samples

LEVELS = 16
"""The brightest value, where other image sets have 255."""


@lru_cache(maxsize=1)
def read_digits() -> Samples:
    """All digits, uint8 [1797, 1, 8, 8], in scikit-learn's order; the set has no official split.

    They are kept: scikit-learn reads them from text, and they are small.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x = torch.from_numpy(np.asarray(bunch.images).astype(np.uint8)).unsqueeze(1)
    return Samples(x, torch.from_numpy(np.asarray(bunch.target).astype(np.int64)))

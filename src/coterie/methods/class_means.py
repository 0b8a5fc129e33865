"""The mean of a client's samples class by class: what LADD and embedding describe a client by."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from coterie.core.errors import CoterieError


def class_means(codes: Tensor, labels: Tensor, classes: int, generator: np.random.Generator) -> Tensor:
    """The mean code of each class, [classes, code]; a class without samples gets uniform noise in [0, 1).

    Samples of a class that the federation does not know (a label outside 0 .. classes - 1) have no place and are left
    out.
    """
    if labels.is_floating_point():
        raise CoterieError("Means are taken class by class, and these targets are not classes; take another method.")
    noise = torch.from_numpy(generator.random((classes, codes.shape[1]))).to(codes.dtype)
    known = (labels >= 0) & (labels < classes)
    codes, labels = codes[known], labels[known]
    counts = torch.bincount(labels, minlength=classes)
    sums = torch.zeros_like(noise).index_add_(0, labels, codes)
    return torch.where(counts[:, None] > 0, sums / counts.clamp_min(1)[:, None].to(codes.dtype), noise)

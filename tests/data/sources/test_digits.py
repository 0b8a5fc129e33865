from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from coterie.data.sources import digits as source
from coterie.data.sources.digits import LEVELS, read_digits


def test_all_digits_as_bytes() -> None:
    digits = read_digits()
    assert digits.x.shape == (1797, 1, 8, 8)
    assert digits.x.dtype == torch.uint8
    assert digits.y.dtype == torch.int64
    assert int(digits.x.max()) == LEVELS
    assert sorted(digits.y.unique().tolist()) == list(range(10))


@pytest.mark.parametrize("file_is_there", [True, False])
def test_they_are_scikit_learns(file_is_there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read from its file, and through its function where a later version keeps the file elsewhere."""
    if not file_is_there:
        monkeypatch.setattr(source, "find_spec", lambda name: None)
    read, theirs = read_digits.__wrapped__(), load_digits()
    assert np.array_equal(read.x[:, 0].numpy(), theirs.images)
    assert np.array_equal(read.y.numpy(), theirs.target)
    assert read.x.is_contiguous()
    assert read.y.is_contiguous()

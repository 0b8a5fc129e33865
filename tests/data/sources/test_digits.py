from __future__ import annotations

import torch

from coterie.data.sources.digits import LEVELS, read_digits


def test_all_digits_as_bytes() -> None:
    digits = read_digits()
    assert digits.x.shape == (1797, 1, 8, 8)
    assert digits.x.dtype == torch.uint8
    assert digits.y.dtype == torch.int64
    assert int(digits.x.max()) == LEVELS
    assert sorted(digits.y.unique().tolist()) == list(range(10))

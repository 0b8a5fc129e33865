from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from coterie.core.errors import CoterieError
from coterie.data.sources.svhn import read_svhn

HOW = "fetch it"


def write(folder: Path, **change: object) -> None:
    x = np.zeros((32, 32, 3, 2), np.uint8)
    x[1, 2, 0, 1] = 9
    for part in ("train", "test"):
        savemat(folder / f"{part}_32x32.mat", {"X": x, "y": np.array([[10], [3]], np.uint8), **change})


def test_axes_and_the_digit_zero(tmp_path: Path) -> None:
    write(tmp_path)
    train = read_svhn(tmp_path, HOW).train
    assert train.x.shape == (2, 3, 32, 32)
    assert train.y.tolist() == [0, 3]
    assert int(train.x[1, 0, 1, 2]) == 9
    assert int(train.x.sum()) == 9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": np.array([[0], [3]], np.uint8)}, r"not all in 1\.\.10"),
        ({"y": np.array([[1]], np.uint8)}, "for 1 labels"),
        ({"X": np.zeros((32, 32, 2), np.uint8)}, "for 2 labels"),
    ],
)
def test_wrong_contents(tmp_path: Path, change: dict[str, object], message: str) -> None:
    write(tmp_path, **change)
    with pytest.raises(CoterieError, match=message):
        read_svhn(tmp_path, HOW)


def test_missing_and_damaged(tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match=rf"no train_32x32\.mat in {tmp_path}; fetch it"):
        read_svhn(tmp_path, HOW)
    write(tmp_path)
    path = tmp_path / "test_32x32.mat"
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(CoterieError, match=r"test_32x32\.mat cannot be read"):
        read_svhn(tmp_path, HOW)
    savemat(path, {"other": 1})
    with pytest.raises(CoterieError, match=r"test_32x32\.mat cannot be read"):
        read_svhn(tmp_path, HOW)


def test_real_files(real: Path) -> None:
    split = read_svhn(real / "svhn", HOW)
    assert len(split.train) > 500
    assert sorted(split.train.y.unique().tolist()) == list(range(10))

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.core.errors import CoterieError
from coterie.data.sources.idx import read_idx

HOW = "fetch it"


def idx(array: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> bytes:
    header = struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.tobytes()


def write_set(folder: Path, *, packed: bool = True, n: int = 3) -> None:
    images = np.arange(n * 4 * 5, dtype=np.uint8).reshape(n, 4, 5)
    labels = np.arange(n, dtype=np.uint8)
    for part in ("train", "t10k"):
        for name, array in ((f"{part}-images-idx3-ubyte", images), (f"{part}-labels-idx1-ubyte", labels)):
            body = idx(array)
            (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(body) if packed else body)


@pytest.mark.parametrize("packed", [True, False])
def test_reads_what_was_written(tmp_path: Path, packed: bool) -> None:
    write_set(tmp_path, packed=packed)
    split = read_idx(tmp_path, HOW)
    assert split.train.x.dtype == torch.uint8
    assert split.train.x.shape == (3, 1, 4, 5)
    assert split.train.x.flatten().tolist() == list(range(60))
    assert split.test.y.tolist() == [0, 1, 2]
    assert split.test.y.dtype == torch.int64


def test_missing_folder_and_missing_file_name_where_and_how(tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match=r"nowhere; fetch it"):
        read_idx(tmp_path / "nowhere", HOW)
    write_set(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(CoterieError, match=rf"no t10k-labels-idx1-ubyte\.gz in {tmp_path}; fetch it"):
        read_idx(tmp_path, HOW)


def test_truncated_archive(tmp_path: Path) -> None:
    write_set(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(CoterieError, match=r"train-images-idx3-ubyte\.gz cannot be read"):
        read_idx(tmp_path, HOW)


def test_truncated_plain_file(tmp_path: Path) -> None:
    write_set(tmp_path, packed=False)
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CoterieError, match="promises 60 values and holds 59"):
        read_idx(tmp_path, HOW)


def test_not_an_idx_file(tmp_path: Path) -> None:
    write_set(tmp_path, packed=False)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(b"hello world")
    with pytest.raises(CoterieError, match="no IDX file"):
        read_idx(tmp_path, HOW)


def test_labels_and_images_must_be_equally_many(tmp_path: Path) -> None:
    write_set(tmp_path, packed=False)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(np.zeros(2, np.uint8)))
    with pytest.raises(CoterieError, match="2 labels for 3 images"):
        read_idx(tmp_path, HOW)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_real_files(real: Path, name: str) -> None:
    split = read_idx(real / name, HOW)
    assert split.train.x.shape == (60_000, 1, 28, 28)
    assert split.test.x.shape == (10_000, 1, 28, 28)
    first = {"mnist": [5, 0, 4, 1, 9], "fashion-mnist": [9, 0, 0, 3, 0]}
    assert split.train.y[:5].tolist() == first[name]

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.core.errors import CoterieError
from coterie.data.sources.cifar import read_cifar10

HOW = "fetch it"


def batch(n: int, first: int = 0) -> dict[bytes, Any]:
    data = np.arange(n * 3072, dtype=np.int64).reshape(n, 3072) % 251
    return {b"data": data.astype(np.uint8), b"labels": [(first + i) % 10 for i in range(n)]}


def write(folder: Path, name: str, body: object, protocol: int = 2) -> None:
    inner = folder / "cifar-10-batches-py"
    inner.mkdir(exist_ok=True)
    (inner / name).write_bytes(pickle.dumps(body, protocol=protocol))


def test_takes_the_batches_it_finds(tmp_path: Path) -> None:
    write(tmp_path, "data_batch_1", batch(2))
    write(tmp_path, "data_batch_4", batch(3, first=5))
    write(tmp_path, "test_batch", batch(1))
    split = read_cifar10(tmp_path, HOW)
    assert split.train.x.shape == (5, 3, 32, 32)
    assert split.train.y.tolist() == [0, 1, 5, 6, 7]
    assert split.train.x[0].flatten()[:252].tolist() == [*range(251), 0]
    assert len(split.test) == 1


def test_the_publishers_own_python_2_pickle(tmp_path: Path) -> None:
    """Python 2 wrote strings where Python 3 has bytes, and the array by numpy.core.multiarray._reconstruct."""
    raw = bytes(3072)
    body = b"".join(
        [
            b"\x80\x02}q\x00(U\x04dataq\x01cnumpy.core.multiarray\n_reconstruct\nq\x02",
            b"cnumpy\nndarray\nq\x03K\x00\x85U\x01b\x87Rq\x04(K\x01K\x01M\x00\x0c\x86",
            b"cnumpy\ndtype\nq\x05U\x02u1K\x00K\x01\x87Rq\x06(K\x03U\x01|NNN",
            b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T" + len(raw).to_bytes(4, "little") + raw,
            b"tbU\x06labelsq\x07]q\x08K\x07au.",
        ]
    )
    inner = tmp_path / "cifar-10-batches-py"
    inner.mkdir()
    (inner / "data_batch_1").write_bytes(body)
    (inner / "test_batch").write_bytes(body)
    split = read_cifar10(tmp_path, HOW)
    assert split.train.y.tolist() == [7]
    assert int(split.train.x.sum()) == 0


class Evil:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_asks_for_code_runs_nothing(tmp_path: Path, protocol: int) -> None:
    mark = tmp_path / "it-ran"
    write(tmp_path, "data_batch_1", {b"data": Evil(mark), b"labels": []}, protocol)
    with pytest.raises(CoterieError, match="which is not data"):
        read_cifar10(tmp_path, HOW)
    assert not mark.exists()


def test_no_encoding_but_latin1(tmp_path: Path) -> None:
    body = b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00rot13\x86R."
    inner = tmp_path / "cifar-10-batches-py"
    inner.mkdir()
    (inner / "data_batch_1").write_bytes(body)
    with pytest.raises(CoterieError, match="rot13"):
        read_cifar10(tmp_path, HOW)


def test_truncated(tmp_path: Path) -> None:
    write(tmp_path, "data_batch_1", batch(2))
    path = tmp_path / "cifar-10-batches-py" / "data_batch_1"
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(CoterieError, match="data_batch_1 cannot be read"):
        read_cifar10(tmp_path, HOW)


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match=rf"no data_batch_1 in {tmp_path}; fetch it"):
        read_cifar10(tmp_path, HOW)
    write(tmp_path, "data_batch_1", batch(2))
    with pytest.raises(CoterieError, match="no test_batch"):
        read_cifar10(tmp_path, HOW)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({b"data": np.zeros((2, 10), np.uint8)}, "for 2 labels"),
        ({b"data": np.zeros((2, 3072), np.float32)}, "float32"),
        ({b"labels": [0, 10]}, r"not all in 0\.\.9"),
        ({b"labels": ["a", "b"]}, r"not all in 0\.\.9"),
    ],
)
def test_wrong_contents(tmp_path: Path, change: dict[bytes, Any], message: str) -> None:
    write(tmp_path, "data_batch_1", {**batch(2), **change})
    with pytest.raises(CoterieError, match=message):
        read_cifar10(tmp_path, HOW)


def test_real_files(real: Path) -> None:
    split = read_cifar10(real / "cifar10", HOW)
    assert split.train.x.shape[1:] == (3, 32, 32)
    assert len(split.train) % 10_000 == 0
    assert split.train.y[:5].tolist() == [6, 9, 9, 4, 1]
    assert split.test.y[:5].tolist() == [3, 8, 8, 0, 6]

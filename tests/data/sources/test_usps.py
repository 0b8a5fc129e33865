from __future__ import annotations

import bz2
from pathlib import Path

import pytest

from coterie.core.errors import CoterieError
from coterie.data.sources.usps import read_usps

HOW = "fetch it"


def write(folder: Path, text: str, *, packed: bool = True) -> None:
    for name in ("usps", "usps.t"):
        if packed:
            (folder / f"{name}.bz2").write_bytes(bz2.compress(text.encode()))
        else:
            (folder / name).write_text(text)


@pytest.mark.parametrize("packed", [True, False])
def test_labels_and_pixels_by_hand(tmp_path: Path, packed: bool) -> None:
    """Label 1 is digit 0 and 10 is 9; -1, 0 and 1 become 0, 127.5 (rounded to even: 128) and 255."""
    write(tmp_path, "1 1:-1 2:1 256:0.5\n10 1:1\n", packed=packed)
    train = read_usps(tmp_path, HOW).train
    assert train.x.shape == (2, 1, 16, 16)
    assert train.y.tolist() == [0, 9]
    pixels = train.x[0].flatten().tolist()
    assert (pixels[0], pixels[1], pixels[2], pixels[255]) == (0, 255, 128, 191)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("11 1:0\n", r"not all in 1\.\.10"),
        ("1.5 1:0\n", r"not all in 1\.\.10"),
        ("1 1:2\n", r"not all in \[-1, 1\]"),
        ("1 300:0.5\n", "not a libsvm file"),
        ("one two\n", "not a libsvm file"),
        ("", r"not all in 1\.\.10|not a libsvm"),
    ],
)
def test_wrong_contents(tmp_path: Path, text: str, message: str) -> None:
    write(tmp_path, text)
    with pytest.raises(CoterieError, match=message):
        read_usps(tmp_path, HOW)


def test_truncated_and_missing(tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match=rf"no usps\.bz2 in {tmp_path}; fetch it"):
        read_usps(tmp_path, HOW)
    write(tmp_path, "1 1:0.5\n" * 50)
    path = tmp_path / "usps.bz2"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(CoterieError, match=r"usps\.bz2 cannot be read"):
        read_usps(tmp_path, HOW)


def test_real_files(real: Path) -> None:
    split = read_usps(real / "usps", HOW)
    assert (len(split.train), len(split.test)) == (7291, 2007)
    assert split.train.y.bincount().tolist()[:2] == [1194, 1005]

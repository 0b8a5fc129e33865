from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from coterie.core.errors import CoterieError
from coterie.data.sources.images import has_domain_level, read_images

HOW = "fetch it"


def write(path: Path, value: int, size: tuple[int, int] = (6, 6)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((*size, 3), value, np.uint8)).save(path)


def test_classes_without_domains(tmp_path: Path) -> None:
    write(tmp_path / "b" / "1.png", 20)
    write(tmp_path / "a" / "1.png", 10)
    (tmp_path / "a" / "notes.txt").write_text("no image")
    found = read_images(tmp_path, HOW, domains=False, grey=True)
    assert found.classes == ("a", "b")
    assert found.samples.x.shape == (2, 1, 6, 6)
    assert found.samples.y.tolist() == [0, 1]
    assert found.samples.x[:, 0, 0, 0].tolist() == [10, 20]
    assert found.domain.tolist() == [0, 0]
    assert not has_domain_level(tmp_path)


def test_domains_share_classes(tmp_path: Path) -> None:
    write(tmp_path / "photo" / "cat" / "x.png", 1)
    write(tmp_path / "photo" / "dog" / "x.png", 2)
    write(tmp_path / "art" / "dog" / "x.png", 3)
    found = read_images(tmp_path, HOW, domains=True)
    assert found.domains == ("art", "photo")
    assert found.classes == ("cat", "dog")
    assert found.samples.y.tolist() == [1, 0, 1]
    assert found.domain.tolist() == [0, 1, 1]
    assert found.samples.x.shape == (3, 3, 6, 6)
    assert has_domain_level(tmp_path)


def test_size(tmp_path: Path) -> None:
    write(tmp_path / "a" / "1.png", 10)
    write(tmp_path / "a" / "2.png", 10, (8, 4))
    assert read_images(tmp_path, HOW, domains=False, size=5).samples.x.shape == (2, 3, 5, 5)
    with pytest.raises(CoterieError, match="give one image size"):
        read_images(tmp_path, HOW, domains=False)


def test_missing_empty_and_damaged(tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match="nowhere; fetch it"):
        read_images(tmp_path / "nowhere", HOW, domains=False)
    with pytest.raises(CoterieError, match=rf"<class>/<image> in {tmp_path}; fetch it"):
        read_images(tmp_path, HOW, domains=False)
    write(tmp_path / "a" / "1.png", 10)
    with pytest.raises(CoterieError, match="<domain>/<class>/<image>"):
        read_images(tmp_path, HOW, domains=True)
    path = tmp_path / "a" / "1.png"
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(CoterieError, match=r"1\.png cannot be read"):
        read_images(tmp_path, HOW, domains=False)


def test_real_signs(real: Path) -> None:
    found = read_images(real / "sign" / "Dataset", HOW, domains=False, grey=True)
    assert found.samples.x.shape == (2062, 1, 64, 64)
    assert found.classes == tuple("0123456789")

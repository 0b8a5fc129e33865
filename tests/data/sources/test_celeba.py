from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from coterie.core.errors import CoterieError
from coterie.data import build
from coterie.data.sources.celeba import DOMAIN_ATTRIBUTES, read_attributes, read_celeba

from .test_leaf import write

HOW = "fetch it"
NAMES = ("Smiling", *DOMAIN_ATTRIBUTES)


def attribute_line(name: str, domain: int) -> str:
    """The five domain attributes are the bits of the number, the first the highest; Smiling is -1."""
    bits = [1 if domain >> place & 1 else -1 for place in (4, 3, 2, 1, 0)]
    return f"{name}  -1 " + " ".join(map(str, bits))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two celebrities with three and two images; image k is all grey level k and in metadata domain 5 k."""
    folder = tmp_path / "celeba"
    write(folder, "train", {"11": (["0.jpg", "1.jpg"], [0, 1]), "12": (["3.jpg"], [1])})
    write(folder, "test", {"11": (["2.jpg"], [1]), "12": (["4.jpg"], [0])})
    images = folder / "data" / "raw" / "img_align_celeba"
    images.mkdir(parents=True)
    for k in range(5):
        Image.fromarray(np.full((218, 178, 3), 10 * k, np.uint8)).save(images / f"{k}.jpg")
    lines = ["5", " ".join(NAMES), *(attribute_line(f"{k}.jpg", 5 * k) for k in range(5))]
    (folder / "data" / "raw" / "list_attr_celeba.txt").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_attributes_and_domains(root: Path) -> None:
    celeba = read_celeba(root / "celeba", HOW)
    assert celeba.attributes.names == NAMES
    assert celeba.attributes.domains(["4.jpg", "1.jpg"]).tolist() == [20, 5]
    assert celeba.attributes.domains(["3.jpg"], ["Wavy_Hair", "Smiling"]).tolist() == [2]
    with pytest.raises(CoterieError, match="no attribute 'Wavy_Hare'; did you mean 'Wavy_Hair'"):
        celeba.attributes.domains(["3.jpg"], ["Wavy_Hare"])


def test_scenario_reads_images_when_asked(root: Path) -> None:
    population = build("celeba", seed=0, root=root)
    assert tuple(population.ids) == ("11", "12")
    assert population.shape == (3, 84, 84)
    assert population.classes == 2
    data = population.client("11")
    assert data.train.x.shape == (2, 3, 84, 84)
    assert [round(float(x.float().mean())) for x in data.train.x] == [0, 10]
    assert data.train.y.tolist() == [0, 1]
    assert data.test.y.tolist() == [1]
    assert population.group("11") is None
    domains = population.metadata("11")
    assert domains is not None
    assert (domains.train.tolist(), domains.test.tolist()) == ([0, 5], [10])
    (root / "celeba" / "data" / "raw" / "img_align_celeba" / "3.jpg").unlink()
    damaged = population.client("12")
    with pytest.raises(CoterieError, match=r"no 3\.jpg"):
        _ = (damaged.train, damaged.test)


@pytest.mark.parametrize(
    "text",
    ["", "5\nA B\n0.jpg 1 1\n", "1\nA B\n0.jpg 1\n", "1\nA B\n0.jpg 1 2\n", "x\nA\n0.jpg 1\n"],
)
def test_damaged_attributes(tmp_path: Path, text: str) -> None:
    path = tmp_path / "list_attr_celeba.txt"
    path.write_text(text)
    with pytest.raises(CoterieError, match=r"list_attr_celeba\.txt cannot be read"):
        read_attributes(path, HOW)


def test_missing_parts(root: Path) -> None:
    raw = root / "celeba" / "data" / "raw"
    attributes = raw / "list_attr_celeba.txt"
    text = attributes.read_text()
    attributes.write_text(text.replace("3.jpg", "9.jpg"))
    with pytest.raises(CoterieError, match=r"no line for 3\.jpg"):
        read_celeba(root / "celeba", HOW)
    attributes.unlink()
    with pytest.raises(CoterieError, match=r"no list_attr_celeba\.txt"):
        read_celeba(root / "celeba", HOW)
    (raw / "img_align_celeba").rename(raw / "other")
    with pytest.raises(CoterieError, match="no folder img_align_celeba"):
        read_celeba(root / "celeba", HOW)

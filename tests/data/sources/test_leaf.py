from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie.core.errors import CoterieError
from coterie.data.sources.leaf import is_leaf, read_leaf, read_leaf_names

HOW = "fetch it"
Users = dict[str, tuple[list[Any], list[Any]]]


def write(folder: Path, part: str, users: Users, name: str = "all.json") -> None:
    where = folder / "data" / part
    where.mkdir(parents=True, exist_ok=True)
    body = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }
    (where / name).write_text(json.dumps(body))


def image(value: float) -> list[float]:
    return [value] * 64


def test_images_by_user_over_several_files(tmp_path: Path) -> None:
    write(tmp_path, "train", {"b": ([image(0), image(1)], [3, 4])}, "1.json")
    write(tmp_path, "train", {"a": ([image(0.502)], [5]), "empty": ([], [])}, "2.json")
    write(tmp_path, "test", {"a": ([image(1)], [6])})
    assert is_leaf(tmp_path)
    leaf = read_leaf(tmp_path, HOW)
    assert leaf.train.samples.x.shape == (3, 1, 8, 8)
    assert leaf.train.samples.x.dtype == torch.uint8
    assert leaf.train.samples.x[:, 0, 0, 0].tolist() == [0, 255, 128]
    assert leaf.train.samples.y.tolist() == [3, 4, 5]
    assert {user: rows.tolist() for user, rows in leaf.train.owners.items()} == {"b": [0, 1], "a": [2]}
    assert leaf.test.samples.y.tolist() == [6]
    assert read_leaf(tmp_path / "data", HOW).train.samples.y.tolist() == [3, 4, 5]


@pytest.mark.parametrize("row", [[0.5] * 60, [*[0.5] * 63, 1.5]])
def test_all_else_stays_float(tmp_path: Path, row: list[float]) -> None:
    write(tmp_path, "train", {"a": ([[0.25] * len(row), row], [0, 1])})
    write(tmp_path, "test", {"a": ([[0.125] * len(row)], [1])})
    leaf = read_leaf(tmp_path, HOW)
    assert leaf.train.samples.x.dtype == torch.float32
    assert leaf.train.samples.x.shape == (2, len(row))
    assert leaf.test.samples.x[0, 0].item() == 0.125


def test_names(tmp_path: Path) -> None:
    write(tmp_path, "train", {"7": (["1.jpg", "2.jpg"], [0, 1])})
    write(tmp_path, "test", {"7": (["3.jpg"], [1])})
    train, test = read_leaf_names(tmp_path, HOW)
    assert train.names == ("1.jpg", "2.jpg")
    assert test.labels.tolist() == [1]
    assert train.owners["7"].tolist() == [0, 1]
    with pytest.raises(CoterieError, match="not rows of equally many numbers"):
        read_leaf(tmp_path, HOW)


def test_names_must_be_names(tmp_path: Path) -> None:
    write(tmp_path, "train", {"7": ([[1.0]], [0])})
    write(tmp_path, "test", {"7": (["3.jpg"], [1])})
    with pytest.raises(CoterieError, match="not names of image files"):
        read_leaf_names(tmp_path, HOW)


@pytest.mark.parametrize(
    ("users", "message"),
    [
        ({"a": ([image(0)], [0, 1])}, "user a has 1 x and 2 y"),
        ({"a": ([image(0)], [-1])}, "whole numbers"),
        ({"a": ([image(0)], [0.5])}, "whole numbers"),
        ({"a": ([image(0), [0.0]], [0, 1])}, "equally many"),
        ({"a": ([image(float("nan"))], [0])}, "finite"),
        ({"a": ([1.0], [0])}, "finite"),
        ({"a": ([image(0)], [0]), "b": ([[0.0] * 81], [0])}, "user b has 81 numbers"),
    ],
)
def test_wrong_contents(tmp_path: Path, users: Users, message: str) -> None:
    write(tmp_path, "train", users)
    write(tmp_path, "test", {"a": ([image(0)], [0])})
    with pytest.raises(CoterieError, match=message):
        read_leaf(tmp_path, HOW)


def test_parts_must_agree(tmp_path: Path) -> None:
    write(tmp_path, "train", {"a": ([image(0)], [0])})
    write(tmp_path, "test", {"a": ([[0.0] * 81], [0])})
    with pytest.raises(CoterieError, match="longer or shorter"):
        read_leaf(tmp_path, HOW)


def test_a_user_twice(tmp_path: Path) -> None:
    write(tmp_path, "train", {"a": ([image(0)], [0])}, "1.json")
    write(tmp_path, "train", {"a": ([image(0)], [0])}, "2.json")
    with pytest.raises(CoterieError, match="user a is in two places"):
        read_leaf(tmp_path, HOW)


def test_missing_and_truncated(tmp_path: Path) -> None:
    assert not is_leaf(tmp_path)
    with pytest.raises(CoterieError, match=rf"{tmp_path / 'train'}; fetch it"):
        read_leaf(tmp_path, HOW)
    write(tmp_path, "train", {"a": ([image(0)], [0])})
    path = tmp_path / "data" / "train" / "all.json"
    path.write_text(path.read_text()[:-20])
    with pytest.raises(CoterieError, match=r"all\.json cannot be read"):
        read_leaf(tmp_path, HOW)
    path.write_text('{"users": ["a"]}')
    with pytest.raises(CoterieError, match="no LEAF file"):
        read_leaf(tmp_path, HOW)

"""What is remembered of how data were read: names of classes, layouts, and the file of a run that holds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import coterie
from coterie.core.errors import CoterieError
from coterie.core.samples import Normalise
from coterie.data import from_arrays
from coterie.data.schema import Column, Schema, read_schema, schema_of


def rows(n: int = 10, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(n, 3)).astype(np.float32)


def test_words_are_numbered_in_sorted_order_over_all_clients() -> None:
    """Client b alone has "ant": it is class 0 for everyone, "bee" 1 and "cat" 2."""
    population = from_arrays(
        {
            "a": (rows(4), np.array(["cat", "bee", "cat", "bee"]), rows(1), ["cat"]),
            "b": (rows(2), np.array(["ant", "cat"], object), rows(1), np.array(["bee"])),
        }
    )
    assert population.schema is not None
    assert population.schema.class_names == ("ant", "bee", "cat")
    assert population.classes == 3
    assert population.client("a").train.y.tolist() == [2, 1, 2, 1]
    assert population.client("b").train.y.tolist() == [0, 2]
    assert population.client("b").test.y.tolist() == [1]
    assert population.schema.class_names[2] == "cat"


def test_words_that_are_numbers_are_in_the_order_of_numbers() -> None:
    population = from_arrays({"a": (rows(3), ["10", "9", "-1"], rows(1), ["9"])})
    assert population.schema is not None
    assert population.schema.class_names == ("-1", "9", "10")


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (["a", 3] * 5, "has the label 3 among labels in words"),
        (["a", ""] * 5, "cannot be the name of a class"),
        (["a", "b\n"] * 5, "cannot be the name of a class"),
        (["a", "b" * 101] * 5, "cannot be the name of a class"),
        ([["a"], ["b"]] * 5, "one label for each input|not an array of numbers"),
    ],
)
def test_labels_that_cannot_be_names_are_refused_in_a_sentence(labels: Any, said: str) -> None:
    with pytest.raises(CoterieError, match=said):
        from_arrays({"a": (rows(), labels)})


def test_too_many_names() -> None:
    with pytest.raises(CoterieError, match="1001 different labels in words"):
        from_arrays({"a": (rows(1001), [f"n{i}" for i in range(1001)])})


def test_a_schema_is_read_back_as_it_was_written() -> None:
    schema = Schema(
        (3,), 2, "rows", "float32", "classification", Normalise((1.0,), (2.0,)), ("à", "b"),
        (Column("age", fill=3.5), Column("town", ("Rome", "Ulm"))), "y", "ward", "mean", None,
    )  # fmt: skip
    assert Schema.from_json(schema.to_json()) == schema
    older = Schema.from_json('{"shape": [4], "classes": 2}')
    assert older == Schema((4,), 2)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"shape": [0], "classes": 2}', '{"shape": [1], "classes": 2, "class_names": ["a"]}',
     '{"shape": [1], "classes": 2, "layout": "diagonal"}', '{"shape": [1], "classes": true}',
     '{"shape": [1], "classes": 2, "extra": 1}'],
)  # fmt: skip
def test_a_damaged_schema_is_one_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(text)
    with pytest.raises(CoterieError, match=r"schema.json is damaged: .* Run it again"):
        read_schema(tmp_path)
    with pytest.raises(CoterieError, match="cannot be read"):
        read_schema(tmp_path / "nowhere")


def test_a_run_keeps_the_schema_of_its_data(tmp_path: Path) -> None:
    clients = {name: (rows(12, seed), np.array(["no", "yes"] * 6)) for seed, name in enumerate("ab")}
    population = from_arrays(clients)
    coterie.run("fedavg", population, lambda: nn.Linear(3, 2), rounds=1, out=tmp_path / "run")
    assert read_schema(tmp_path / "run") == population.schema == schema_of(population)
    assert read_schema(tmp_path / "run").class_names == ("no", "yes")


def test_any_population_has_a_schema() -> None:
    population = coterie.build("rotated-digits", seed=0)
    schema = schema_of(population)
    assert (schema.shape, schema.classes, schema.layout) == ((1, 8, 8), 10, "images")
    assert schema.normalise == population.normalise


class Words(nn.Module):
    """The mean of the embeddings of a row of tokens, then a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.dtype == torch.int64
        answer: torch.Tensor = self.head(self.embedding(x).mean(1))
        return answer


def test_tokens_reach_an_embedding_as_whole_numbers(tmp_path: Path) -> None:
    g = np.random.default_rng(0)
    clients = {name: ((x := g.integers(0, 20, (30, 5))), (x[:, 0] > 9).astype(int)) for name in "abc"}
    population = from_arrays(clients, layout="tokens")
    result = coterie.run(coterie.method("fedavg", lr=0.3), population, Words, rounds=3, out=tmp_path / "run")
    assert 0 <= result.accuracy <= 1
    model = coterie.load_model(tmp_path / "run" / "models" / "global.safetensors", Words)
    assert model(torch.zeros(2, 5, dtype=torch.int64)).shape == (2, 2)


def test_whole_numbers_need_a_layout() -> None:
    x, y = np.arange(12).reshape(4, 3), np.array([0, 1, 0, 1])
    with pytest.raises(CoterieError, match='layout="tokens"'):
        from_arrays({"a": (x, y)})
    assert from_arrays({"a": (x, y)}, layout="rows").client("a").train.x.dtype == torch.float32
    with pytest.raises(CoterieError, match="the token -1; number tokens from 0 up"):
        from_arrays({"a": (x - 1, y)}, layout="tokens")
    with pytest.raises(CoterieError, match="tokens are whole numbers"):
        from_arrays({"a": (x / 2, y)}, layout="tokens")


@pytest.mark.parametrize(
    ("layout", "shape", "said"),
    [
        ("rows", (4, 2, 3), r"rows are \[n, features\]"),
        ("tokens", (4, 2, 3), r"tokens are \[n, length\]"),
        ("images", (4, 3), r"images are \[n, channels, height, width\]"),
        ("images-last", (4, 3, 3), r"images-last are \[n, height, width, channels\]"),
    ],
)
def test_a_layout_that_does_not_fit(layout: Any, shape: tuple[int, ...], said: str) -> None:
    with pytest.raises(CoterieError, match=said):
        from_arrays({"a": (np.zeros(shape, np.uint8), np.array([0, 1, 0, 1]))}, layout=layout)


def test_channels_at_the_end_must_be_said() -> None:
    x, y = np.zeros((4, 5, 6, 3), np.uint8), np.array([0, 1, 0, 1])
    with pytest.raises(CoterieError, match='layout="images-last"'):
        from_arrays({"a": (x, y)})
    assert from_arrays({"a": (x, y)}, layout="images-last").shape == (3, 5, 6)
    assert from_arrays({"a": (x, y)}, layout="images").shape == (5, 6, 3)

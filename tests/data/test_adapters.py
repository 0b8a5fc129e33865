"""Own data from other libraries, and the settings that all own data share: normalisation, unseen clients, drift."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from coterie.core.errors import CoterieError
from coterie.core.samples import Normalise
from coterie.data import Drift, from_arrays, from_datasets, from_frames, from_table
from coterie.data.scaling import moments, pooled
from coterie.data.schema import schema_of

COLUMNS = {
    "ward": ["a", "a", "b", "b", "a"],
    "age": [1, 2, 3, 4, 5],
    "town": list("uvuvu"),
    "sick": [True, False] * 2 + [True],
}


def rows(n: int, seed: int = 0, features: int = 3) -> Any:
    return np.random.default_rng(seed).normal(size=(n, features)).astype(np.float32)


def test_pandas_polars_arrow_and_plain_columns_are_alike() -> None:
    pandas, polars, arrow = (pytest.importorskip(name) for name in ("pandas", "polars", "pyarrow"))
    frames = [COLUMNS, pandas.DataFrame(COLUMNS), polars.DataFrame(COLUMNS), arrow.table(COLUMNS)]
    frames.append(pandas.DataFrame(COLUMNS).astype({"town": "category", "age": "Int64", "sick": "boolean"}))
    made = [from_table(frame, client="ward", target="sick", normalise="none") for frame in frames]
    for one in made:
        assert tuple(one.ids) == ("a", "b")
        assert schema_of(one) == schema_of(made[0])
        assert torch.equal(one.client("a").train.x, made[0].client("a").train.x)
    assert made[0].shape == (3,)
    parts = {name: part.drop(columns="ward") for name, part in frames[1].groupby("ward")}
    apart = from_frames(parts, target="sick", normalise="none")
    assert torch.equal(apart.client("a").train.x, made[0].client("a").train.x)


def test_missing_values_of_frames() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1.0, None, 3.0], "t": ["x", None, "x"], "y": ["p", "q", "p"]})
    with pytest.raises(CoterieError, match="Column 'a' lacks 1 of 3 values"):
        from_frames({"c": frame})
    assert len(from_frames({"c": frame}, missing="drop").client("c").train) == 1


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        ({"a": [1, 2], "y": [0]}, "different lengths"),
        ({}, "no columns"),
        ({"a": [], "y": []}, "no rows"),
        ({"a": np.array(["2020-01-01"] * 2, "datetime64[D]"), "y": [0, 1]}, r"Column 'a' of .* is of datetime64"),
        ({"a": np.zeros((2, 2)), "y": [0, 1]}, "is of shape"),
        ({"a": [1j, 2j], "y": [0, 1]}, "is of complex"),
        ({"a": [object(), 1], "y": [0, 1]}, "holds values of type object"),
        (7, "is a int; give a DataFrame"),
    ],
)
def test_frames_that_are_none(frame: Any, said: str) -> None:
    with pytest.raises(CoterieError, match=said):
        from_frames({"c": frame})


def test_tables_need_a_client_column_or_a_table_each() -> None:
    with pytest.raises(CoterieError, match="Say which column names the clients"):
        from_table(COLUMNS, target="sick")
    with pytest.raises(CoterieError, match="use from_table"):
        from_frames({"c": COLUMNS}, client="ward")
    with pytest.raises(CoterieError, match="is empty in 1 rows"):
        from_table({**COLUMNS, "ward": ["a", None, "b", "b", "a"]}, client="ward", target="sick")


class Words:
    """A dataset as Hugging Face's are to their users: columns, features with names, slices."""

    def __init__(self, columns: Mapping[str, list[Any]], names: list[str] | None = None) -> None:
        self.columns = dict(columns)
        self.column_names = list(columns)
        self.features = {name: SimpleNamespace(names=names if name == "label" else None) for name in columns}

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return self.columns[key]
        return {name: values[key] for name, values in self.columns.items()}


TOKENS: dict[str, list[Any]] = {"input_ids": [[1, 2], [3, 4], [5, 6], [7, 8]], "label": [0, 1, 0, 1]}


def check_tokens(datasets: Any) -> None:
    """One client has both classes, the other "neg" alone; the names are those of the dataset's feature."""
    population = from_datasets(datasets, layout="tokens")
    assert population.client("a").train.x.dtype == torch.int64
    assert schema_of(population).class_names == ("pos", "neg")
    assert population.shape == (2,)
    train, test = population.client("b").train, population.client("b").test
    assert sorted(torch.cat([train.y, test.y]).tolist()) == [1, 1]


def test_a_stand_in_for_hugging_face() -> None:
    one: dict[str, list[Any]] = {"input_ids": [[1, 2], [3, 4]], "label": [1, 1]}
    check_tokens({"a": Words(TOKENS, ["pos", "neg"]), "b": Words(one, ["pos", "neg"])})
    with pytest.raises(CoterieError, match=r"do not have one shape .*pad or resize"):
        from_datasets({"a": Words({"x": [[1], [2, 3]], "y": [0, 1]})}, layout="tokens")
    with pytest.raises(CoterieError, match="holds text; turn it into token ids"):
        from_datasets({"a": Words({"x": ["a text", "b"], "y": [0, 1]})})
    with pytest.raises(CoterieError, match="no column 'z'"):
        from_datasets({"a": Words({"x": [1, 2], "v": [1, 2], "y": [0, 1]})}, inputs="z")
    table = from_datasets({"a": Words({"x": [1, 2, 3], "v": list("uvu"), "y": [0, 1, 1]})})
    assert table.shape == (3,)


def test_hugging_face_and_flwr_datasets() -> None:
    """The real packages, where they are installed; nothing is downloaded."""
    datasets, flwr = pytest.importorskip("datasets"), pytest.importorskip("flwr_datasets")
    features = datasets.Features(
        {"input_ids": datasets.Sequence(datasets.Value("int64")), "label": datasets.ClassLabel(names=["pos", "neg"])}
    )
    whole = datasets.Dataset.from_dict(TOKENS, features)
    check_tokens(
        {"a": whole, "b": datasets.Dataset.from_dict({"input_ids": [[1, 2], [3, 4]], "label": [1, 1]}, features)}
    )
    partitioner = flwr.partitioner.IidPartitioner(num_partitions=2)
    partitioner.dataset = whole
    population = from_datasets(partitioner, layout="tokens")
    assert tuple(population.ids) == ("0", "1")
    assert sum(len(population.client(client).train) for client in "01") == 2
    grey = datasets.Dataset.from_dict(
        {"image": [np.full((4, 4), i, np.uint8) for i in range(4)], "label": [0, 1, 0, 1]},
        datasets.Features({"image": datasets.Array2D((4, 4), "uint8"), "label": datasets.Value("int64")}),
    )
    with pytest.raises(CoterieError, match="may be token ids or numbers"):
        from_datasets({"a": grey})
    assert from_datasets({"a": grey}, layout="images").shape == (1, 4, 4)


def test_torch_datasets_with_words() -> None:
    pairs = [(torch.zeros(2), "cat"), (torch.ones(2), "ant"), (torch.ones(2), "cat")]
    population = from_datasets({"a": pairs, "b": pairs})
    assert schema_of(population).class_names == ("ant", "cat")
    with pytest.raises(CoterieError, match="inputs names a column, and these datasets have none"):
        from_datasets({"a": TensorDataset(torch.zeros(3, 2), torch.zeros(3))}, inputs="x")
    with pytest.raises(CoterieError, match="Give a dataset for each client by name"):
        from_datasets([pairs])


def test_the_common_mean_and_deviation_are_those_of_all_samples_together() -> None:
    """What clients tell about their own samples gives exactly what the samples side by side would."""
    parts = [torch.from_numpy(rows(n, seed) * 7 + 1e4 * (seed + 1)) for seed, n in enumerate((5, 50, 500))]
    found = pooled([moments(x) for x in parts], "standard", (3,), torch.float32)
    together = torch.cat(parts).double()
    assert found.mean == pytest.approx(together.mean(0).tolist(), rel=1e-9)
    assert found.std == pytest.approx(together.std(0, correction=0).tolist(), rel=1e-9)


@pytest.mark.parametrize(
    ("x", "how", "normalised"),
    [
        (rows(50), "auto", False),
        (rows(50), "standard", True),
        (rows(50) * 100, "auto", True),
        (rows(50) * 0.01, "auto", True),
        (rows(50) * 100, "none", False),
        (np.ones((50, 3), np.float32), "auto", False),
        ((rows(50, features=64) > 1).astype(np.float32), "auto", False),
    ],
)
def test_auto_normalises_what_is_far_from_unit_scale(x: Any, how: Any, normalised: bool) -> None:
    population = from_arrays({"a": (x, np.arange(50) % 2)}, normalise=how)
    assert (population.normalise != Normalise()) == normalised
    if normalised:
        ready = population.normalise(population.client("a").train.x, torch.float64)
        assert ready.mean(0).abs().max() < 1e-5
        assert (ready.std(0, correction=0) - 1).abs().max() < 1e-5


def test_constant_features_become_zero() -> None:
    x = np.column_stack([rows(50)[:, 0] * 1e6, np.full(50, 1e8, np.float32), np.zeros(50)]).astype(np.float32)
    population = from_arrays({"a": (x, np.arange(50) % 2)})
    ready = population.normalise(population.client("a").train.x, torch.float32)
    assert torch.isfinite(ready).all()
    assert ready[:, 1:].abs().max() < 1e-3


def test_series_are_normalised_by_feature() -> None:
    x = np.random.default_rng(0).normal(size=(40, 9, 2)).astype(np.float32) * [1, 1000] + [0, 5000]
    population = from_arrays({"a": (x.astype(np.float32), np.arange(40) % 2)}, layout="series")
    assert len(population.normalise.mean) == 2
    ready = population.normalise(population.client("a").train.x, torch.float64)
    assert ready.mean((0, 1)).abs().max() < 1e-4
    assert (ready.std((0, 1), correction=0) - 1).abs().max() < 1e-4


def test_very_many_features_share_one_mean() -> None:
    population = from_arrays({"a": (rows(9, features=2000) * 50, np.arange(9) % 2)})
    assert len(population.normalise.mean) == 1


def test_tokens_cannot_be_normalised() -> None:
    with pytest.raises(CoterieError, match="Token ids cannot be normalised"):
        from_arrays({"a": (np.arange(8).reshape(4, 2), np.arange(4) % 2)}, layout="tokens", normalise="standard")


def test_unseen_clients_by_number_and_share() -> None:
    clients = {name: (rows(6, i), np.arange(6) % 2) for i, name in enumerate("abcdef")}
    population = from_arrays(clients, unseen=2)
    assert len(population.unseen_ids) == 2
    assert sorted([*population.ids, *population.unseen_ids]) == sorted(clients)
    assert from_arrays(dict(reversed(clients.items())), unseen=2).unseen_ids == population.unseen_ids
    assert len(from_arrays(clients, unseen=0.5).unseen_ids) == 3
    for bad in (6, -1, 2.5):
        with pytest.raises(CoterieError, match="unseen is"):
            from_arrays(clients, unseen=bad)


def test_drifting_clients_exchange_their_data_in_a_circle() -> None:
    """Nothing is lost or doubled: all clients together have the same data before and after; groups go with them."""
    clients = {name: (rows(6, i), np.arange(6) % 2) for i, name in enumerate("abcdef")}
    groups = {name: i % 2 for i, name in enumerate("abcdef")}
    population = from_arrays(clients, groups=groups, drift=[Drift(3, 0.5), Drift(5, 1.0)])
    whose = {float(population.client(name).train.x[0, 0]): name for name in clients}

    def owners(at: int) -> dict[str, str]:
        return {name: whose[float(population.client(name, at).train.x[0, 0])] for name in clients}

    assert owners(2) == {name: name for name in clients}
    moved = [name for name, owner in owners(3).items() if owner != name]
    assert len(moved) == 3
    assert owners(4) == owners(3)
    assert all(owners(5)[name] != owners(3)[name] for name in clients)
    for at in (3, 5):
        assert sorted(owners(at).values()) == sorted(clients)
        assert [population.group(name, at) for name in clients] == [groups[owners(at)[name]] for name in clients]
    with pytest.raises(CoterieError, match="moves fewer than two"):
        from_arrays(clients, drift=Drift(1, 0.2))
    with pytest.raises(CoterieError, match="give a fraction"):
        from_arrays(clients, drift=Drift(1, groups={"a": 1}))


@pytest.mark.parametrize("name", ["", " ", "a\nb", "x" * 101, 7])
def test_names_that_no_client_can_have(name: Any) -> None:
    with pytest.raises(CoterieError, match="cannot be the name of a client"):
        from_arrays({name: (rows(4), np.arange(4) % 2)})

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from coterie import run
from coterie.core.errors import CoterieError
from coterie.core.rng import rng
from coterie.data import Normalise, OwnPopulation, Population, from_arrays, from_datasets, from_path
from coterie.data.folders import from_file
from coterie.methods import METHODS
from coterie.runs.config import ScenarioConfig
from coterie.runs.experiment import population_of

from . import tiny
from .sources.test_leaf import write as write_leaf

Arrays = tuple[Any, Any]


def arrays(n: int = 10, shape: tuple[int, ...] = (3, 4, 4), seed: int = 0) -> Arrays:
    g = rng(seed, "own")
    return g.integers(0, 256, (n, *shape)).astype(np.uint8), g.integers(0, 5, n)


def test_a_fifth_is_kept_for_testing_and_nothing_is_lost() -> None:
    x, y = arrays()
    population: Population = from_arrays({"a": (x, y), "b": arrays(5, seed=1)})
    assert tuple(population.ids) == ("a", "b")
    assert population.shape == (3, 4, 4)
    data = population.client("a")
    assert (len(data.train), len(data.test)) == (8, 2)
    together = torch.cat([data.train.x, data.test.x]).flatten(1).tolist()
    assert sorted(together) == sorted(x.reshape(10, -1).tolist())
    assert population.group("a") is None
    alone = from_arrays({"a": (x, y)}).client("a")
    assert torch.equal(alone.test.x, data.test.x)


def test_bytes_are_normalised_by_their_own_mean_and_deviation() -> None:
    population = from_arrays({"a": (*arrays(200), *arrays(5)), "b": (*arrays(100, seed=1), *arrays(5))})
    x = torch.cat([population.client(client).train.x for client in population.ids])
    after = population.normalise(x, torch.float64)
    assert after.mean((0, 2, 3)).abs().max() < 1e-6
    assert (after.std((0, 2, 3), correction=0) - 1).abs().max() < 1e-6
    own = from_arrays({"a": arrays()}, normalise=Normalise(scale=1 / 255))
    assert own.normalise == Normalise(scale=1 / 255)


def test_a_constant_channel_is_not_divided_by_zero() -> None:
    x = np.zeros((4, 1, 3, 3), np.uint8)
    normalise = from_arrays({"a": (x, np.arange(4))}).normalise
    assert torch.isfinite(normalise(torch.from_numpy(x), torch.float32)).all()


def test_floats_are_taken_as_they_are() -> None:
    x = torch.randn(6, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    population = from_arrays({"a": (x, torch.arange(6), x, torch.arange(6))})
    assert population.normalise == Normalise()
    assert population.client("a").train.x is x or torch.equal(population.client("a").train.x, x)
    assert population.shape == (7,)
    assert population.classes == 6


@pytest.mark.parametrize(
    ("shape", "want"), [((4, 5), (1, 4, 5)), ((4, 5, 3), (3, 4, 5)), ((1, 4, 5), (1, 4, 5)), ((3, 4, 1), (3, 4, 1))]
)
def test_image_axes(shape: tuple[int, ...], want: tuple[int, ...]) -> None:
    x, y = arrays(6, shape)
    last = shape == (4, 5, 3)
    population = from_arrays({"a": (x, y, x, y)}, classes=5, layout="images-last" if last else None)
    assert population.shape == want
    if last:
        assert np.array_equal(population.client("a").train.x.numpy(), x.transpose(0, 3, 1, 2))


def test_groups_validation_and_unseen() -> None:
    clients = {name: arrays(seed=i) for i, name in enumerate("abc")}
    population = from_arrays(clients, groups={"a": "red", "b": "blue", "c": "red"}, validation=0.25, unseen=["c"])
    assert [population.group(client) for client in "abc"] == [1, 0, 1]
    assert tuple(population.ids) == ("a", "b")
    assert population.unseen_ids == ("c",)
    data = population.client("a")
    assert data.valid is not None
    assert (len(data.train), len(data.valid), len(data.test)) == (6, 2, 2)
    assert from_arrays(clients, groups={"a": 7, "b": 2, "c": 7}).group("c") == 7


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((np.zeros((3, 2)), np.zeros(2, int)), r"Client a has inputs of shape \(3, 2\) and labels of shape \(2,\)"),
        (
            (np.zeros((3, 2)), np.full((3, 2), 2)),
            "whole numbers in targets .* give 0 and 1 for several labels",
        ),
        ((np.zeros((3, 2)), np.zeros((3, 2, 1), int)), "one label, or one row of targets, for each input"),
        ((np.zeros((3, 2)), np.int64(1)), "one label, or one row of targets, for each input"),
        ((np.zeros((0, 2)), np.zeros(0, int)), "Client a has no samples"),
        ((np.zeros(3), np.zeros(3, int)), "give images"),
        ((np.zeros((3, 2)), np.array([0.0, 1.0, 2.0])), "float64 without fractions, which may be classes or numbers"),
        ((np.zeros((3, 2)), np.array([0.0, np.nan, 2.0])), "targets of client a hold NaN"),
        ((np.zeros((3, 2)), np.array([0, -1, 2])), "has the label -1"),
        ((np.array([[np.nan], [0.0], [1.0]]), np.zeros(3, int)), "NaN or infinity"),
        ((np.zeros((3, 2), np.int64), np.zeros(3, int)), "are int64, which may be token ids"),
        ((np.array(["x", "y"]), np.zeros(2, int)), "not an array of numbers"),
        ((np.zeros((1, 2)), np.zeros(1, int)), "has one sample and needs two"),
        ((np.zeros((3, 2)),), r"needs \(x, y\)"),
        ((np.zeros((3, 2)), np.zeros(3, int), np.zeros((3, 4)), np.zeros(3, int)), "bring all to one shape"),
        ((np.zeros((3, 2)), np.zeros(3, int), np.zeros((3, 2), np.uint8), np.zeros(3, int)), "bring all to one shape"),
    ],
)
def test_bad_arrays_name_the_client(given: Any, message: str) -> None:
    with pytest.raises(CoterieError, match=message):
        from_arrays({"a": given})


def test_floats_of_three_axes_are_not_guessed(tmp_path: Path) -> None:
    """[n, 48, 6] may be series or images: the user says which, in Python, in a file of the data, or in TOML."""
    x, y = np.random.default_rng(0).normal(size=(10, 48, 6)).astype(np.float32), np.arange(10) % 2
    with pytest.raises(CoterieError, match=r"\(10, 48, 6\), which may be series or images; say layout=\"series\""):
        from_arrays({"a": (x, y)})
    assert from_arrays({"a": (x, y)}, layout="series").shape == (48, 6)
    assert from_arrays({"a": (x, y)}, layout="images").shape == (1, 48, 6)
    with pytest.raises(CoterieError, match=r"series are \[n, steps, features\]"):
        from_arrays({"a": (x[:, 0], y)}, layout="series")
    pairs = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    assert from_datasets({"a": pairs}, layout="series").shape == (48, 6)
    np.savez(tmp_path / "a.npz", x=x, y=y)
    with pytest.raises(CoterieError, match=r"an entry of the \.npz files, or --set scenario\.layout=series on"):
        from_path(tmp_path)
    assert population_of(ScenarioConfig(data=str(tmp_path), layout="series"), 0).shape == (48, 6)
    np.savez(tmp_path / "a.npz", x=x, y=y, layout="series")
    assert from_path(tmp_path).shape == from_file(tmp_path / "a.npz", "a").shape == (48, 6)
    np.savez(tmp_path / "a.npz", x=x, y=y, layout="sound")
    with pytest.raises(CoterieError, match="layout 'sound'; write one of rows, tokens, series, images"):
        from_path(tmp_path)
    with pytest.raises(CoterieError, match="a named scenario knows it"):
        population_of(ScenarioConfig(layout="series"), 0)


def test_series_are_trained_as_they_are() -> None:
    """A network that averages over the steps: the class is the feature that is largest on average."""

    class Average(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(6, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert x.shape[1:] == (48, 6)
            answer: torch.Tensor = self.out(x.mean(1))
            return answer

    y = np.arange(40) % 2
    x = np.random.default_rng(0).normal(size=(40, 48, 6)) + np.eye(6)[y][:, None]
    population = from_arrays({"a": (x, y), "b": (x, y)}, layout="series")
    assert run(METHODS["fedavg"](lr=0.1), population, Average, rounds=3).accuracy > 0.9
    flat = run(METHODS["fedavg"](), population, lambda: nn.Sequential(nn.Flatten(), nn.Linear(288, 2)), rounds=2)
    assert flat.accuracy > 0.5


def test_labels_that_are_not_numbered_from_zero() -> None:
    x = np.zeros((4, 2))
    with pytest.raises(
        CoterieError, match=r"labels are 1 to 2 and none is 0; number the classes from 0, such as y - 1"
    ):
        from_arrays({"a": (x, np.array([1, 2, 1, 2]))})
    assert from_arrays({"a": (x, np.array([1, 2, 1, 2]))}, classes=3).classes == 3
    with pytest.raises(CoterieError, match="label 1000000 but only 2 different ones; number the classes 0 to 1"):
        from_arrays({"a": (x, np.array([0, 1000000, 0, 0]))})
    assert from_arrays({"a": (x, np.array([0, 61, 0, 0]))}).classes == 62, "a part of FEMNIST's classes"


def test_one_client_alone_may_lack_the_first_classes(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 2)), y=np.array([1, 2, 1, 2]))
    assert from_file(tmp_path / "a.npz", "a").classes == 3


def test_bad_options() -> None:
    one = {"a": arrays(), "b": arrays()}
    with pytest.raises(CoterieError, match="There is no client; give at least one"):
        from_arrays({})
    with pytest.raises(CoterieError, match="label 4 and only 3 classes"):
        from_arrays(one, classes=3)
    with pytest.raises(CoterieError, match="Client b has no group"):
        from_arrays(one, groups={"a": 1})
    with pytest.raises(CoterieError, match="validation part"):
        from_arrays(one, validation=1.0)
    with pytest.raises(CoterieError, match="unseen names 'x'"):
        from_arrays(one, unseen=["x"])
    with pytest.raises(CoterieError, match="not all of them"):
        from_arrays(one, unseen=["a", "b"])
    with pytest.raises(CoterieError, match="no client 'z'; the clients are 'a', 'b'"):
        from_arrays(one).client("z")


class Numbers(Dataset[tuple[Any, int]]):
    """Pairs of a small picture and a plain int."""

    def __init__(self, n: int, side: int = 4) -> None:
        self.n, self.side = n, side

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return Image.fromarray(np.full((self.side, self.side), index, np.uint8)), index % 3


class Ragged(Numbers):
    def __getitem__(self, index: int) -> tuple[Any, int]:
        return torch.zeros(index + 1), 0


class Endless(IterableDataset[tuple[Any, int]]):
    def __iter__(self) -> Iterator[tuple[Any, int]]:
        yield torch.zeros(2), 0


def test_datasets() -> None:
    x, y = torch.randn(6, 2, generator=torch.Generator().manual_seed(0)), torch.arange(6)
    population = from_datasets({"a": TensorDataset(x, y), "b": (TensorDataset(x, y), TensorDataset(x[:2], y[:2]))})
    assert (len(population.client("a").train), len(population.client("a").test)) == (5, 1)
    assert torch.equal(population.client("b").train.x, x)
    assert torch.equal(population.client("b").test.y, y[:2])
    pictures = from_datasets({"p": Numbers(9)}, groups={"p": 3})
    assert pictures.shape == (1, 4, 4)
    assert pictures.classes == 3
    assert pictures.group("p") == 3


def test_bad_datasets() -> None:
    with pytest.raises(CoterieError, match="Client a has no samples"):
        from_datasets({"a": Numbers(0)})
    with pytest.raises(CoterieError, match="does not give pairs"):
        from_datasets({"a": Ragged(3)})
    with pytest.raises(CoterieError, match="has no length"):
        from_datasets({"a": Endless()})


def test_folder_of_npz(tmp_path: Path) -> None:
    x, y = arrays()
    np.savez(tmp_path / "north.npz", x=x, y=y, group=1)
    np.savez(tmp_path / "south.npz", x_train=x, y_train=y, x_test=x[:3], y_test=y[:3], group=0)
    population = from_path(tmp_path)
    assert isinstance(population, OwnPopulation)
    assert tuple(population.ids) == ("north", "south")
    assert [population.group(client) for client in population.ids] == [1, 0]
    assert len(population.client("south").test) == 3


def test_the_validation_part_of_a_folder(tmp_path: Path) -> None:
    """Of 10 samples 2 are for testing; a quarter of the 8 left is set aside; the seed of a run changes none of it."""
    x, y = arrays()
    np.savez(tmp_path / "north.npz", x=x, y=y)
    first, second = (population_of(ScenarioConfig(data=str(tmp_path), validation=0.25), seed) for seed in (0, 7))
    data, same = first.client("north"), second.client("north")
    assert data.valid is not None
    assert same.valid is not None
    assert (len(data.train), len(data.valid), len(data.test)) == (6, 2, 2)
    assert torch.equal(data.valid.x, same.valid.x)
    assert torch.equal(data.test.x, same.test.x)
    assert torch.equal(data.test.x, from_path(tmp_path).client("north").test.x)


def test_bad_npz(tmp_path: Path) -> None:
    x, y = arrays()
    np.savez(tmp_path / "a.npz", x=x)
    with pytest.raises(CoterieError, match=r"a\.npz holds x; give x and y"):
        from_path(tmp_path)
    np.savez(tmp_path / "a.npz", x=x, y=y)
    whole = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "a.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CoterieError, match=r"a\.npz cannot be read"):
        from_path(tmp_path)
    np.savez(tmp_path / "a.npz", x=np.array([{}, {}]), y=y[:2])
    with pytest.raises(CoterieError, match=r"a\.npz cannot be read"):
        from_path(tmp_path)


def test_leaf_folder(tmp_path: Path) -> None:
    tiny.write_writers(tmp_path)
    population = from_path(tmp_path / "mnist-writers", image_size=14)
    assert population.shape == (1, 14, 14)
    assert len(population.ids) == 5
    assert population.normalise.scale == 1 / 255
    assert population.client("w1").train.x.dtype == torch.uint8


def test_leaf_folder_of_features(tmp_path: Path) -> None:
    write_leaf(tmp_path, "train", {"u": ([[1.5, -2.0]] * 5, [0, 1, 2, 0, 1]), "v": ([[0.0, 0.0]], [1])})
    write_leaf(tmp_path, "test", {"w": ([[1.0, 2.0]], [3])})
    population = from_path(tmp_path)
    assert population.shape == (2,)
    assert population.classes == 4
    assert population.normalise == Normalise()
    assert tuple(population.ids) == ("u",)  # v has a single sample
    assert (len(population.client("u").train), len(population.client("u").test)) == (4, 1)
    with pytest.raises(CoterieError, match="are not images; leave the image size out"):
        from_path(tmp_path, image_size=14)


def test_image_folder(tmp_path: Path) -> None:
    tiny.write_pacs(tmp_path)
    population = from_path(tmp_path / "pacs" / "PACS", validation=0.1)
    assert tuple(population.ids) == ("art_painting", "cartoon", "photo", "sketch")
    assert [population.group(client) for client in population.ids] == [None] * 4
    assert population.shape == (3, 16, 16)
    assert population.classes == 7
    data = population.client("photo")
    assert data.valid is not None
    assert (len(data.train), len(data.valid), len(data.test)) == (50, 6, 14)


def test_unknown_folders(tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match=r"no folder .*nowhere; give a folder of"):
        from_path(tmp_path / "nowhere")
    with pytest.raises(CoterieError, match=rf"no client data in {tmp_path}; give a folder of"):
        from_path(tmp_path)
    one_level = tmp_path / "class"
    one_level.mkdir()
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(one_level / "1.png")
    with pytest.raises(CoterieError, match="<client>/<class>/<image>"):
        from_path(tmp_path)

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie.core.errors import CoterieError
from coterie.data import PARTITIONS, SCENARIOS, Drift, LazyPopulation, build, data_root
from coterie.models.registry import MODELS

from . import tiny

NAMES = [
    "rotated-digits",
    "rotated-mnist",
    "rotated-fashion",
    "rotated-cifar10",
    "swapped-fashion",
    "swapped-cifar10",
    "cycled-cifar10",
    "swapped-rotated-mnist",
    "swapped-rotated-cifar10",
    "swapped-rotated-fashion",
    "multi-source-digits",
    "pacs",
    "mnist-writers",
    "femnist",
    "celeba",
]
SMALL: dict[str, Any] = {"clients": 8, "samples": 20, "test_samples": 20}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("root")
    tiny.write_all(folder)
    return folder


def test_every_scenario_of_the_house_is_there() -> None:
    assert list(SCENARIOS) == NAMES
    for scenario in SCENARIOS.values():
        assert scenario.model in MODELS
        assert scenario.summary
        assert scenario.partition in (*PARTITIONS, "natural")


@pytest.mark.parametrize("name", [name for name in NAMES if SCENARIOS[name].datasets])
def test_small_copies_of_the_data(root: Path, name: str) -> None:
    population = build(name, seed=1, root=root, **SMALL)
    assert len(population.ids) == 8
    assert Counter(population.group(client) for client in population.ids) == {0: 2, 1: 2, 2: 2, 3: 2}
    data = population.client("5")
    assert data.train.x.shape[1:] == population.shape
    assert data.train.x.dtype == torch.uint8
    assert len(data.test) > 0
    batch = population.normalise(data.train.x, torch.float32)
    assert -5 < batch.min() <= batch.max() < 5
    again = build(name, seed=1, root=root, **SMALL).client("5")
    other = build(name, seed=2, root=root, **SMALL).client("5")
    assert torch.equal(again.train.y, data.train.y)
    assert not torch.equal(other.train.y, data.train.y)


def turned(population: LazyPopulation, client: str) -> tuple[int, int]:
    """The side on which the bright half of a tiny image lies, and how much brighter than 100 it is."""
    x = population.client(client).train.x[0, 0]
    sides = [x[:14], x[:, :14], x[14:], x[:, 14:]]  # a turn to the left takes the top to the left
    turns = next(k for k, side in enumerate(sides) if int(side.min()) >= 100)
    return turns, int(x.max()) - 100


def test_rotated_mnist(root: Path) -> None:
    population = build("rotated-mnist", seed=0, root=root, clients=8)
    for number, client in enumerate(population.ids):
        assert turned(population, client)[0] == number % 4
    sizes = [len(population.client(client).train) for client in population.ids]
    assert sum(sizes) == tiny.TRAIN
    assert sum(len(population.client(client).test) for client in population.ids) == tiny.TEST


def test_swapped_fashion_in_two_and_four_groups(root: Path) -> None:
    for groups, pairs in ((2, [(0, 1), (6, 7)]), (4, [(0, 1), (2, 3), (4, 5), (6, 7)])):
        population = build("swapped-fashion", seed=0, root=root, groups=groups, **SMALL)
        for number, client in enumerate(population.ids):
            a, b = pairs[number % groups]
            data = population.client(client)
            for part in (data.train, data.test):
                truth = part.x.amax((1, 2, 3)).long() - 100
                want = torch.where(truth == a, b, torch.where(truth == b, a, truth))
                assert torch.equal(part.y, want)
                assert part.y.bincount(minlength=10).tolist() == [2] * 10


def test_cycled_cifar10(root: Path) -> None:
    population = build("cycled-cifar10", seed=0, root=root, clients=8)
    for number, client in enumerate(population.ids):
        data = population.client(client)
        for part in (data.train, data.test):
            truth = part.x.amax((1, 2, 3)).long() - 100
            assert torch.equal(part.y, (truth - number % 4) % 10)


def test_swapped_rotated_mnist_has_its_own_label_mix_in_training_and_the_global_one_in_tests(root: Path) -> None:
    population = build("swapped-rotated-mnist", seed=0, root=root, clients=8, samples=100, test_samples=200)
    for number, client in enumerate(population.ids):
        assert turned(population, client)[0] == number % 4
        data = population.client(client)
        assert data.test.y.bincount().tolist() == [20] * 10
        assert int(data.train.y.bincount().max()) > 20


def test_multi_source_digits(root: Path) -> None:
    """Each source has its brightness: MNIST at most 109, USPS 255, SVHN 50, sign language 200."""
    population = build("multi-source-digits", seed=0, root=root, clients=8, samples=300, test_samples=30)
    assert population.shape == (1, 28, 28)
    for number, client in enumerate(population.ids):
        data = population.client(client)
        brightest = int(data.train.x.max())
        assert int(data.test.x.max()) in ((brightest,) if number % 4 else range(105, 110))
        assert brightest == {0: 109, 1: 255, 2: 50, 3: 200}[number % 4]
        assert len(data.train) == 300
    two = build("multi-source-digits", seed=0, root=root, groups=2, image_size=14, **SMALL)
    assert [int(two.client(client).train.x.max()) == 255 for client in two.ids[:4]] == [False, True, False, True]
    assert two.shape == (1, 14, 14)


def test_pacs(root: Path) -> None:
    population = build("pacs", seed=0, root=root, clients=8, image_size=8)
    assert population.shape == (3, 8, 8)
    for number, client in enumerate(population.ids):
        data = population.client(client)
        for part in (data.train, data.test):
            assert (part.x // 40 == number % 4).all()
    per_domain = [population.client(population.ids[number]) for number in (0, 4)]
    assert sum(len(data.train) + len(data.test) for data in per_domain) == 70
    drifted = build("pacs", seed=0, root=root, clients=8, image_size=8, drift=Drift(3, groups={"1": 2}))
    assert (drifted.client("1", 3).train.x // 40 == 2).all()
    equal = build("pacs", seed=0, root=root, clients=8, image_size=8, partition="equal", samples=5)
    assert len(equal.client("3").train) == 5
    capped = build("pacs", seed=0, root=root, clients=8, image_size=8, samples=6, test_samples=2)
    assert max(len(capped.client(client).train) for client in capped.ids) == 6
    with pytest.raises(CoterieError, match="need 200 and there are 56"):
        build("pacs", seed=0, root=root, clients=8, image_size=8, samples=100)


def test_pacs_must_be_complete(tmp_path: Path) -> None:
    tiny.write_pacs(tmp_path, classes=3)
    with pytest.raises(CoterieError, match="4 domains and 3 classes instead of 4 and 7"):
        build("pacs", seed=0, root=tmp_path)


def test_writers_are_clients_and_test_only_writers_are_unseen(root: Path) -> None:
    population = build("mnist-writers", seed=0, root=root)
    assert tuple(population.ids) == ("w0", "w1", "w2", "w3", "w4")
    assert population.unseen_ids == ("w5",)
    assert population.group("w3") is None
    data = population.client("w3")
    assert (len(data.train), len(data.test)) == (13, 3)
    assert (data.train.x == round(0.3 * 255)).all()
    stranger = population.client("w5")
    assert (len(stranger.train), len(stranger.test)) == (0, 3)


def test_writers_chosen_kept_back_and_cut(root: Path) -> None:
    population = build("mnist-writers", seed=0, root=root, clients=2, unseen=1, samples=11, image_size=14)
    assert len(population.ids) == 2
    assert len(population.unseen_ids) == 2
    assert len({*population.ids, *population.unseen_ids}) == 4
    assert population.shape == (1, 14, 14)
    assert all(len(population.client(client).train) <= 11 for client in population.ids)
    fraction = build("mnist-writers", seed=0, root=root, unseen=0.4)
    assert (len(fraction.ids), len(fraction.unseen_ids)) == (3, 3)
    assert build("femnist", seed=0, root=root).classes == 62


@pytest.mark.parametrize("change", [{"groups": 2}, {"alpha": 1.0}, {"partition": "equal"}, {"drift": Drift(1, 0.5)}])
def test_writers_are_as_they_are(root: Path, change: dict[str, Any]) -> None:
    with pytest.raises(CoterieError, match=r"leave .* out"):
        build("mnist-writers", seed=0, root=root, **change)


def test_writers_errors(root: Path, tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match="6 clients and 0 unseen ones were asked for and there are 5"):
        build("mnist-writers", seed=0, root=root, clients=6)
    with pytest.raises(CoterieError, match="0 clients and 5 unseen"):
        build("mnist-writers", seed=0, root=root, unseen=5)
    with pytest.raises(CoterieError, match="No user has 15 training samples; ask for at most 14"):
        build("mnist-writers", seed=0, root=root, samples=15)
    tiny.write_writers(tmp_path, classes=62)
    with pytest.raises(CoterieError, match="should be below 10"):
        build("mnist-writers", seed=0, root=tmp_path)


def test_pixels_are_scaled_as_asked() -> None:
    ends = torch.tensor([[[[0, 16]]]], dtype=torch.uint8)
    for pixels, expected in ((None, [0.0, 1.0]), ("unit", [0.0, 1.0]), ("symmetric", [-1.0, 1.0])):
        population = build("rotated-digits", seed=0, pixels=pixels)
        assert population.normalise(ends, torch.float64).flatten().tolist() == expected


@pytest.mark.parametrize("partition", PARTITIONS)
def test_every_partition_of_digits(partition: str) -> None:
    alpha = None if partition in ("equal", "balanced", "shards") else 5.0
    population = build("rotated-digits", seed=0, partition=partition, alpha=alpha)
    sizes = [len(population.client(client).train) for client in population.ids]
    assert len(sizes) == 40
    assert sum(sizes) == 40 * 35
    few = {len(population.client(client).train.y.unique()) for client in population.ids}
    assert max(few) <= (4 if partition == "shards" else 10)


def test_rotated_digits_defaults() -> None:
    population = build("rotated-digits", seed=3)
    assert population.ids[7] == "07"
    train = [population.client(client).train for client in population.ids]
    upright = torch.cat([torch.rot90(part.x, -(i % 4), (2, 3)) for i, part in enumerate(train)])
    tests = [population.client(client).test for client in population.ids]
    held_out = torch.cat([torch.rot90(part.x, -(i % 4), (2, 3)) for i, part in enumerate(tests)])
    assert len(upright) == 1400
    rows = {bytes(image.flatten().tolist()) for image in upright}
    assert not rows & {bytes(image.flatten().tolist()) for image in held_out}


def test_alpha_makes_labels_uneven(root: Path) -> None:
    even = build("rotated-fashion", seed=0, root=root, **SMALL)
    uneven = build("rotated-fashion", seed=0, root=root, alpha=0.5, **SMALL)
    assert len(even.client("2").train.y.unique()) == 10
    assert max(len(uneven.client(client).train.y.unique()) for client in uneven.ids) < 6
    assert len(uneven.client("2").train) == 20


def test_unseen_and_drift_and_validation() -> None:
    population = build("rotated-digits", seed=0, unseen=0.1, validation=0.2, drift=[Drift(4, 0.5), Drift(2, 0.1)])
    assert population.unseen_ids == ("40", "41", "42", "43")
    assert population.ids[0] == "00"
    data = population.client("00")
    assert data.valid is not None
    assert (len(data.train), len(data.valid)) == (28, 7)
    assert [drift.round for drift in population.drifts] == [2, 4]
    assert build("rotated-digits", seed=0, unseen=2).unseen_ids == ("40", "41")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clients": 0}, "0 clients were asked for"),
        ({"clients": -3}, "-3 clients"),
        ({"samples": 0}, "0 samples"),
        ({"test_samples": 0}, "0 test samples"),
        ({"samples": 1401}, "1401 samples a client are more than the 1400"),
        ({"test_samples": 398}, "398 samples a client are more than the 397"),
        ({"alpha": 0.0}, "alpha is 0.0 and must be above 0"),
        ({"alpha": -1.0}, "alpha is -1.0"),
        ({"alpha": float("nan")}, "alpha is nan"),
        ({"groups": 0}, "0 groups"),
        ({"groups": 9}, "at most 8 groups"),
        ({"shift": "swop"}, "no shift 'swop'; did you mean 'swap'"),
        ({"group_sizes": (0, 0)}, "group_sizes is"),
        ({"group_sizes": (3, -1)}, "group_sizes is"),
        ({"group_sizes": (3, 1), "clients": 5}, "group_sizes are 4 clients, not 5"),
        ({"group_sizes": (3, 1), "groups": 3}, "group_sizes are 2 groups, not 3"),
        ({"drift": Drift(1, 0.5, to="new")}, "needs a group without members"),
        ({"groups": 4, "clients": 3}, "4 groups need at least as many clients and there are 3"),
        ({"image_size": 3}, "Images of 3 x 3 pixels"),
        ({"image_size": 5000}, "Images of 5000 x 5000"),
        ({"unseen": -1}, "unseen is -1"),
        ({"unseen": 1.5}, "unseen is 1.5"),
        ({"partition": "dirichle"}, "no partition 'dirichle'; did you mean 'dirichlet'"),
        ({"partition": "dirichlet"}, "needs an alpha"),
        ({"pixels": "units"}, "no scale of pixels 'units'; did you mean 'unit'"),
        ({"partition": "shards", "alpha": 1.0}, "has no alpha"),
        ({"partition": "shards", "samples": 100}, "need 4000 and there are 1400"),
        ({"partition": "dirichlet", "alpha": 1.0, "samples": None, "clients": 2000}, "ask for less"),
        ({"validation": 1.0}, "validation part"),
        ({"groups": 1, "drift": Drift(1, 0.5)}, "no groups to drift between"),
    ],
)
def test_bad_input(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CoterieError, match=message):
        build("rotated-digits", seed=0, **change)


def test_groups_of_other_sizes_and_another_shift() -> None:
    """Sizes 3, 0, 1: clients 0-2 in group 0, client 3 in group 2; a drift to new groups leads to group 1 alone."""
    drift = Drift(2, 1.0, to="new")
    population = build("rotated-digits", seed=0, shift="cycle", group_sizes=(3, 0, 1), drift=drift)
    assert [population.group(client) for client in population.ids] == [0, 0, 0, 2]
    assert [population.group(client, 2) for client in population.ids] == [1, 1, 1, 1]
    assert [shift.labels[:2] for shift in population.shifts] == [(), (9, 0), (8, 9)]
    assert {shift.turns for shift in population.shifts} == {0}


def test_sources_of_their_own_have_neither_sizes_nor_another_shift() -> None:
    with pytest.raises(CoterieError, match="The groups of pacs are its sources; leave shift out"):
        build("pacs", seed=0, shift="swap")
    with pytest.raises(CoterieError, match="have data of their own; leave group_sizes and mixed out"):
        build("pacs", seed=0, group_sizes=(3, 1))
    with pytest.raises(CoterieError, match="its users as they are; leave group_sizes out"):
        build("mnist-writers", seed=0, group_sizes=(3, 1))


def test_unknown_scenario() -> None:
    with pytest.raises(CoterieError, match="no scenario 'rotated-digit'; did you mean 'rotated-digits'"):
        build("rotated-digit", seed=0)


@pytest.mark.parametrize("name", [name for name in NAMES if SCENARIOS[name].folders])
def test_missing_folder_names_where_and_how(tmp_path: Path, name: str) -> None:
    with pytest.raises(CoterieError) as caught:
        build(name, seed=0, root=tmp_path)
    message = str(caught.value)
    assert str(tmp_path / SCENARIOS[name].folders[0]) in message
    assert "under the data root" in message
    assert "\n" not in message


def test_data_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("COTERIE_DATA", raising=False)
    assert data_root() == Path(".data")
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    assert data_root() == tmp_path
    assert data_root("elsewhere") == Path("elsewhere")


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("femnist", "celeba")])
def test_real_data_with_the_defaults(real: Path, name: str) -> None:
    scenario = SCENARIOS[name]
    population = build(name, seed=0, root=real)
    data = population.client(population.ids[-1])
    assert len(population.ids) == (scenario.clients or 200)
    assert data.train.x.shape[1:] == population.shape
    assert int(data.train.y.max()) < population.classes
    assert len(data.test) > 0
    if scenario.samples:
        assert (len(data.train), len(data.test)) == (scenario.samples, scenario.test_samples)

from __future__ import annotations

import pickle
import tracemalloc

import numpy as np
import pytest
import torch

from coterie.core.errors import CoterieError
from coterie.data import Drift, LazyPopulation, Normalise, Population, Samples, build, unseen_ids
from coterie.data.draws import EqualBlocks
from coterie.data.pool import ArrayPool, greyed, resized
from coterie.data.population import Source, numbered
from coterie.data.shift import rotations


def make(
    clients: int = 8, *, validation: float = 0.0, drifts: tuple[Drift, ...] = (), unseen: int = 0, size: int = 5
) -> LazyPopulation:
    """Image i is all i but for its first pixel, 255; its label is i mod 4."""
    x = torch.arange(100, dtype=torch.uint8).view(100, 1, 1, 1).repeat(1, 1, 3, 3)
    x[:, :, 0, 0] = 255
    pool = ArrayPool(Samples(x, torch.arange(100) % 4))
    ids, extra = numbered(clients, unseen)
    source = Source(pool, pool, EqualBlocks(100, size, 0, "train"), EqualBlocks(100, 3, 0, "test"))
    return LazyPopulation(ids, (source,), tuple(rotations(4)), 4, Normalise(), 0, validation, drifts, unseen_ids=extra)


CORNERS = {0: (0, 0), 1: (2, 0), 2: (2, 2), 3: (0, 2)}
"""Where the first pixel goes in each quarter turn, counter-clockwise."""


def test_client_i_is_in_group_i_mod_k_and_all_parts_are_turned() -> None:
    population: Population = make(validation=0.4)
    for number, client in enumerate(population.ids):
        group = population.group(client)
        assert group == number % 4
        data = population.client(client)
        assert data.valid is not None
        assert (len(data.train), len(data.valid), len(data.test)) == (3, 2, 3)
        row, column = CORNERS[group]
        for part in (data.train, data.valid, data.test):
            assert (part.x[:, 0, row, column] == 255).all()
            assert (part.x[:, 0, 1, 1] % 4 == part.y).all()
            assert part.x.dtype == torch.uint8


def test_labels_alone_are_those_of_the_client() -> None:
    population = make(validation=0.4)
    data, labels = population.client("3"), population.labels("3")
    assert data.valid is not None
    assert labels.valid is not None
    assert torch.equal(data.train.y, labels.train)
    assert torch.equal(data.valid.y, labels.valid)
    assert torch.equal(data.test.y, labels.test)
    assert population.metadata("3") is None


def test_validation_is_cut_from_the_training_part() -> None:
    whole, cut = make(), make(validation=0.4)
    for client in whole.ids:
        data = cut.client(client)
        assert data.valid is not None
        together = torch.cat([data.train.x, data.valid.x])[:, 0, 1, 1]
        assert sorted(together.tolist()) == sorted(whole.client(client).train.x[:, 0, 1, 1].tolist())
    assert make(validation=0.5, size=1).client("0").valid is None


def test_a_client_is_the_same_whoever_else_there_is() -> None:
    few, many = make(8), make(1000)
    assert torch.equal(few.client("3").train.x, many.client("003").train.x)


def test_explicit_drift() -> None:
    population = make(drifts=(Drift(5, groups={"1": 3}),))
    assert [population.group("1", t) for t in (0, 4, 5, 9)] == [1, 1, 3, 3]
    assert [population.group("2", t) for t in (0, 9)] == [2, 2]
    before, after = population.client("1", 4).train, population.client("1", 5).train
    assert torch.equal(torch.rot90(before.x, 2, (2, 3)), after.x)
    assert torch.equal(before.y, after.y)


def test_random_drift_moves_the_fraction_to_other_groups() -> None:
    population = make(40, drifts=(Drift(2, 0.25), Drift(6, 1.0)), unseen=4)

    def groups(at: int) -> list[int | None]:
        return [population.group(client, at) for client in population.ids]

    assert groups(1) == groups(0)
    assert sum(a != b for a, b in zip(groups(1), groups(2), strict=True)) == 10
    assert all(a != b for a, b in zip(groups(5), groups(6), strict=True))
    assert len(set(groups(6))) == 4
    assert [population.group(client, 9) for client in population.unseen_ids] == [0, 1, 2, 3]


def test_unseen_clients_have_their_own_data() -> None:
    population = make(unseen=2)
    assert unseen_ids(population) == ("8", "9")
    assert len(population.ids) == 8
    seen = {int(v) for client in population.ids for v in population.client(client).train.x[:, 0, 1, 1]}
    for client in population.unseen_ids:
        data = population.client(client)
        assert len(data.train) == 5
        assert not seen & set(data.train.x[:, 0, 1, 1].tolist())


def test_errors() -> None:
    with pytest.raises(CoterieError, match="no client 'x'; the 8 clients are '0' to '7'"):
        make().client("x")
    with pytest.raises(CoterieError, match="no client 'x'"):
        make(drifts=(Drift(1, groups={"x": 1}),))
    with pytest.raises(CoterieError, match="cannot drift to group 4"):
        make(drifts=(Drift(1, groups={"1": 4}),))
    with pytest.raises(CoterieError, match="at least one client"):
        make(0)
    for validation in (-0.1, 1.0):
        with pytest.raises(CoterieError, match="validation part"):
            make(validation=validation)
    with pytest.raises(CoterieError, match="round -1"):
        Drift(-1, 0.5)
    with pytest.raises(CoterieError, match="give 0 to 1"):
        Drift(1, 1.5)
    with pytest.raises(CoterieError, match="not both"):
        Drift(1, 0.5, {"1": 0})


def test_a_hundred_thousand_clients_cost_little() -> None:
    """Names and their numbers are all that grows: about 150 bytes a client, against 2,240 of its images."""
    build("rotated-digits", seed=0)
    tracemalloc.start()
    population = build("rotated-digits", seed=0, clients=100_000)
    data = population.client("54321", 3)
    used, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert population.group("54321") == 1
    assert (len(population.ids), len(data.train), len(data.test)) == (100_000, 35, 100)
    assert peak < 30e6
    assert used < 20e6


def test_goes_through_pickle_to_a_worker() -> None:
    population = build("rotated-digits", seed=0, validation=0.2, drift=Drift(2, 0.5))
    population.client("05")
    copy = pickle.loads(pickle.dumps(population))
    assert torch.equal(copy.client("07", 3).train.x, population.client("07", 3).train.x)


def test_images_are_shared_until_asked_for() -> None:
    population = make()
    pool = population.sources[0].train
    assert isinstance(pool, ArrayPool)
    before = pool.samples.x.clone()
    population.client("0").train.x.fill_(0)
    assert torch.equal(pool.samples.x, before)


def test_resize_and_grey_by_hand() -> None:
    """A flat image stays flat at any size; pure red, green and blue weigh .299, .587 and .114 (of 255: 76, 150, 29)."""
    flat = Samples(torch.full((2, 1, 16, 16), 77, dtype=torch.uint8), torch.zeros(2))
    assert resized(flat, 28).x.shape == (2, 1, 28, 28)
    assert (resized(flat, 28).x == 77).all()
    assert (resized(flat, 5).x == 77).all()
    assert resized(flat, 16) is flat
    checks = torch.tensor([[0, 255], [255, 0]], dtype=torch.uint8).view(1, 1, 2, 2)
    assert resized(Samples(checks, torch.zeros(1)), 1).x.item() == 128
    colours = torch.zeros(3, 3, 1, 1, dtype=torch.uint8)
    colours[np.arange(3), np.arange(3)] = 255
    assert greyed(Samples(colours, torch.zeros(3))).x.flatten().tolist() == [76, 150, 29]
    assert greyed(flat) is flat

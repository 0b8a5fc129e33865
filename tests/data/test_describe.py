from __future__ import annotations

import numpy as np
import pytest

from coterie.core.samples import ClientId
from coterie.data import ClientData, Normalise, Spread, build, describe, from_arrays


def arrays(labels: list[int]) -> tuple[object, object, object, object]:
    x = np.zeros((len(labels), 2))
    return x, np.array(labels), x[:1], np.array(labels[:1])


def test_by_hand() -> None:
    population = from_arrays(
        {"a": arrays([0, 0, 0, 1]), "b": arrays([2, 2]), "c": arrays([0, 1, 2])},
        groups={"a": 0, "b": 0, "c": 1},
        unseen=["c"],
    )
    summary = describe(population)
    assert (summary.clients, summary.unseen, summary.inspected) == (2, 1, 2)
    assert summary.groups == {0: 2}
    assert summary.train == Spread(2, 3.0, 4)
    assert summary.test == Spread(1, 1.0, 1)
    assert summary.valid is None
    assert summary.labels == (3, 1, 2)
    assert summary.classes_per_client == Spread(1, 1.5, 2)
    assert summary.largest_share == pytest.approx((0.75 + 1) / 2)


def test_many_clients_are_sampled() -> None:
    summary = describe(build("rotated-digits", seed=0, clients=5000, validation=0.2), inspect=50)
    assert (summary.clients, summary.inspected) == (5000, 50)
    assert summary.groups == {0: 1250, 1: 1250, 2: 1250, 3: 1250}
    assert summary.train == Spread(28, 28.0, 28)
    assert summary.valid == Spread(7, 7.0, 7)


class Bare:
    """A population with nothing but the protocol."""

    def __init__(self) -> None:
        self._inner = from_arrays({"a": arrays([0, 1]), "b": arrays([1, 1])})
        self.ids = ("a", "b")
        self.shape = (2,)
        self.classes = 2
        self.normalise = Normalise()

    def client(self, client: ClientId, round: int = 0) -> ClientData:
        return self._inner.client(client, round)

    def group(self, client: ClientId, round: int = 0) -> int | None:
        return None


def test_any_population() -> None:
    summary = describe(Bare())
    assert summary.groups is None
    assert summary.unseen == 0
    assert summary.labels == (1, 3)

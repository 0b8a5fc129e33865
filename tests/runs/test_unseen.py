"""Clients that never train: judged like newcomers, at no cost and without a trace."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coterie import Result, run
from coterie.core import wire
from coterie.core.samples import ClientData, Samples
from coterie.data import build
from coterie.data.own import OwnPopulation
from coterie.methods import METHODS
from tests.tiny import made, small_net

STRANGERS = ("c07", "c08")


def ran(name: str, population: Any, **settings: Any) -> Result:
    return run(made(name, **settings), population, small_net, rounds=2, seed=1)


@pytest.fixture
def kept_back() -> OwnPopulation:
    whole = build("rotated-digits", seed=5, clients=9, samples=12, test_samples=12, groups=3)
    data = {f"c0{i}": whole.client(client) for i, client in enumerate(whole.ids)}
    groups = {f"c0{i}": i % 3 for i in range(9)}
    return OwnPopulation(data, whole.shape, whole.classes, whole.normalise, groups, STRANGERS)


SERVED = ["fedavg", "fedprox", "scaffold", "ifca", "fedsem", "cfl", "md-icfl", "oracle", "fedcg"]


@pytest.mark.parametrize("name", [*SERVED, "local", "fedfomo", "gossip", "panm"])
def test_they_change_nothing_for_the_others(name: str, kept_back: OwnPopulation) -> None:
    alone = replace(
        kept_back, clients={c: d for c, d in kept_back.clients.items() if c not in STRANGERS}, unseen_ids=()
    )
    with_them, without = ran(name, kept_back), ran(name, alone)
    if name in SERVED:
        assert with_them.unseen_accuracy is not None
        assert 0 <= with_them.unseen_accuracy <= 1
    else:  # there is no trained model for them, and an untrained one says nothing
        assert with_them.unseen_accuracy is None
    assert without.unseen_accuracy is None
    assert wire.encode(with_them.state) == wire.encode(without.state)
    assert with_them.models.keys() == without.models.keys()
    assert (with_them.bytes_down, with_them.bytes_up) == (without.bytes_down, without.bytes_up)
    assert with_them.per_client_accuracy == without.per_client_accuracy
    assert with_them.client_ids == [f"c0{i}" for i in range(7)]


def test_the_oracle_serves_them_by_their_group(kept_back: OwnPopulation) -> None:
    """Admitted for the trial alone: client c07 is in group 1, as c01 and c04 are."""
    method: Any = METHODS["oracle"](epochs=2, batch=4, lr=0.05)
    result = run(method, kept_back, small_net, rounds=2, seed=1)
    assert set(result.state.cluster) == {f"c0{i}" for i in range(7)}


def test_named_scenarios_take_a_number_or_a_fraction(coterie: Any, tmp_path: Any) -> None:
    for text, number in (("3", 3), ("0.25", 10)):
        said = coterie(
            "run", "fedavg", "--rounds", 1, "--set", f"scenario.unseen={text}", "--out", tmp_path / f"u{number}"
        )
        assert said.code == 0, said.err
        metrics = (tmp_path / f"u{number}" / "metrics.csv").read_text().splitlines()
        assert float(metrics[1].split(",")[metrics[0].split(",").index("unseen_accuracy")]) > 0


def test_by_sample_a_client_counts_as_much_as_it_has_samples(kept_back: OwnPopulation) -> None:
    """With 12 and 3 test samples, the one mean weighs the two clients alike and the other 4 to 1."""
    whole = kept_back.clients["c08"]
    few = ClientData(whole.train, Samples(whole.test.x[:3], whole.test.y[:3]))

    def of(strangers: tuple[str, ...]) -> Result:
        data = {**kept_back.clients, "c08": few}
        others = set(STRANGERS) - set(strangers)
        clients = {name: own for name, own in data.items() if name not in others}
        return ran("fedavg", replace(kept_back, clients=clients, unseen_ids=strangers))

    both, (long, brief) = of(STRANGERS), (of((name,)).unseen_accuracy for name in STRANGERS)
    assert long is not None
    assert brief is not None
    assert long != brief
    assert both.unseen_accuracy == pytest.approx((long + brief) / 2)
    assert both.unseen_sample_accuracy == pytest.approx((12 * long + 3 * brief) / 15)

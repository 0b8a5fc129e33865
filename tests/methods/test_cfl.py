"""CFL: splits, by hand and with four groups."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
import torch
from sklearn.metrics import adjusted_rand_score
from torch import nn

from coterie import run
from coterie.core.errors import CoterieError
from coterie.core.states import cosine, count
from coterie.core.task import Task
from coterie.data import build
from coterie.data.own import OwnPopulation
from coterie.methods.cfl import CFL, bipartition
from coterie.simulation.simulator import EngineOptions, Simulator

from ..tiny import batchnorm_net, made, one_weight, rows


def wide_net() -> nn.Module:
    """The MLP of the demo."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


STEP: dict[str, Any] = {"lr": 0.25, "epochs": 1, "batch": 0, "momentum": 0.0}


def test_the_halves_are_those_of_least_similarity_across() -> None:
    updates = torch.tensor([[1.0, 0.1], [-1.0, 0.2], [1.0, -0.1], [-1.0, 0.0], [1.0, 0.0]])
    found = bipartition(cosine(updates))
    assert found[0] == found[2] == found[4] != found[1] == found[3]


def test_neither_half_is_empty_where_all_differ_alike() -> None:
    """All merges have the same height: the last of them is undone, which leaves one client by itself."""
    assert sorted(bipartition(torch.eye(3)).count(half) for half in (False, True)) == [1, 2]
    updates = dict(zip("abc", torch.eye(3), strict=True))
    cfl = CFL(eps1=0.9, eps2=0.5, thresholds="absolute", least=2)
    assert len(cfl._halves(0, dict.fromkeys("abc", 0), updates, 1.0)) == 1


def test_a_split_by_hand() -> None:
    """The model is w x with loss (w x - y)^2; a and b want w = 2, c and d want w = -2; w starts at 0.

    With lr 0.25 the updates are 0.25 * 2 * 2 = +1, +1, -1, -1: their mean is 0 < eps1 and the longest 1 > eps2, so the
    cluster splits at once, and the two clusters' means are +1 and -1.
    """
    clients = rows(*[([1.0], [2])] * 2, *[([1.0], [-2])] * 2, groups=[0, 0, 1, 1])
    cfl = CFL(**STEP, eps1=0.5, eps2=0.5, thresholds="absolute", first_split=0, least=2)
    result = run(cfl, clients, one_weight(), rounds=1, loss="mse")
    assert result.ari == 1.0
    assert sorted(float(model["weight"]) for model in result.models.values()) == pytest.approx([-1.0, 1.0])
    for changed in ({"eps2": 1.5}, {"least": 5}, {"first_split": 1}, {"cross": -1.0}):
        whole = CFL(
            **{**STEP, "eps1": 0.5, "eps2": 0.5, "thresholds": "absolute", "first_split": 0, "least": 2, **changed}
        )
        kept = run(whole, clients, one_weight(), rounds=1, loss="mse")
        assert (kept.n_clusters == 1) is (changed != {"cross": -1.0})


def test_one_that_has_trained_and_is_away_once_stays_in_its_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a round of all four no updates are kept: one that then missed a round was taken for a client never met."""
    clients = rows(*[([1.0], [2])] * 2, *[([1.0], [-2])] * 2, groups=[0, 0, 1, 1])
    cfl = CFL(**STEP, eps1=0.5, eps2=0.5, thresholds="absolute", first_split=0, least=2)
    task = Task(one_weight, (1,), 10, loss="mse")
    with closing(Simulator(cfl, task, clients, seed=0, options=EngineOptions(workers=1))) as fed:
        state = cfl.init(fed)
        assert cfl.unmet(state, fed.ids) == []
        for number, there in enumerate((fed.ids, fed.ids[:3])):
            fed.round = number
            monkeypatch.setattr(fed, "sample", lambda share, there=there: there)
            state, _ = cfl.step(state, fed)
        assert (list(state.updates), count(state.models)) == (list(fed.ids[:3]), 2)
        assert cfl.unmet(state, fed.ids) == []
        assert cfl.unmet(state, ["late"]) == ["late"]
        state = cfl.admit(replace(state, cluster={i: state.cluster[i] for i in fed.ids[:3]}), fed, fed.ids[3:])
        assert cfl.unmet(state, fed.ids) == [], "a newcomer has chosen its cluster"


def test_agreeing_clients_stay_together() -> None:
    """All updates are +1: the mean is 1, not below eps1."""
    clients = rows(*[([1.0], [2])] * 4, groups=[0] * 4)
    cfl = CFL(**STEP, eps1=0.5, eps2=0.5, thresholds="absolute", first_split=0, least=2)
    assert run(cfl, clients, one_weight(), rounds=1, loss="mse").n_clusters == 1


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_four_groups_are_always_a_partition(fraction: float) -> None:
    """The public implementations lose or double clients from the third cluster on."""
    population = build("rotated-digits", seed=3, clients=16, samples=35, test_samples=10)
    result = run(CFL(fraction=fraction, first_split=3, cross=1.0, eps1=0.6, eps2=0.5), population, wide_net, rounds=12)
    assert result.clusters is not None
    assert len(result.clusters) == 16
    assert result.n_clusters is not None
    assert result.n_clusters >= 4
    assert sorted(set(result.clusters)) == list(range(len(result.models)))


def test_four_rotations_are_found() -> None:
    population = build("rotated-digits", seed=0, clients=24, samples=35, test_samples=10)
    result = run(CFL(), population, wide_net, rounds=14)
    assert adjusted_rand_score(result.truth, result.clusters) > 0.9


def test_buffers_are_averaged_too(digits: OwnPopulation) -> None:
    result = run(made("cfl"), digits, batchnorm_net, rounds=1)
    assert float(result.models["cluster-0"]["1.running_mean"].abs().max()) > 0
    assert result.state.similarity is not None


@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [
        ("eps1", 0.0, "eps1 must be above 0"),
        ("eps2", -1.0, "eps2 must be at least 0"),
        ("cross", 2.0, r"cross must lie in \[-1, 1\]"),
        ("first_split", -1, "first_split must be at least 0"),
        ("least", 1, "least must be at least 2"),
    ],
)
def test_settings_out_of_range(setting: str, value: float, says: str) -> None:
    with pytest.raises(CoterieError, match=f"cfl: {says}, not {value}"):
        CFL(**{setting: value})  # type: ignore[arg-type]

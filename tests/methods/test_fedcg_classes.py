"""FedCG's domains by the means of each class: skewed and swapped labels, one group, late domains, mixed clients."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie import Result, load, run
from coterie.core.cohort import Cohort
from coterie.core.errors import Interrupted
from coterie.core.groupings import adjusted_rand
from coterie.core.samples import ClientData, Samples
from coterie.core.task import Task
from coterie.data import Drift, build
from coterie.data.own import OwnPopulation
from coterie.data.population import LazyPopulation
from coterie.methods.fedcg import FedCG, class_finder
from coterie.methods.fedcg.class_finder import class_sums, marks
from coterie.methods.fedcg.classes import Means, joined
from coterie.methods.fedcg.messages import ClassSums
from coterie.models import build_model
from coterie.simulation.faults import Faults
from coterie.simulation.simulator import EngineOptions

from ..tiny import StopAt, cohort, fingerprint

ALONE = EngineOptions(workers=1)
QUICK: dict[str, Any] = {"epochs": 1, "batch": 16, "lr": 0.1, "momentum": 0.0, "finetune_epochs": 0}
DIGITS: dict[str, Any] = {"clients": 40}
LATE: dict[str, Any] = {"clients": None, "group_sizes": (8, 8, 8, 8, 8)}


def digits(seed: int = 0, **scenario: Any) -> LazyPopulation:
    given: dict[str, Any] = {**DIGITS, **scenario}
    return build("rotated-digits", seed=seed, **given)


def ran(population: LazyPopulation | OwnPopulation, rounds: int = 1, **more: Any) -> Result:
    settings: dict[str, Any] = {key: more.pop(key) for key in ("means", "domains", "routing", "lr") if key in more}
    model = partial(build_model, "digits-mlp", tuple(population.shape), population.classes)
    return run(FedCG(**{**QUICK, **settings}), population, model, rounds=rounds, engine=ALONE, **more)


def ari(population: LazyPopulation, state: Any) -> float:
    ids = sorted(state.cluster)
    return adjusted_rand([state.cluster[i] for i in ids], [population.group(i) or 0 for i in ids])


@pytest.mark.parametrize("seed", [3, 4])
@pytest.mark.parametrize(
    "scenario",
    [{"alpha": 3.0, "partition": "dirichlet-client"}, {"shift": "swap"}, {"shift": "cycle"}, {"groups": 8}],
)
def test_domains_are_told_from_labels(seed: int, scenario: dict[str, Any]) -> None:
    population = digits(seed, **scenario)
    state = ran(population, seed=seed, domains=scenario.get("groups", 4)).state
    assert len(state.cluster) >= 38
    assert ari(population, state) == 1.0
    assert bool(state.student) == ("shift" not in scenario), "inputs do not tell swapped labels"
    inputs = ran(population, seed=seed, means="inputs").state
    assert inputs.looks is None
    assert not inputs.cluster


@pytest.mark.parametrize("scenario", [{}, {"alpha": 0.5, "partition": "dirichlet-client"}])
def test_one_group_stays_one_domain_whatever_number_is_told(scenario: dict[str, Any]) -> None:
    state = ran(digits(5, groups=1, **scenario), seed=5, domains=4).state
    assert set(state.cluster.values()) == {0}
    assert state.looks.members.tolist() == [40, 0, 0, 0]


@pytest.fixture(scope="module")
def newcomers() -> LazyPopulation:
    return digits(6, **LATE)


def late(population: LazyPopulation, **more: Any) -> Result:
    return ran(population, rounds=4, seed=6, faults=Faults(joins=((2, 8),), joiners="last"), **more)


@pytest.mark.parametrize("told", [4, 5])
def test_newcomers_unlike_all_others_found_a_domain(told: int, newcomers: LazyPopulation) -> None:
    """In a number that is free, or in one more; either way the same network."""
    result = late(newcomers, domains=told)
    assert ari(newcomers, result.state) == 1.0
    assert result.ari == 1.0
    assert len(result.state.model["network.3.residual"]) == 5
    assert result.state.student["weight"].shape[1] == 5
    other = late(newcomers, domains=9 - told)
    assert torch.equal(result.state.model["network.3.residual"], other.state.model["network.3.residual"])
    inputs = late(newcomers, domains=told, means="inputs")
    assert (inputs.ari or 0) < 0.9


def test_drifting_clients_are_followed_to_old_and_new_domains() -> None:
    for to, sizes, number in (("other", (10, 10, 10, 10), 4), ("new", (10, 10, 10, 10, 0), 5)):
        population = digits(
            7,
            clients=None,
            group_sizes=sizes,
            drift=[Drift(2, 0.2, to=to)],  # type: ignore[arg-type]
        )
        result = ran(population, rounds=5, seed=7, domains=4)
        assert result.ari == 1.0
        members = result.state.looks.members
        assert len(members) == number
        assert int(members.sum()) == 48, "eight clients were looked at twice"


def test_a_run_that_has_found_a_domain_late_can_be_resumed_and_used(newcomers: LazyPopulation, tmp_path: Path) -> None:
    whole = late(newcomers, domains=4, out=tmp_path / "whole")
    for stop in (2, 3):
        with pytest.raises(Interrupted):
            late(newcomers, domains=4, out=tmp_path / f"at{stop}", view=StopAt(stop))
        assert fingerprint(late(newcomers, domains=4, out=tmp_path / f"at{stop}", resume=True)) == fingerprint(whole)
    last = newcomers.ids[-1]
    model = partial(build_model, "digits-mlp", tuple(newcomers.shape), newcomers.classes)
    told = load(tmp_path / "whole", model=model).predict(last, newcomers.client(last).test.x)
    right = float(np.mean(np.asarray(told) == newcomers.client(last).test.y.numpy()))
    assert right == pytest.approx(whole.per_client_accuracy[-1])


def test_a_client_that_mixes_domains_is_told_sample_by_sample_beside_pure_ones() -> None:
    """Four of forty clients have half of their samples turned by a quarter; the others keep one domain for all."""
    population = digits(8, samples=200)
    data = {client: population.client(client) for client in population.ids}
    mixed = [f"{number:02d}" for number in (0, 11, 22, 33)]
    assert set(mixed) < set(data)
    for client in mixed:
        data[client] = ClientData(*(half_turned(part) for part in (data[client].train, data[client].test)))
    groups = {client: population.group(client) or 0 for client in population.ids}
    own = OwnPopulation(data, population.shape, 10, population.normalise, groups)
    state = ran(own, seed=8).state
    assert sorted(set(own.ids) - set(state.cluster)) == mixed
    assert ari(own, state) == 1.0  # type: ignore[arg-type]
    assert not state.pooled
    pure = ran(population, seed=8).state
    assert pure.pooled
    assert len(pure.cluster) == 40


def half_turned(samples: Samples) -> Samples:
    x = samples.x.clone()
    x[::2] = torch.rot90(x[::2], 1, (2, 3))
    return Samples(x, samples.y)


def described(rows: list[list[Tensor]]) -> Means:
    """Rows of clients with samples [n, h] by class."""
    sums = torch.stack([torch.stack([own.sum(0) for own in classes]) for classes in rows])
    counts = torch.tensor([[float(len(own)) for own in classes] for classes in rows])
    every = torch.cat([own for classes in rows for own in classes]).double()
    return Means.of(sums, counts, every.T @ every)


def test_groups_are_joined_by_the_classes_that_they_share() -> None:
    """Two domains, three classes; each client lacks one, and a last client shares no class with anybody."""
    g = np.random.default_rng(0)
    centres = 2.0 * g.normal(size=(2, 4, 6))
    rows = []
    for client in range(12):
        held = [c for c in range(3) if c != client % 3]
        rows.append(
            [torch.from_numpy(centres[client // 6, c] + g.normal(size=(20 if c in held else 0, 6))) for c in range(4)]
        )
    assert joined(described(rows), [1] * 12) == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
    rows.append([torch.zeros(0, 6, dtype=torch.float64)] * 3 + [torch.from_numpy(g.normal(size=(20, 6)))])
    means = described(rows)
    assert len(joined(means, [1] * 13)) == 3
    assert [len(group) for group in joined(means, [1] * 13, most=2)] in ([7, 6], [6, 7])
    assert joined(means, [1] * 13, most=1) == [list(range(13))]
    alike = means.unlike(torch.tensor([0] * 6 + [1] * 6 + [2]))
    wrong = means.unlike(torch.tensor([1] + [0] * 5 + [1] * 6 + [2]))
    most = means.most_unlike()
    assert bool((alike <= most).all())
    assert float(wrong[0]) > 2 * float(most[0])


def test_no_cut_through_one_wide_group_is_two_domains() -> None:
    """Forty clients whose means scatter along one line by chance alone: halves of it are far apart, and are one."""
    g = np.random.default_rng(1)
    rows = [[torch.from_numpy(g.normal(size=(30, 1)) + 0.1 * g.normal(size=(30, 3)))] for _ in range(40)]
    means = described(rows)
    assert means.widest > 0.9
    assert len(joined(means, [1] * 40)) == 1


def test_a_mark_tells_other_data_and_nothing_else() -> None:
    """The same in every round; another for other inputs, other labels, and in another run."""
    population = digits(0)
    model = partial(build_model, "digits-mlp", tuple(population.shape), population.classes)
    some = cohort(population, Task.of(model, population), list(population.ids[:3]))  # type: ignore[arg-type]
    mark = marks(some)
    assert len(set(mark.tolist())) == 3
    assert torch.equal(mark, marks(replace(some, round=3)))
    assert torch.equal(mark, class_sums(some, 32).mark)
    turned = tuple(ClientData(half_turned(own.train), own.test) for own in some.data)
    relabelled = tuple(ClientData(Samples(own.train.x, (own.train.y + 1) % 10), own.test) for own in some.data)
    others = [replace(some, data=turned), replace(some, data=relabelled), replace(some, seed=5)]
    assert all(bool((marks(other) != mark).all()) for other in others)


def test_samples_of_an_unknown_class_are_left_out() -> None:
    population = digits(0)
    model = partial(build_model, "digits-mlp", tuple(population.shape), population.classes)
    one = cohort(population, Task.of(model, population), [population.ids[0]])  # type: ignore[arg-type]
    own = one.data[0].train
    odd = Samples(own.x, torch.where(torch.arange(len(own)) < 5, 57, own.y))
    told = class_sums(replace(one, data=(ClientData(odd, odd),)), 32)
    assert int(told.counts.sum()) == len(own) - 5


def test_clients_that_show_other_data_in_every_round_do_not_grow_the_network_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three that agree would found a domain a round, each as large as the last; they are followed five times."""
    population = digits(7)
    liars = population.ids[:9:4]  # of one group, so that they look alike
    true_sums, true_mark = class_finder.class_sums, class_finder._mark

    def sums(c: Cohort, features: int) -> ClassSums:
        order = torch.randperm(64, generator=torch.Generator().manual_seed(c.round))
        data = [
            ClientData(Samples(own.train.x.flatten(1)[:, order].view_as(own.train.x), own.train.y), own.test)
            if client in liars and c.round
            else own
            for client, own in zip(c.ids, c.data, strict=True)
        ]
        return true_sums(replace(c, data=tuple(data)), features)

    monkeypatch.setattr("coterie.methods.fedcg.method.class_sums", sums)
    monkeypatch.setattr(class_finder, "_mark", lambda c, i: c.round if c.ids[i] in liars else true_mark(c, i))
    state = ran(population, rounds=20, seed=7, domains=4).state
    assert 4 < len(state.looks.members) <= 4 + class_finder._TRIES
    assert [state.looks.tries[client] for client in liars] == [class_finder._TRIES] * 3


def test_a_network_has_a_largest_number_of_domains() -> None:
    free = class_finder._Free(range(31), 31, may_grow=True)
    assert [free.next(), free.next()] == [31, None]
    assert class_finder._Free([0], 3, may_grow=False).next() == 1

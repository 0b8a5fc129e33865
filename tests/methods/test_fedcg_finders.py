"""FedCG's ways to find domains: k-means on models that learnt something, and a teacher balanced over all clients."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from sklearn.metrics import normalized_mutual_info_score
from torch import Tensor, nn

from coterie import Result, run
from coterie.core.samples import ClientData, Normalise, Samples
from coterie.core.states import State, distance, flat
from coterie.core.task import Task
from coterie.data import build
from coterie.data.own import OwnPopulation
from coterie.methods.base import Models
from coterie.methods.fedcg import FedCG
from coterie.methods.fedcg.classifier import with_offsets
from coterie.methods.fedcg.finders import TeacherFinder
from coterie.methods.fedcg.wrapping import plain
from coterie.models import build_model
from coterie.simulation.faults import Faults
from coterie.simulation.simulator import EngineOptions, Simulator
from tests.methods.test_equipartition import per_client

from ..tiny import cohort

ALONE = EngineOptions(workers=1)
QUICK: dict[str, Any] = {"epochs": 1, "batch": 16, "lr": 0.1, "momentum": 0.0, "finetune_epochs": 0}


def on_digits(seed: int, **settings: Any) -> Result:
    """The clients of docs/results/fedcg.md's tables, one round of two of them: only the search is of interest."""
    population = build("rotated-digits", seed=seed, clients=40)
    model = partial(build_model, "digits-cnn", tuple(population.shape), population.classes)
    preset = settings.pop("preset", "robust")
    method = FedCG.preset(preset, **{**QUICK, "fraction": 2, "find": "models", **settings})
    return run(method, population, model, rounds=1, seed=seed, engine=ALONE)


@pytest.mark.parametrize("preset", ["robust", "paper"])
def test_models_trained_alone_show_the_rotations(preset: str) -> None:
    """By default; with one epoch, three steps on 35 images, there is nothing to see (ARI about 0)."""
    assert on_digits(0, preset=preset).ari == 1.0
    assert abs(on_digits(0, preset=preset, alone_epochs=1).ari or 0.0) < 0.1


def test_newcomers_train_alone_as_the_first_clients_did() -> None:
    """At the rate of the first round, whatever the round: the centres are of models with that rate."""
    population = build("rotated-digits", seed=0, clients=40)
    some = OwnPopulation(
        {client: population.client(client) for client in population.ids},
        population.shape,
        population.classes,
        population.normalise,
        {client: population.group(client) or 0 for client in population.ids},
        tuple(population.ids[:8]),
    )
    model = partial(build_model, "digits-cnn", tuple(some.shape), some.classes)
    method = FedCG(**QUICK, fraction=2, find="models", lr_decay=0.5)
    result = run(method, some, model, rounds=4, seed=0, engine=ALONE)
    assert result.ari == 1.0
    task = method.task(Task.of(model, some))
    settled = {some.group(client): result.state.cluster[client] for client in some.ids}
    late = replace(cohort(some, task, list(some.unseen_ids), round=4), seed=0)
    alone = method.train_alone(late, Models(plain(task).init(0))).model
    nearest = distance({"": flat(alone)}, {"": result.state.centres}).argmin(1)
    assert nearest.tolist() == [settled[some.group(client)] for client in some.unseen_ids]


def sources(clients: int = 12, samples: int = 20) -> OwnPopulation:
    """Clients of one of three sources: dark noise, bright noise, stripes."""
    g = torch.Generator().manual_seed(4)
    kinds = [torch.zeros(1, 8, 8), torch.full((1, 8, 8), 0.8), torch.tensor([0.0, 0.9]).repeat(4).expand(1, 8, 8)]

    def drawn(kind: int) -> Samples:
        x = kinds[kind] + 0.1 * torch.rand(samples, 1, 8, 8, generator=g)
        return Samples(x, torch.randint(10, (samples,), generator=g))

    data = {f"s{k}": ClientData(drawn(k % 3), drawn(k % 3)) for k in range(clients)}
    return OwnPopulation(data, (1, 8, 8), 10, Normalise(), {f"s{k}": k % 3 for k in range(clients)})


def net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 3, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(27, 10))


def said(method: FedCG, population: OwnPopulation, teacher: State) -> list[Tensor]:
    """The teacher's outputs for the samples of every client."""
    task = method.task(Task.of(net, population))
    finder = TeacherFinder(method)
    return [
        finder.log_probabilities(task, teacher, population.client(client).train).float() for client in population.ids
    ]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_balance_is_over_all_clients_not_within_each(seed: int) -> None:
    """The untrained teacher has one domain for all; balanced within clients it cuts every source into three."""
    population = sources()
    right = [population.group(client) for client in population.ids for _ in range(20)]
    method = FedCG.preset("paper", **QUICK, domains=3, balance=True)
    first = run(method, population, net, rounds=1, seed=seed, engine=ALONE)
    teacher = first.state.teacher
    before = said(method, population, teacher)
    even = said(method, population, with_offsets(teacher, first.state.offsets))

    def agreement(labels: list[Tensor]) -> float:
        return float(normalized_mutual_info_score(right, torch.cat(labels)))

    within = agreement([per_client(outputs.double()) for outputs in before])
    over_all = agreement([outputs.argmax(1) for outputs in even])
    assert within < 0.25
    assert over_all > 0.5
    counts = torch.bincount(torch.cat([outputs.argmax(1) for outputs in even]), minlength=3)
    assert counts.min() >= 0.1 * counts.sum()
    assert first.state.samples == counts.tolist(), "the domains that clients trained with"


def test_the_teacher_collapses_without_balance() -> None:
    history = run(
        FedCG.preset("paper", **QUICK, domains=3), sources(), net, rounds=1, seed=0, engine=ALONE
    ).state.history
    assert history["largest domain"][0] > 0.6


def test_a_new_teacher_is_balanced_anew_and_lost_replies_are_asked_again() -> None:
    settings = {**QUICK, "domains": 3, "balance": True, "teacher_every": 2, "classifier_lr": 0.5}
    method = FedCG.preset("paper", **settings)
    population = sources()
    one, two, three = (run(method, population, net, rounds=r, seed=0, engine=ALONE).state for r in (1, 2, 3))
    assert len(one.offsets) == 3
    assert len(two.offsets) == 0, "the student has become the teacher"
    assert len(three.offsets) == 3
    assert not torch.equal(one.offsets, three.offsets)
    task = method.task(Task.of(net, population))
    nobody = Simulator(method, task, population, seed=0, faults=Faults(dropout=1.0), options=ALONE)
    nobody.begin(0)
    lost, _ = method.step(method.init(nobody), nobody)
    nobody.close()
    assert len(lost.offsets) == 0
    late = run(method, population, net, rounds=3, seed=0, engine=ALONE, faults=Faults(dropout=0.6)).state
    assert len(late.offsets) == 3
    off = run(replace(method, balance=False), population, net, rounds=1, seed=0, engine=ALONE).state
    assert len(off.offsets) == 0

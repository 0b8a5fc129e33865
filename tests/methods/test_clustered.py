"""Newcomers of methods with a model per cluster, and clients that have not come yet."""

from __future__ import annotations

import torch

from coterie.core import wire
from coterie.core.task import Task
from coterie.methods.auto import Auto
from coterie.methods.base import Models
from coterie.methods.cfl import CFL, Branches
from coterie.methods.clustered import least_loss
from coterie.methods.fedsem import Centres, FedSEM
from coterie.methods.fedsoft import FedSoft, SoftClusters
from coterie.methods.md_icfl import MDICFL
from coterie.runs.evaluation import Evaluator
from coterie.simulation.simulator import EngineOptions, Simulator

from ..tiny import cohort, one_weight, rows

MODELS = {"weight": torch.tensor([[[1.0]], [[4.0]]])}


def test_a_newcomer_goes_where_its_training_loss_is_least() -> None:
    """Models x and 4 x: (1, 2) has losses 1 and 4, (1, 3) has 4 and 1, (2, 8) 36 and 0."""
    population = rows(([1.0], [2]), ([1.0], [3]), ([2.0], [8]))
    task = Task(one_weight, (1,), 10, loss="mse")
    assert least_loss(cohort(population, task), MODELS).tolist() == [0, 1, 1]
    assert least_loss(cohort(population, task), {"weight": MODELS["weight"][:1]}).tolist() == [0, 0, 0]
    method = FedSEM(k=2)
    fed = Simulator(method, task, population, seed=0, options=EngineOptions(workers=1))
    first, second, third = population.ids
    state = Centres(MODELS, {second: 0}, {})
    after = method.admit(state, fed, [first, second, third])
    assert after.cluster == {first: 0, second: 0, third: 1}  # who has a cluster keeps it
    assert method.model_for(after, [third])[1] == [1]
    assert method.admit(after, fed, population.ids).cluster == after.cluster


def test_a_client_that_has_not_come_is_served_by_the_group_that_fits_it() -> None:
    """Of the models x, 4 x and 2 x the last has no members. (1, 2) fits x better, and (2, 8) and (1, 3) fit 4 x.

    Whoever is in a cluster stays there. The two models that have members go to each who is not, as evaluation.
    """
    population = rows(([1.0], [2]), ([1.0], [3]), ([2.0], [8]), ([1.0], [1]))
    task = Task(one_weight, (1,), 10, loss="mse")
    three = {"weight": torch.tensor([[[1.0]], [[4.0]], [[2.0]]])}
    method = FedSEM(k=3)
    fed = Simulator(method, task, population, seed=0, options=EngineOptions(workers=1))
    first, second, third, fourth = population.ids
    state = Centres(three, {second: 0, fourth: 1}, {})
    found = Evaluator(method, fed, 9).evaluate(state)
    assert dict(zip(found.ids, found.clusters or (), strict=True)) == {first: 0, second: 0, third: 1, fourth: 1}
    assert state.cluster == {second: 0, fourth: 1}
    down, one = fed.ledger.down, wire.encoded_size(Models({"weight": three["weight"][0]}))
    assert down["train"] == 0
    assert down["evaluation"] == 4 * one + 2 * wire.encoded_size(Models({"weight": three["weight"][:2]}))


def test_who_is_asked_where_there_is_one_group_and_where_clients_only_seem_met() -> None:
    """With one group in use nobody is asked. CFL has all in a cluster at once: who has never trained is not met."""
    population = rows(([1.0], [2]), ([2.0], [8]))
    task = Task(one_weight, (1,), 10, loss="mse")
    first, second = population.ids
    for method in (FedSEM(k=2), MDICFL(k=2), Auto()):
        fed = Simulator(method, task, population, seed=0, options=EngineOptions(workers=1))
        assert method.placed(Centres(MODELS, {first: 1}, {}), fed, population.ids).cluster == {first: 1, second: 1}  # type: ignore[arg-type]
        assert fed.ledger.down["evaluation"] == 0
        fed.close()
    cfl = CFL()
    fed = Simulator(cfl, task, population, seed=0, options=EngineOptions(workers=1))
    state = Branches(MODELS, {first: 0, second: 0, "other": 1}, {}, 1.0, met=[first, "other"])
    assert cfl.placed(state, fed, population.ids).cluster[second] == 1
    older = Branches(MODELS, state.cluster, {first: torch.zeros(1)}, 1.0)  # a checkpoint that does not say who was met
    assert cfl.placed(older, fed, population.ids).cluster == state.cluster
    fed.close()


def test_fedsoft_serves_whom_it_has_not_met_with_the_centre_that_fits() -> None:
    """(2, 8) fits 4 x; its mixture has the least weight sigma of the other centre, evaluated or loaded."""
    population = rows(([2.0], [8]))
    method, task = FedSoft(k=2, least=0.5), Task(one_weight, (1,), 10, loss="mse")
    fed = Simulator(method, task, population, seed=0, options=EngineOptions(workers=1))
    (client,) = population.ids
    state = SoftClusters(MODELS, {"x": 0, "y": 1}, {"x": torch.tensor([1.0, 0.5])}, begun=True)
    after = method.placed(state, fed, [client])
    fed.close()
    assert after.cluster[client] == 1
    models, _ = method.model_for(after, [client])
    assert float(models["weight"]) == (0.5 * 1 + 1 * 4) / 1.5
    assert float(method.model_of(state, client, 1)["weight"]) == float(models["weight"])
    assert float(method.model_of(state, client, None)["weight"]) == 2.5

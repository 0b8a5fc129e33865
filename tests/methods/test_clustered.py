"""Newcomers of methods with a model per cluster."""

from __future__ import annotations

import torch

from coterie.core.task import Task
from coterie.methods.clustered import least_loss
from coterie.methods.fedsem import Centres, FedSEM
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

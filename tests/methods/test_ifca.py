"""IFCA, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from coterie import run
from coterie.core.errors import CoterieError
from coterie.core.states import count
from coterie.core.task import Task
from coterie.data.own import OwnPopulation
from coterie.methods.clustered import Clusters
from coterie.methods.ifca import IFCA
from coterie.simulation.simulator import EngineOptions, Simulator

from ..tiny import made, one_weight, rows, small_net

METHOD = IFCA(k=3, lr=0.25, epochs=1, batch=0, momentum=0.0)


def simulated(population: OwnPopulation, method: IFCA) -> Simulator:
    task = Task(one_weight, population.shape, population.classes, population.normalise, loss="mse")
    return Simulator(method, task, population, seed=0, options=EngineOptions(workers=1))


def test_one_round_by_hand() -> None:
    """The model is w * x with loss (w x - y)^2; the three models are 0, 4 and 100.

    a has (1, 1): losses 1, 9, 9801, so cluster 0; b and c have (1, 6): losses 36, 4, 8836, so cluster 1.
    a trains 0 to 0 + 0.25 * 2 = 0.5; b and c train 4 to 4 + 0.25 * 4 = 5. Nobody picks 100, which stays.
    """
    clients = rows(([1.0], [1]), ([1.0] * 3, [6] * 3), ([1.0], [6]))
    start = Clusters({"weight": torch.tensor([0.0, 4.0, 100.0]).view(3, 1, 1)}, {})
    state, log = METHOD.step(start, simulated(clients, METHOD))
    assert state.models["weight"].flatten().tolist() == pytest.approx([0.5, 5.0, 100.0], abs=1e-6)
    assert state.cluster == {"a": 0, "b": 1, "c": 1}
    assert log == {"moved": 0, "sizes": [1, 2, 0]}


def test_a_client_that_changes_its_mind_is_counted() -> None:
    """From models 0 and 4 with a's choice 0 remembered as 1."""
    clients = rows(([1.0], [1]), ([1.0], [6]))
    start = Clusters({"weight": torch.tensor([0.0, 4.0, 100.0]).view(3, 1, 1)}, {"a": 1, "b": 1})
    state, log = METHOD.step(start, simulated(clients, METHOD))
    assert log["moved"] == 1
    assert METHOD.clusters(state, ["a", "b", "stranger"]) == [0, 1, -1]


def test_the_choice_can_be_made_on_a_few_samples(digits: OwnPopulation) -> None:
    whole = run(made("ifca"), digits, small_net, rounds=2, seed=1)
    few = run(made("ifca", score_batch=2), digits, small_net, rounds=2, seed=1)
    all_of_them = run(made("ifca", score_batch=1000), digits, small_net, rounds=2, seed=1)
    assert all_of_them.clusters == whole.clusters
    assert few.bytes_down == whole.bytes_down


def test_restarts_draw_again_until_every_model_attracts_someone() -> None:
    """With models w drawn by torch and clients (1, 9) only, all pick the largest w: every start has collapsed.

    So all restarts are used, each at the cost of one more round of choices; and the models are other ones.
    """
    clients = rows(*[([1.0], [9])] * 4)

    def drawn() -> nn.Module:
        return nn.Linear(1, 1, bias=False)

    def start(restarts: int) -> tuple[list[float], int]:
        method = replace(METHOD, restarts=restarts, min_share=0.25)
        fed = Simulator(method, Task(drawn, (1,), 10, loss="mse"), clients, seed=0, options=EngineOptions(workers=1))
        state = method.init(fed)
        assert count(state.models) == 3
        return state.models["weight"].flatten().tolist(), fed.ledger.up["train"]

    (first, nothing), (second, once), (third, twice) = start(0), start(1), start(2)
    assert nothing == 0 < once < twice == 2 * once
    assert len({*first, *second, *third}) == 9


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"k": -1}, "k must be at least 1"),
        ({"score_batch": -1}, "score_batch must be at least 0"),
        ({"restarts": -1}, "restarts must be at least 0"),
        ({"min_share": 0.5, "restarts": 1}, "min_share must be at most 1/k = 0.25"),
    ],
)
def test_settings_out_of_range(settings: dict[str, float], says: str) -> None:
    with pytest.raises(CoterieError, match=f"ifca: {says}"):
        IFCA(**settings)  # type: ignore[arg-type]


def test_more_clusters_than_clients(digits: OwnPopulation) -> None:
    with pytest.raises(CoterieError, match="k = 10 clusters need at least as many clients, but there are 9"):
        run(made("ifca", k=10), digits, small_net, rounds=1)

"""FedSoft, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from coterie.core.aggregate import Rule
from coterie.core.errors import CoterieError
from coterie.core.evaluation import sample_losses
from coterie.core.samples import Samples
from coterie.core.states import stack
from coterie.core.task import Task
from coterie.data import build
from coterie.methods.base import Trained
from coterie.methods.fedsoft import FedSoft, SoftClusters
from coterie.models import build_model
from coterie.simulation.simulator import EngineOptions, Simulator

from ..tiny import one_weight, rows

METHOD = FedSoft(k=2, lam=0.5, lr=0.25, epochs=1, batch=0, momentum=0.0, aggregate="mean", every=1)


def test_one_round_by_hand() -> None:
    """The model is w * x with loss (w x - y)^2; the centres are 0 and 4.

    a has (1, 0), (1, 4), (1, 4), (1, 4): centre 0 fits one sample best, centre 4 three, so u_a = (1/4, 3/4). b has
    (1, 0) twice: u_b = (1, 0), and 0 becomes sigma = 0.0001. a begins with 1/4 * 0 + 3/4 * 4 = 3, and its mean gradient
    is 2 (w - 3) = 0 there, as is the pull to its mixture: it stays 3. b begins with 4 * 0.0001 / 1.0001 and has the
    gradient 2 w: it ends at half of it. c_0 = (4/4 * 3 + 2 * b) / (1 + 2), c_1 = (3 * 3 + 0.0002 * b) / 3.0002.
    """
    clients = rows(([1.0] * 4, [0, 4, 4, 4]), ([1.0] * 2, [0, 0]))
    task = Task(one_weight, clients.shape, clients.classes, clients.normalise, loss="mse", dtype=torch.float64)
    fed = Simulator(METHOD, task, clients, seed=0, options=EngineOptions(workers=1))
    start = SoftClusters({"weight": torch.tensor([0.0, 4.0], dtype=torch.float64).view(2, 1, 1)}, {}, {}, begun=True)
    state, log = METHOD.step(start, fed)
    b = 4 * 1e-4 / 1.0001 / 2
    assert state.weights["a"].tolist() == pytest.approx([0.25, 0.75])
    assert state.weights["b"].tolist() == pytest.approx([1.0, 1e-4])
    expected = [(3 + 2 * b) / 3, (9 + 2e-4 * b) / 3.0002]
    assert state.models["weight"].flatten().tolist() == pytest.approx(expected, rel=1e-6)
    assert state.cluster == {"a": 1, "b": 0}
    assert log["softness"] == pytest.approx((0.25 + 1e-4 / 1.0001) / 2, rel=1e-3)


def test_the_first_round_finds_centres_from_one_common_model() -> None:
    """From w = 0 with rate 0.25 clients with y = 2 go to 1, those with y = -2 to -1: these are the two centres."""
    clients = rows(([1.0], [2]), ([1.0], [2]), ([-1.0], [2]), ([-1.0], [2]))
    task = Task(one_weight, clients.shape, clients.classes, clients.normalise, loss="mse", dtype=torch.float64)
    fed = Simulator(METHOD, task, clients, seed=0, options=EngineOptions(workers=1))
    start = SoftClusters({"weight": torch.zeros(2, 1, 1, dtype=torch.float64)}, {}, {})
    state, _ = METHOD.step(start, fed)
    assert state.begun
    assert sorted(state.models["weight"].flatten().tolist()) == pytest.approx([-1.0, 1.0])
    weighed = METHOD.admit(state, fed, ["a", "c"])
    assert weighed.cluster["a"] != weighed.cluster["c"]


def test_losses_of_single_samples_have_the_mean_that_scores_have() -> None:
    population = build("rotated-digits", seed=0, clients=4, samples=20)
    task = Task.of(build_model("digits-mlp", population.shape, population.classes), population)
    models, samples = stack([task.init(0), task.init(1)]), population.client("0").train
    each = sample_losses(task, models, samples)
    assert each.shape == (2, 20)
    by_one = [[float(task.loss_of(*_answer(task, models, k, samples, n))) for n in range(20)] for k in range(2)]
    assert torch.allclose(each, torch.tensor(by_one, dtype=torch.float64), rtol=1e-4)


def _answer(task: Task, models: dict[str, torch.Tensor], k: int, samples: Samples, n: int) -> list[torch.Tensor]:
    module = task.loaded({name: tensor[k] for name, tensor in models.items()}).eval()
    one = samples.take(torch.tensor([n]))
    with torch.inference_mode():
        return [module(task.inputs(one.x)), one.y]


def test_settings_out_of_range() -> None:
    for settings, says in (
        ({"k": -1}, "k must be"),
        ({"lam": -1}, "lam must be"),
        ({"every": 0}, "every must be"),
        ({"least": 0}, "least must lie"),
    ):
        with pytest.raises(CoterieError, match=says):
            FedSoft(**settings)  # type: ignore[arg-type]


def test_clients_can_have_samples_of_the_next_group() -> None:
    """A third of twelve samples: eight as in group 0 and four turned by a quarter; of both parts, labels alike."""
    plain = build("rotated-digits", seed=0, clients=4, samples=12)
    mixed = build("rotated-digits", seed=0, clients=4, samples=12, mixed=1 / 3)
    whole, parts = plain.client("0").train, mixed.client("0").train
    images = {tuple(image.flatten().tolist()) for image in whole.x}
    assert sum(tuple(image.flatten().tolist()) in images for image in parts.x) == 8
    assert sum(tuple(torch.rot90(image, -1, (1, 2)).flatten().tolist()) in images for image in parts.x) == 4
    assert torch.equal(mixed.labels("0").train, parts.y)
    with pytest.raises(CoterieError, match="mixed is 1"):
        build("rotated-digits", seed=0, mixed=1.0)


def test_a_limit_on_sizes_leaves_importance_as_it_is() -> None:
    """One of eight clients belongs to the first centre, seven have sigma of it: it weighs 10^4 times what they do."""
    models = {"weight": torch.eye(8, dtype=torch.float64).view(8, 1, 8)}
    weights = torch.eye(8).clamp_min(1e-4)
    centres = {"weight": torch.zeros(8, 1, 8, dtype=torch.float64)}
    trained = Trained(models, torch.full((8,), 10.0))
    both: tuple[Rule, Rule] = ("mean", "clipped")
    plain, clipped = (replace(METHOD, k=8, aggregate=rule)._averaged(centres, trained, weights) for rule in both)
    assert torch.equal(plain["weight"], clipped["weight"])
    assert clipped["weight"][0, 0].tolist() == pytest.approx([1 / 1.0007, *[1e-4 / 1.0007] * 7], rel=1e-6)
    claims = Trained(models, torch.tensor([10.0, 10, 10, 10, 10, 10, 10, 1e9]))
    found = replace(METHOD, k=8, aggregate="clipped")._averaged(centres, claims, weights)
    assert float(found["weight"][0, 0, 7]) == pytest.approx(1.25e-4 / 1.000725, rel=1e-6), "10^9 counts as 12.5"

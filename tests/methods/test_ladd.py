"""LADD: styles by hand, what they cannot see, and its clusters."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch

from coterie import run
from coterie.core.cohort import Cohort
from coterie.core.errors import CoterieError
from coterie.core.federation import Nothing
from coterie.core.rng import rng, torch_rng
from coterie.core.states import count
from coterie.core.task import Task
from coterie.data import build
from coterie.data.own import OwnPopulation
from coterie.methods.ladd import LADD, Style, cluster_styles, scale_of, style
from coterie.models import build_model
from coterie.simulation.faults import Faults
from coterie.simulation.simulator import EngineOptions, Simulator

from ..tiny import one_weight, rows, small_net

IMAGES = torch.rand(5, 3, 12, 12, generator=torch_rng(0, "images"))


def test_it_cannot_tell_0_from_180_degrees() -> None:
    """Turning by 180 degrees conjugates the spectrum (up to a phase), so amplitudes stay as they are."""
    half = torch.rot90(IMAGES, 2, (2, 3))
    assert torch.allclose(style(IMAGES), style(half), atol=1e-3)
    quarter = torch.rot90(IMAGES, 1, (2, 3))
    assert not torch.allclose(style(IMAGES), style(quarter), atol=1e-1)


def test_the_middle_of_the_window_is_the_sum_of_the_pixels() -> None:
    found = style(IMAGES, radius=1).reshape(5, 3, 3, 3)
    assert torch.allclose(found[:, :, 1, 1], IMAGES.sum((2, 3)), rtol=1e-4)


@pytest.mark.parametrize(("size", "channels", "length"), [(28, 1, 25), (32, 3, 147), (64, 3, 507), (8, 1, 9)])
def test_lengths_of_styles(size: int, channels: int, length: int) -> None:
    assert style(torch.zeros(1, channels, size, size)).shape == (1, length)


def test_k_means_by_number_and_by_silhouette() -> None:
    centres = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    styles = np.repeat(centres, 6, axis=0) + rng(0, "styles").normal(0, 0.3, (18, 2))
    truth = np.repeat([0, 1, 2], 6).tolist()
    assert cluster_styles(styles, 3, 8, 0).tolist() == truth
    assert cluster_styles(styles, 0, 8, 0).tolist() == truth
    assert cluster_styles(styles, 1, 8, 0).max() == 0
    assert cluster_styles(np.ones((4, 2)), 0, 8, 0).tolist() == [0, 0, 0, 0]
    assert cluster_styles(np.ones((4, 2)), 3, 8, 0).tolist() == [0, 0, 0, 0]
    assert cluster_styles(styles[:2], 0, 8, 0).tolist() == [0, 0]


@pytest.mark.parametrize("per_class", [True, False])
def test_on_rotations_it_finds_the_two_pairs(per_class: bool) -> None:
    population = build("rotated-digits", seed=0)
    method = LADD(k=2, per_class=per_class)
    task = Task.of(lambda: build_model("digits-mlp", (1, 8, 8), 10), population)
    state = method.init(Simulator(method, task, population, seed=0, options=EngineOptions(workers=1)))
    pairs = {(int(population.group(client) or 0) % 2, cluster) for client, cluster in state.cluster.items()}
    assert len(pairs) == 2, "0 and 180 degrees together, 90 and 270 together"


def sent(styles: list[list[list[float]]], present: list[list[bool]]) -> Style:
    return Style(torch.tensor(styles, dtype=torch.float64), torch.tensor(present))


def test_scales_by_hand() -> None:
    """Two clients, two classes, one amplitude: 2 and 6 for the first class; only the first client has the second, 5.

    Middles: (2 + 6) / 2 = 4 and 5. Deviations: 2, and of a single number 0, for which the unit is 1. Logarithms: the
    middle of log 2 and log 8 is log 4.
    """
    both = sent([[[2.0], [5.0]], [[6.0], [0.3]]], [[True, True], [True, False]])
    raw = scale_of(both, "raw")
    assert raw.middle.flatten().tolist() == [4.0, 5.0]
    assert raw.unit.flatten().tolist() == [1.0, 1.0]
    assert scale_of(both, "standardised").unit.flatten().tolist() == [2.0, 1.0]
    logs = scale_of(sent([[[2.0]], [[8.0]]], [[True], [True]]), "log")
    assert float(logs.middle.exp()) == pytest.approx(4.0)
    assert scale_of(sent([[[2.0]]], [[False]]), "raw").middle.tolist() == [[0.0]]


def test_classes_that_clients_lack_make_no_cluster() -> None:
    """Two groups whose amplitudes of 100 differ by 5; of each six clients, two lack a class.

    The literal noise in [0, 1) is 100 away from everybody, so k-means parts those who lack a class from those who do
    not; filled with the mean of the others it is at most 5 away.
    """
    generator = torch_rng(3, "groups")
    truth = [0] * 6 + [1] * 6
    styles = 100 + 5.0 * torch.tensor(truth)[:, None, None] + torch.rand(12, 4, 9, generator=generator)
    has = torch.ones(12, 4, dtype=torch.bool)
    for client, label in ((0, 1), (1, 1), (6, 1), (7, 1)):
        has[client, label] = False
        styles[client, label] = torch.rand(9, generator=generator)
    filled = LADD(k=2).group(Style(styles, has), 0)[0]
    literal = LADD(k=2, missing="noise").group(Style(styles, torch.ones_like(has)), 0)[0]
    assert filled == truth
    assert literal == [0, 0, 1, 1, 1, 1, 0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize("missing", ["mean", "noise"])
def test_clients_say_which_classes_they_have(missing: Literal["mean", "noise"]) -> None:
    """Under "noise", as the authors have it, no client says so; the styles that are sent are the same."""
    population = build("rotated-digits", seed=0)
    ids = tuple(population.ids[:6])
    data = tuple(population.client(client) for client in ids)
    cohort = Cohort(ids, Task.of(lambda: build_model("digits-mlp", (1, 8, 8), 10), population), data)
    found = LADD(missing=missing).describe(cohort, Nothing())
    has = torch.stack([torch.bincount(each.train.y, minlength=10) > 0 for each in data])
    assert not has.all()
    assert found.present.tolist() == (has if missing == "mean" else torch.ones_like(has)).tolist()
    assert torch.equal(found.style, LADD().describe(cohort, Nothing()).style)


@pytest.mark.parametrize("amplitudes", ["raw", "standardised", "log"])
def test_newcomers_are_placed_in_the_scale_of_the_clusters(amplitudes: Literal["raw", "standardised", "log"]) -> None:
    population = build("rotated-digits", seed=0, unseen=8)
    method = LADD(k=2, amplitudes=amplitudes)
    task = Task.of(lambda: build_model("digits-mlp", (1, 8, 8), 10), population)
    fed = Simulator(method, task, population, seed=0, options=EngineOptions(workers=1))
    state = method.admit(method.init(fed), fed, population.unseen_ids)
    pairs = {(int(population.group(client) or 0) % 2, cluster) for client, cluster in state.cluster.items()}
    assert len(state.cluster) == 48
    assert len(pairs) == 2


def test_regression_has_no_styles_by_class(digits: OwnPopulation) -> None:
    with pytest.raises(CoterieError, match="regression has none; set per_class=false"):
        run(LADD(k=2), digits, one_output, rounds=1, loss="mse")
    result = run(LADD(k=2, per_class=False, lr=0.001, epochs=1), digits, one_output, rounds=1, loss="mse")
    assert len(result.clusters or []) == 9


def one_output() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 1))


def test_newcomers_and_lost_styles_go_to_the_nearest(digits: OwnPopulation) -> None:
    method = LADD(k=2, epochs=1)
    faults = Faults(joins=((1, 2),), dropout=0.3)
    result = run(method, digits, small_net, rounds=4, faults=faults)
    assert set(result.state.cluster) == set(digits.ids)
    assert count(result.state.models) == 2


def test_with_all_silent_the_next_round_clusters(digits: OwnPopulation) -> None:
    method, task = LADD(k=2, epochs=1), Task.of(small_net, digits)

    def fed(dropout: float) -> Simulator:
        return Simulator(method, task, digits, seed=0, faults=Faults(dropout=dropout), options=EngineOptions(workers=1))

    silent = method.init(fed(1.0))
    assert silent.cluster == {}
    still, _ = method.step(silent, fed(1.0))
    assert still.cluster == {}
    later, _ = method.step(still, fed(0.0))
    assert len(later.cluster) == 9
    assert method.admit(later, fed(1.0), ["c0"]).cluster == later.cluster


def test_refusals(digits: OwnPopulation) -> None:
    with pytest.raises(CoterieError, match="images"):
        run(LADD(), rows(([1.0], [0]), ([1.0], [1])), one_weight, rounds=1, loss="mse")
    with pytest.raises(CoterieError, match="k = 30 clusters"):
        run(LADD(k=30), digits, small_net, rounds=1)
    with pytest.raises(CoterieError, match="does not fit"):
        style(IMAGES, radius=6)
    with pytest.raises(CoterieError, match="images"):
        style(IMAGES[0])
    for settings in ({"k": -1}, {"most": 1}, {"radius": -1}):
        with pytest.raises(CoterieError, match=next(iter(settings))):
            LADD(**settings)  # type: ignore[arg-type]

"""LADD: styles by hand, what they cannot see, and its clusters."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coterie.data import build
from coterie.data.own import OwnPopulation
from coterie.engine.faults import Faults
from coterie.engine.simulate import EngineOptions, Simulator
from coterie.errors import CoterieError
from coterie.methods.ladd import LADD, cluster_styles, style
from coterie.models import build_model
from coterie.rng import rng, torch_rng
from coterie.run import run
from coterie.states import count
from coterie.task import Task

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

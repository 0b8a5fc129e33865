"""What clients' looks propose: groups where there are some, however near, and none in noise."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from coterie.core.cohort import Cohort
from coterie.core.optimiser import Optimiser
from coterie.core.states import stack
from coterie.core.task import Task
from coterie.data import build
from coterie.methods.auto.groups import ASK, asked
from coterie.methods.auto.looks import pulls
from coterie.methods.auto.messages import Groups, Known, Look
from coterie.methods.auto.proposals import Pulls, propose
from coterie.models import build_model


def looks_of(groups: list[int], noise: float, seed: int = 0, kinds: int = 4, own: float = 0.0) -> dict[str, Look]:
    """Clients whose classes pull as their group's do, plus a way of their own, plus noise, drawn for either half.

    Every client holds two of the classes, with three samples each in either half.
    """
    generator = np.random.default_rng(seed)
    common = generator.normal(size=(max(groups) + 1, kinds, 2, 8))
    found = {}
    for number, group in enumerate(groups):
        way = own * generator.normal(size=(kinds, 2, 8))
        sketch = common[group] + way + noise * generator.normal(size=(2, kinds, 2, 8))
        counts = np.zeros((2, kinds))
        counts[:, generator.choice(kinds, 2, replace=False)] = 3
        sketch[counts == 0] = 0
        found[f"c{number:02d}"] = Look(torch.tensor(sketch).float(), torch.tensor(counts).float())
    return found


def test_pulls_are_foretold_by_fellows() -> None:
    """Pulls (1, 0), (1, 0), (0, 1), one sample each, of one class; spread 1, so a mean of m fellows is sum / (m + 1).

    All in one part: the fellows' mean of the first is (1, 1) / 3, and 2 d.mean - |mean|^2 = 2/3 - 2/9 = 4/9. Of the
    third it is (2, 0) / 3: 0 - 4/9. With the third by itself the first two have (1, 0) / 2: 1 - 1/4, and it has nobody.
    """
    pulls = Pulls(np.array([[[1.0, 0.0]], [[1.0, 0.0]], [[0.0, 1.0]]]), np.ones((3, 1)), 1.0, 1.0, 1.0)
    assert pulls.foretold(np.array([0, 0, 0]))[0] == pytest.approx([4 / 9, 4 / 9, -4 / 9])
    assert pulls.foretold(np.array([0, 0, 1]))[0] == pytest.approx([0.75, 0.75, 0.0])


def test_clients_without_a_class_in_common_are_neither_alike_nor_unlike() -> None:
    """The second holds only the other class: the first is as likely beside it as alone."""
    pulls = Pulls(np.array([[[1.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [5.0, 1.0]]]), np.eye(2), 1.0, 1.0, 1.0)
    assert pulls.fits(np.array([0, 1]))[0] == pytest.approx(np.full(2, pulls.alone()[0]))


@pytest.mark.parametrize("groups", [2, 3, 5])
def test_looks_propose_the_groups_there_are(groups: int) -> None:
    """Although each client holds only two of four classes."""
    truth = [number % groups for number in range(30)]
    looks = looks_of(truth, 0.5)
    found = propose(looks, sorted(looks))
    assert found is not None
    assert found.clear
    pairs = {(found.part[f"c{number:02d}"], group) for number, group in enumerate(truth)}
    assert len(pairs) == groups == len(set(found.part.values()))


@pytest.mark.parametrize("seed", range(2))
def test_groups_that_differ_little_are_told_apart_beside_others_that_differ_much(seed: int) -> None:
    """Three pens, 300 times as far apart as samples are by chance; of one pen there are two alphabets, 0.5 from it.

    All at once there are three parts; what is 600 times smaller than the spread of all is too dear for a fourth.
    """
    truth, generator = [number % 4 for number in range(40)], np.random.default_rng([seed, 1])
    looks = looks_of([0] * 40, 1.0, seed, kinds=2)
    way = torch.tensor(generator.normal(size=(4, 2, 2, 8))).float()
    pens, near = 300 * way[:3], 0.5 * way[3]
    for name, group in zip(sorted(looks), truth, strict=True):
        shift = pens[max(group - 1, 0)] + (near if group == 0 else -near if group == 1 else 0)
        looks[name] = replace(looks[name], sketch=looks[name].sketch + shift)
    found = propose(looks, sorted(looks))
    assert found is not None
    pairs = {(found.part[f"c{number:02d}"], group) for number, group in enumerate(truth)}
    assert len(pairs) == 4 == len(set(found.part.values()))


def test_ten_clients_that_seem_sure_by_chance_are_not_parted() -> None:
    """Group 2 of these digits: t 10.0 in one view, but its members' halves have nothing in common beyond the group."""
    population = build("rotated-digits", seed=41)
    task = Task.of(lambda: build_model("digits-mlp", population.shape, population.classes), population)
    clients = tuple(population.client(client) for client in population.ids)
    cohort = Cohort(ids=tuple(population.ids), data=clients, task=task, seed=41, round=0)
    sketch, scale, counts = pulls(cohort, Optimiser())
    shown = sketch.float() * scale[:, None, None, :, None]
    looks = {client: Look(shown[i], counts[i].float()) for i, client in enumerate(population.ids)}
    found = propose(looks, sorted(looks))
    assert found is not None
    assert sorted(np.bincount(list(found.part.values())).tolist()) == [10, 10, 10, 10]


@pytest.mark.parametrize("seed", range(4))
def test_noise_alone_proposes_nothing(seed: int) -> None:
    """Groups found in the noise of one half are not there in the other."""
    looks = looks_of([0] * 30, 1.0, seed)
    found = propose(looks, sorted(looks))
    assert found is not None
    assert found.evidence < ASK


@pytest.mark.parametrize("seed", range(4))
def test_clients_with_ways_of_their_own_are_no_clear_groups(seed: int) -> None:
    looks = looks_of([0] * 30, 0.3, seed, own=1.0)
    found = propose(looks, sorted(looks))
    assert found is None or not found.clear


def test_a_client_that_is_like_nobody_stands_alone() -> None:
    looks = looks_of([0] * 12 + [1] * 12 + [2], 0.2, kinds=2)
    found = propose(looks, sorted(looks))
    assert found is not None
    assert sorted(np.bincount(list(found.part.values())).tolist()) == [1, 12, 12]


@pytest.mark.parametrize(("length", "samples"), [(60_000.0, 1.0), (1.0, 1e9), (60_000.0, 1e9)])
def test_what_a_liar_shows_does_not_change_the_groups_of_the_others(length: float, samples: float) -> None:
    truth = [number % 2 for number in range(30)]
    looks = looks_of(truth, 0.3)
    lie = looks["c07"]
    looks["c07"] = replace(lie, sketch=length * lie.sketch.flip(-1), counts=samples * lie.counts)
    found = propose(looks, sorted(looks))
    assert found is not None
    assert found.clear
    pairs = {(found.part[f"c{number:02d}"], group) for number, group in enumerate(truth) if number != 7}
    assert len(pairs) == 2


@pytest.mark.parametrize(
    ("visits", "loss", "classes", "asks"),
    [(5, 0.5, True, True), (5, 0.51, True, False), (4, 0.1, True, False), (12, 1.0, True, True), (5, 1.0, False, True)],
)
def test_members_are_asked_when_the_network_has_learnt(visits: int, loss: float, classes: bool, asks: bool) -> None:
    """After five visits at half the first loss, or after twelve; without classes after five, whatever the loss."""
    looks = looks_of([number % 2 for number in range(30)], 0.3, own=0.8)
    models = stack([{"w": torch.zeros(1)}])
    known = {name: Known(visits, 10.0, loss) for name in looks}
    state = Groups(
        *(models, models, dict.fromkeys(looks, 0), known, looks, {}, {}), visits=visits * len(looks), first_loss=1.0
    )
    task = SimpleNamespace(has_classes=classes)
    fed: Any = SimpleNamespace(ids=sorted(looks), task=task, round=visits, note=lambda text: None)
    new = asked(state, fed)
    assert not new.clear
    assert (new.question is not None) == asks


def test_three_clients_are_too_few_to_propose() -> None:
    looks = looks_of([0, 1, 0], 0.1)
    assert propose(looks, sorted(looks)) is None

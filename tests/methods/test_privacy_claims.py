"""What docs/privacy.md says that an active server can find out, done."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from coterie.core.cohort import Cohort
from coterie.core.federation import Nothing
from coterie.core.samples import ClientData
from coterie.core.task import Task
from coterie.data.own import OwnPopulation
from coterie.methods.fedcg import FedCG
from coterie.methods.fedcg.domains import _projection
from coterie.methods.md_icfl.messages import ClassDistances
from coterie.methods.md_icfl.method import MDICFL
from tests.tiny import small_net


def test_fedcgs_moments_of_one_image_give_back_every_pixel(digits: OwnPopulation) -> None:
    """relu(x D + s) of one image: the features above 0 are linear in its 64 pixels, and there are more than 64."""
    method, task = FedCG(), Task.of(small_net, digits)
    one = digits.client("c0").train.take(torch.tensor([0]))
    sent = method.describe(Cohort(("c0",), task, (ClientData(one, one),), seed=4), Nothing())
    directions, shift = _projection(4, 64, method.features)
    seen = sent.total[0] > 0
    assert int(seen.sum()) > 64
    found = torch.linalg.lstsq(directions[:, seen].T.double(), (sent.total[0] - shift)[seen].double()[:, None]).solution
    pixels = task.inputs(one.x).reshape(-1).double()
    assert float((found[:, 0] - pixels).abs().max()) < 1e-3
    assert F.mse_loss(found[:, 0], pixels) < 1e-8


@pytest.mark.parametrize("questions", [6, 3])
def test_made_up_questions_find_the_share_of_a_class(questions: int, digits: OwnPopulation) -> None:
    """Cluster 0 at distance 1 from class y and 0 from all others, cluster 1 at t from all: it says 0 if p(y) < t.

    Six halvings of [0, 1] leave 1 / 64, a middle that is wrong by 1 / 128 at most: 60 questions for ten classes. The 30
    that a device answers are three a class: 1 / 16 at most.
    """
    method, task = MDICFL(k=2, margin=0.0, seeding="none", label_noise=0.0), Task.of(small_net, digits)
    found = shares_by_questions(method, Cohort(("c0",), task, (digits.client("c0"),)), questions)
    assert float((found - true_shares(digits)).abs().max()) <= 0.5 ** (questions + 1) + 1e-9


def test_with_noise_any_number_of_questions_finds_the_noisy_shares_alone(digits: OwnPopulation) -> None:
    """The noise is drawn once for these data and this device, in every run and round: all questions tell one thing.

    No run's setting turns it off: the device adds at least its own (`--least-noise`).
    """
    task, method = Task.of(small_net, digits), MDICFL(k=2, margin=0.0, seeding="none", label_noise=0.0)
    found = []
    for seed, secret in ((0, "s"), (1, "s"), (0, "t")):
        cohort = Cohort(("c0",), task, (digits.client("c0"),), seed=seed, round=seed, secret=secret, least_noise=0.05)
        found.append(shares_by_questions(method, cohort, 20))
    assert torch.equal(found[0], found[1]), "another run, another round, the same device"
    assert not torch.allclose(found[0], found[2], atol=1e-3), "another device"
    errors = torch.stack([found[0], found[2]]) - true_shares(digits)
    assert 0.02 < float(errors.square().mean().sqrt()) < 0.1
    told = MDICFL(k=2, label_noise=0.2).identify
    cohort = Cohort(("c0",), task, (digits.client("c0"),), secret="s", least_noise=0.05)
    assert told(cohort, ClassDistances(torch.zeros(1, 2, 10))).cluster.tolist() == [0]


def true_shares(digits: OwnPopulation) -> torch.Tensor:
    return torch.bincount(digits.client("c0").train.y, minlength=10).double() / len(digits.client("c0").train)


def shares_by_questions(method: MDICFL, cohort: Cohort, questions: int) -> torch.Tensor:
    """What a server finds by made-up distances, so many questions a class."""
    found = []
    for label in range(10):
        low, high = 0.0, 1.0
        for _ in range(questions):
            middle = (low + high) / 2
            distances = torch.full((1, 2, 10), middle, dtype=torch.float64)
            distances[0, 0] = F.one_hot(torch.tensor(label), 10)
            below = int(method.identify(cohort, ClassDistances(distances)).cluster) == 0
            low, high = (low, middle) if below else (middle, high)
        found.append((low + high) / 2)
    return torch.tensor(found, dtype=torch.float64)

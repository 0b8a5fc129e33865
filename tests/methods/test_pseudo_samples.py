"""Samples made from models alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from coterie.core.states import Stack, stack
from coterie.core.task import Task
from coterie.methods.md_icfl.samplers import (
    Objective,
    back_search,
    draw,
    fresh_generators,
    generate,
    sample_loss,
    train_generators,
)


def image_task(*, use_kernel: bool = True, norm: bool = False) -> Task:
    """A small net on 1 x 6 x 6 images of 3 classes."""

    def net() -> nn.Module:
        middle = [nn.BatchNorm2d(4)] if norm else []
        return nn.Sequential(nn.Conv2d(1, 4, 3), *middle, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3))

    return Task(net, (1, 6, 6), 3, use_kernel=use_kernel)


def two_models(task: Task) -> Stack:
    return stack([task.init(0, 1), task.init(0, 2)])


def noise(seed: int = 0) -> Tensor:
    return torch.randn(2, 3, 4, 1, 6, 6, generator=torch.Generator().manual_seed(seed))


PRIOR = Objective(torch.tensor([[-0.5], [0.5]]))


@pytest.mark.parametrize("norm", [False, True])
def test_the_back_search_finds_what_each_model_believes_in(norm: bool) -> None:
    task = image_task(norm=norm)
    models = two_models(task)
    found = back_search(task, models, noise(), PRIOR, 60, 0.1)
    assert found.shape == (2, 3, 4, 1, 6, 6)
    assert sample_loss(task, models, found) < 0.3 < sample_loss(task, models, noise())


def test_kernel_and_torch_find_the_same() -> None:
    fast, plain = image_task(), image_task(use_kernel=False)
    one, two = (back_search(task, two_models(task), noise(), PRIOR, 10, 0.1) for task in (fast, plain))
    assert torch.allclose(one, two, atol=1e-4)


def test_a_single_step_by_hand() -> None:
    """Adam's first step moves every pixel by the learning rate against the sign of its gradient.

    With logits (x, -x) and class 0 the gradient of the cross-entropy is negative; x starts at the prior mean 0, where
    the norm has none (and must not be NaN). So x goes to +0.1 for class 0, and to -0.1 for class 1.
    """
    task = Task(lambda: nn.Linear(1, 2, bias=False), (1,), 2)
    models = {"weight": torch.tensor([[[1.0], [-1.0]]])}
    found = back_search(task, models, torch.zeros(1, 2, 1, 1), Objective(torch.zeros(1, 1)), 1, 0.1)
    assert found.flatten().tolist() == pytest.approx([0.1, -0.1], abs=1e-6)


def test_a_strong_prior_holds_the_samples_at_the_mean_of_their_cluster() -> None:
    task = image_task()
    for squared in (False, True):
        strong = Objective(PRIOR.mean, strength=1e4, squared=squared)
        found = back_search(task, two_models(task), noise(), strong, 200, 0.05)
        assert found[0].mean() == pytest.approx(-0.5, abs=0.1)
        assert found[1].mean() == pytest.approx(0.5, abs=0.1)


def test_the_pull_of_the_prior_by_hand() -> None:
    """Channels have their own mean: (0, 1). From 0 the second channel's four pixels are each 1 away, a norm of 2.

    So lambda / 2 |x - mean| with lambda = 2 pulls each by -1 / 2, its square by -2; at the mean nothing pulls.
    """
    x = torch.zeros(1, 1, 2, 2, 2)
    plain = Objective(torch.tensor([[0.0, 1.0]]), strength=2.0)
    assert plain.pull(x)[0, 0].flatten().tolist() == pytest.approx([0.0] * 4 + [-0.5] * 4)
    squared = Objective(plain.mean, 2.0, squared=True)
    assert squared.pull(x)[0, 0].flatten().tolist() == pytest.approx([0.0] * 4 + [-2.0] * 4)
    assert float(Objective(torch.zeros(1, 2), 2.0).pull(x).abs().max()) == 0.0


def test_clipped_samples_stay_in_their_range() -> None:
    task = image_task()
    clipped = Objective(PRIOR.mean, clip=0.3)
    assert back_search(task, two_models(task), noise(), clipped, 5, 0.5).abs().max() <= 0.3
    g = torch.Generator().manual_seed(0)
    made = fresh_generators(task.shape, 3, PRIOR.mean, 4, 8, g)
    assert draw(task, made, 5, clipped, g).abs().max() <= 0.3


def test_generators_learn_the_classes_of_their_model() -> None:
    task = image_task()
    models, g = two_models(task), torch.Generator().manual_seed(0)
    fresh = fresh_generators(task.shape, task.classes, PRIOR.mean, 4, 32, g)
    trained = train_generators(task, models, fresh, PRIOR, steps=150, lr=0.01, batch=30, g=g)
    before, after = (draw(task, each, 6, PRIOR, torch.Generator().manual_seed(1)) for each in (fresh, trained))
    assert after.shape == (2, 3, 6, 1, 6, 6)
    assert sample_loss(task, models, after) < 0.4 < sample_loss(task, models, before)


def test_generators_by_hand() -> None:
    """One hidden unit, inputs (noise 0, one-hot): weight 1 for class 0, so h = (1, 0), normalised (1, -1), ReLU (1, 0).

    The output is 3 h + 5: 8 for class 0 and 5 for class 1.
    """
    one = {
        "in.weight": torch.tensor([[[0.0], [1.0], [0.0]]]),
        "in.bias": torch.zeros(1, 1, 1),
        "norm.weight": torch.ones(1, 1, 1),
        "norm.bias": torch.zeros(1, 1, 1),
        "out.weight": torch.full((1, 1, 1), 3.0),
        "out.bias": torch.full((1, 1, 1), 5.0),
    }
    made = generate(one, torch.zeros(1, 2, 1), torch.tensor([[0, 1]]), 2)
    assert made.flatten().tolist() == pytest.approx([8.0, 5.0], abs=1e-3)

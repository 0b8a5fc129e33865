"""The LeNets: with ReLU, as it was in 1998, and the wider one that embedding clustering really ran."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from ._parts import Shape, conv, halve, image


def lenet5(shape: Shape, classes: int) -> nn.Sequential:
    """LeNet-5 with the classic 6 and 16 channels.

    The original reads 32 x 32, so smaller images get a border of 2. ReLU and max-pooling instead of the tanh
    and sub-sampling of 1998: ReLU does not saturate at the learning rate of 0.1 that MD-ICFL trains with;
    `lenet5-1998` has those.
    """
    return _lenet5("lenet5", shape, classes, nn.ReLU, nn.MaxPool2d)


def lenet5_1998(shape: Shape, classes: int) -> nn.Sequential:
    """LeNet-5 with the tanh and the average pooling it had (its pools had weights, its second layer gaps)."""
    return _lenet5("lenet5-1998", shape, classes, nn.Tanh, nn.AvgPool2d)


def _lenet5(
    name: str, shape: Shape, classes: int, bend: Callable[[], nn.Module], pool: Callable[[int], nn.Module]
) -> nn.Sequential:
    padding = 2 if len(shape) == 3 and min(shape[1:]) < 32 else 0
    channels, height, width = image(name, shape, least=12)
    height, width = (halve(conv(halve(conv(side, 5, padding)), 5)) for side in (height, width))
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=padding), bend(), pool(2), nn.Conv2d(6, 16, 5), bend(), pool(2), nn.Flatten(),
        nn.Linear(16 * height * width, 120), bend(), nn.Linear(120, 84), bend(), nn.Linear(84, classes),
    )  # fmt: skip


def lenet5_wide(shape: Shape, classes: int) -> nn.Sequential:
    """16 and 32 channels, tanh, no padding: the net behind the published numbers of embedding clustering.

    The authors put a softmax before the cross-entropy, which applies it twice; this one gives logits.
    """
    channels, height, width = image("lenet5-wide", shape, least=16)
    height, width = (halve(conv(halve(conv(side, 5)), 5)) for side in (height, width))
    return nn.Sequential(
        nn.Conv2d(channels, 16, 5), nn.Tanh(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(32 * height * width, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, classes),
    )  # fmt: skip

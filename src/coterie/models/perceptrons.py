"""Fully connected nets."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from ._parts import Shape, features


def _perceptron(*sizes: int) -> nn.Sequential:
    """Linear layers of these sizes with ReLU between them."""
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(sizes[:-1]):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1]))


def mlp(shape: Shape, classes: int) -> nn.Sequential:
    """Two hidden layers of 200, as PANM uses on MNIST."""
    return _perceptron(features(shape), 200, 200, classes)


def digits_mlp(shape: Shape, classes: int) -> nn.Sequential:
    """One hidden layer of 64, enough for the embedded 8 x 8 digits."""
    return _perceptron(features(shape), 64, classes)

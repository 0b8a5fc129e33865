"""Small convolutional nets: chains of layers that the fast kernel knows."""

from __future__ import annotations

from torch import nn

from ._parts import Shape, conv, halve, image


def digits_cnn(shape: Shape, classes: int) -> nn.Sequential:
    """Two small convolutions for the embedded 8 x 8 digits."""
    channels, height, width = image("digits-cnn", shape, least=4)
    height, width = (halve(halve(side)) for side in (height, width))
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * height * width, classes),
    )  # fmt: skip


def pens_cnn(shape: Shape, classes: int) -> nn.Sequential:
    """Three convolutions and two linear layers: PENS's net for CIFAR-10, which PANM describes too."""
    channels, height, width = image("pens-cnn", shape, least=22)
    height, width = (halve(conv(halve(conv(halve(conv(side, 3)), 3)), 3)) for side in (height, width))
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * height * width, 64), nn.ReLU(), nn.Linear(64, classes),
    )  # fmt: skip


def cifar_cnn(shape: Shape, classes: int) -> nn.Sequential:
    """The same family with padding, so that it also takes images from 8 pixels on."""
    channels, height, width = image("cifar-cnn", shape, least=8)
    height, width = (halve(halve(halve(side))) for side in (height, width))
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * height * width, 64), nn.ReLU(), nn.Linear(64, classes),
    )  # fmt: skip


def fedavg_cnn(shape: Shape, classes: int) -> nn.Sequential:
    """McMahan et al. 2017: two 5 x 5 convolutions of 32 and 64 channels that keep the size, 512 hidden units."""
    channels, height, width = image("fedavg-cnn", shape, least=4)
    flat = 64 * halve(halve(height)) * halve(halve(width))
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(flat, 512), nn.ReLU(), nn.Linear(512, classes),
    )  # fmt: skip


def emnist_cnn(shape: Shape, classes: int) -> nn.Sequential:
    """Reddi et al. 2021 (TensorFlow Federated, fedjax): two convolutions, dropout, 128 hidden units."""
    channels, height, width = image("emnist-cnn", shape, least=6)
    flat = 64 * halve(conv(conv(height, 3), 3)) * halve(conv(conv(width, 3), 3))
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25),
        nn.Flatten(), nn.Linear(flat, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, classes),
    )  # fmt: skip

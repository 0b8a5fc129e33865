"""The two autoencoders of embedding clustering; inputs and outputs are in [0, 1]."""

from __future__ import annotations

from torch import nn

from ._parts import AutoEncoder, Shape, features, image


def autoencoder_fc(shape: Shape, classes: int) -> AutoEncoder:  # noqa: ARG001 - one signature for all builders
    """inputs-50-20-50-inputs; the code of 20 numbers has no activation."""
    size = features(shape)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(size, 50), nn.ReLU(), nn.Linear(50, 20))
    decoder = nn.Sequential(
        nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, size), nn.Sigmoid(), nn.Unflatten(1, tuple(shape))
    )
    return AutoEncoder(encoder, decoder)


def autoencoder_conv(shape: Shape, classes: int) -> AutoEncoder:  # noqa: ARG001 - one signature for all builders
    """Three strided convolutions down to 48 maps of an eighth of the side, and their mirror image."""
    channels, _, _ = image("autoencoder-conv", shape, least=8, multiple=8)
    down: list[nn.Module] = []
    for inputs, outputs in ((channels, 12), (12, 24), (24, 48)):
        down += [nn.Conv2d(inputs, outputs, 4, 2, 1), nn.BatchNorm2d(outputs), nn.ReLU()]
    up: list[nn.Module] = []
    for inputs, outputs, activation in ((48, 24, nn.ReLU()), (24, 12, nn.ReLU()), (12, channels, nn.Sigmoid())):
        up += [nn.ConvTranspose2d(inputs, outputs, 4, 2, 1), nn.BatchNorm2d(outputs), activation]
    return AutoEncoder(nn.Sequential(*down), nn.Sequential(*up))

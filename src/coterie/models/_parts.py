"""Checks and arithmetic that the builders share."""

from __future__ import annotations

from math import prod

from torch import Tensor, nn

from coterie.core.errors import CoterieError

Shape = tuple[int, ...]


def features(shape: Shape) -> int:
    """How many numbers one input has."""
    return prod(shape)


def image(name: str, shape: Shape, *, channels: int | None = None, least: int = 1, multiple: int = 1) -> Shape:
    """The shape as (channels, height, width), or an error that says what the model takes instead."""
    if len(shape) != 3:
        raise CoterieError(
            f"Model {name!r} needs images (channels, height, width) and the inputs are {tuple(shape)}; "
            "take 'mlp' or 'digits-mlp' for plain features."
        )
    if channels is not None and shape[0] != channels:
        raise CoterieError(
            f"Model {name!r} takes {channels} channel{'s' * (channels > 1)} and the images have {shape[0]}; "
            "take another model or convert the images."
        )
    small = min(shape[1:]) < least
    if small or any(side % multiple for side in shape[1:]):
        wanted = f"sides of at least {least} pixels" + (f", multiples of {multiple}" if multiple > 1 else "")
        raise CoterieError(
            f"Model {name!r} needs images with {wanted}, and these are {shape[1]} x {shape[2]}; "
            "resize the images or take another model."
        )
    return shape


def conv(size: int, kernel: int, padding: int = 0) -> int:
    """The side after a convolution with stride 1."""
    return size + 2 * padding - kernel + 1


def halve(size: int) -> int:
    """The side after MaxPool2d(2)."""
    return size // 2


class AutoEncoder(nn.Module):
    """An encoder and its decoder; the encoder alone gives the code of an input."""

    def __init__(self, encoder: nn.Sequential, decoder: nn.Sequential) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    def forward(self, x: Tensor) -> Tensor:
        """The reconstruction of x, of the same shape, with values in [0, 1]."""
        rebuilt: Tensor = self.decoder(self.encoder(x))
        return rebuilt

"""The nets of the LEAF benchmark, and the PyTorch port by FedCG's first author, which pads differently."""

from __future__ import annotations

from torch import nn

from ._parts import Shape, conv, halve, image


def leaf_femnist(shape: Shape, classes: int) -> nn.Sequential:
    """Convolutions of 32 and 64 filters that keep the size, then 2048 hidden units."""
    _, height, width = image("leaf-femnist", shape, channels=1, least=4)
    return _femnist(2, 0, 64 * halve(halve(height)) * halve(halve(width)), classes)


def femnist_port(shape: Shape, classes: int) -> nn.Sequential:
    """The port: padding 1 in the convolutions and in the pooling; as many parameters as LEAF's at 28 x 28."""
    _, height, width = image("femnist-port", shape, channels=1, least=4)
    height, width = (_port_pool(conv(_port_pool(conv(side, 5, 1)), 5, 1)) for side in (height, width))
    return _femnist(1, 1, 64 * height * width, classes)


def leaf_celeba(shape: Shape, classes: int) -> nn.Sequential:
    """Four blocks of convolution, batch-norm, pooling and ReLU.

    LEAF's batch-norm always uses the statistics of the batch, in evaluation too, so it keeps no running ones;
    its pooling rounds up (84, 42, 21, 11, 6).
    """
    _, height, width = image("leaf-celeba", shape, channels=3, least=2)
    for _ in range(4):
        height, width = -(-height // 2), -(-width // 2)
    return _celeba(nn.MaxPool2d(2, ceil_mode=True), False, 32 * height * width, classes)


def celeba_port(shape: Shape, classes: int) -> nn.Sequential:
    """The port: pooling with padding 1 (84, 43, 22, 12, 7) and batch-norm with running statistics."""
    _, height, width = image("celeba-port", shape, channels=3, least=2)
    for _ in range(4):
        height, width = _port_pool(height), _port_pool(width)
    return _celeba(nn.MaxPool2d(2, padding=1), True, 32 * height * width, classes)


def _port_pool(size: int) -> int:
    """The side after MaxPool2d(2, padding=1)."""
    return size // 2 + 1


def _femnist(padding: int, pool_padding: int, flat: int, classes: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=padding), nn.ReLU(), nn.MaxPool2d(2, padding=pool_padding),
        nn.Conv2d(32, 64, 5, padding=padding), nn.ReLU(), nn.MaxPool2d(2, padding=pool_padding),
        nn.Flatten(), nn.Linear(flat, 2048), nn.ReLU(), nn.Linear(2048, classes),
    )  # fmt: skip


def _celeba(pool: nn.MaxPool2d, running: bool, flat: int, classes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (3, 32, 32, 32):
        norm = nn.BatchNorm2d(32, track_running_stats=running)
        layers += [nn.Conv2d(channels, 32, 3, padding=1), norm, pool, nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(flat, classes))

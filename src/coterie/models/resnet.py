"""ResNets: ResNet-18 with a stem that fits the image size, ResNet-8, and both with group normalisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from ._parts import Shape, image

# From this size on the 7 x 7 stem leaves enough pixels for the four stages, at about a sixteenth of the cost.
_LARGE = 64
_WIDE = (64, 128, 256, 512)
_NARROW = (16, 32, 64)
_GROUPS = 2  # as in TensorFlow Federated's ResNet-18 for CIFAR-100
Norm = Callable[[int], nn.Module]


class Residual(nn.Module):
    """Two 3 x 3 convolutions with normalisation, added to their input (projected where the shape changes)."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm = nn.BatchNorm2d) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), norm(outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), norm(outputs),
        )  # fmt: skip
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """relu(body(x) + shortcut(x))."""
        total: Tensor = self.body(x) + self.shortcut(x)
        return total.relu()


def resnet18(shape: Shape, classes: int) -> nn.Sequential:
    """A 3 x 3 stem without pooling below 64 pixels, from there on ImageNet's 7 x 7 stem with pooling."""
    _, height, width = image("resnet18", shape, least=8)
    return _resnet(shape[0], classes, _WIDE, 2, wide_stem=min(height, width) >= _LARGE)


def resnet18_imagenet(shape: Shape, classes: int) -> nn.Sequential:
    """The ImageNet stem at any size: what embedding clustering ran, at 32 pixels too."""
    image("resnet18-imagenet", shape, least=32)
    return _resnet(shape[0], classes, _WIDE, 2, wide_stem=True)


def resnet18_gn(shape: Shape, classes: int) -> nn.Sequential:
    """ResNet-18 without statistics that clients would have to share: two groups of channels, of one image each."""
    _, height, width = image("resnet18-gn", shape, least=8)
    return _resnet(shape[0], classes, _WIDE, 2, wide_stem=min(height, width) >= _LARGE, norm=_group_norm)


def resnet8(shape: Shape, classes: int) -> nn.Sequential:
    """Three residual blocks of 16, 32 and 64 channels."""
    image("resnet8", shape, least=4)
    return _resnet(shape[0], classes, _NARROW, 1)


def resnet8_gn(shape: Shape, classes: int) -> nn.Sequential:
    """ResNet-8 with group normalisation."""
    image("resnet8-gn", shape, least=4)
    return _resnet(shape[0], classes, _NARROW, 1, norm=_group_norm)


def _group_norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(_GROUPS, channels)


def _resnet(
    channels: int,
    classes: int,
    widths: Sequence[int],
    blocks: int,
    *,
    wide_stem: bool = False,
    norm: Norm = nn.BatchNorm2d,
) -> nn.Sequential:
    inputs = widths[0]
    if wide_stem:
        layers: list[nn.Module] = [
            nn.Conv2d(channels, inputs, 7, 2, 3, bias=False), norm(inputs), nn.ReLU(),
            nn.MaxPool2d(3, 2, padding=1),
        ]  # fmt: skip
    else:
        layers = [nn.Conv2d(channels, inputs, 3, 1, 1, bias=False), norm(inputs), nn.ReLU()]
    for stage, outputs in enumerate(widths):
        for block in range(blocks):
            layers.append(Residual(inputs, outputs, 2 if stage and not block else 1, norm))
            inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))

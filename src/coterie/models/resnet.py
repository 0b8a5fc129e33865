"""ResNet-18 with a stem that fits the image size."""

from __future__ import annotations

from torch import Tensor, nn

from ._parts import Shape, image

# From this size on the 7 x 7 stem leaves enough pixels for the four stages, at about a sixteenth of the cost.
_LARGE = 64


class Residual(nn.Module):
    """Two 3 x 3 convolutions with batch-norm, added to their input (projected where the shape changes)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """relu(body(x) + shortcut(x))."""
        total: Tensor = self.body(x) + self.shortcut(x)
        return total.relu()


def resnet18(shape: Shape, classes: int) -> nn.Sequential:
    """A 3 x 3 stem without pooling below 64 pixels, from there on ImageNet's 7 x 7 stem with pooling."""
    _, height, width = image("resnet18", shape, least=8)
    return _resnet18(shape[0], classes, wide_stem=min(height, width) >= _LARGE)


def resnet18_imagenet(shape: Shape, classes: int) -> nn.Sequential:
    """The ImageNet stem at any size: what embedding clustering ran, at 32 pixels too."""
    image("resnet18-imagenet", shape, least=32)
    return _resnet18(shape[0], classes, wide_stem=True)


def _resnet18(channels: int, classes: int, *, wide_stem: bool) -> nn.Sequential:
    if wide_stem:
        layers: list[nn.Module] = [
            nn.Conv2d(channels, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
            nn.MaxPool2d(3, 2, padding=1),
        ]  # fmt: skip
    else:
        layers = [nn.Conv2d(channels, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    inputs = 64
    for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Residual(inputs, outputs, stride), Residual(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))

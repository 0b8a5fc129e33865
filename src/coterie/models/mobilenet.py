"""MobileNetV2 (Sandler et al. 2018) for small images."""

from __future__ import annotations

from torch import Tensor, nn

from ._parts import Shape, image

# expansion, channels, blocks, stride of the first: the paper's table 2, the first two strides 1 as is usual for CIFAR
_STAGES = (
    *((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2)),
    *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
)


class Inverted(nn.Module):
    """Widen, convolve each channel by itself, narrow again; added to the input where the shape allows it."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        widen = _unit(inputs, hidden, 1) if expansion > 1 else ()
        self.body = nn.Sequential(
            *widen, *_unit(hidden, hidden, 3, stride, groups=hidden),
            nn.Conv2d(hidden, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """body(x), with x added where that is possible."""
        found: Tensor = self.body(x)
        return x + found if self.adds else found


def mobilenet_v2(shape: Shape, classes: int) -> nn.Sequential:
    """The paper's network at width 1, with a first convolution of stride 1."""
    channels = image("mobilenetv2", shape, least=8)[0]
    layers: list[nn.Module] = [*_unit(channels, 32, 3)]
    inputs = 32
    for expansion, outputs, blocks, stride in _STAGES:
        for block in range(blocks):
            layers.append(Inverted(inputs, outputs, 1 if block else stride, expansion))
            inputs = outputs
    return nn.Sequential(
        *layers, *_unit(inputs, 1280, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, classes)
    )


def _unit(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> tuple[nn.Module, ...]:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return convolution, nn.BatchNorm2d(outputs), nn.ReLU6()

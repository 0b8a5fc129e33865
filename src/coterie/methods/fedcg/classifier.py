"""The domain classifier that FedCG's teacher and students are."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from coterie.core.errors import CoterieError

_OUTPUT_BIAS = "6.bias"  # of `domain_classifier`


def domain_classifier(shape: tuple[int, ...], domains: int) -> nn.Sequential:
    """FedCG's teacher and student: convolutions of 32 and 64 filters, average pooling, one output per domain."""
    if len(shape) != 3:
        raise CoterieError(
            f"FedCG's domain classifier needs images (channels, height, width) and the inputs are {tuple(shape)}; "
            'set find to "features".'
        )
    return nn.Sequential(
        nn.Conv2d(shape[0], 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, domains),
    )  # fmt: skip


def with_offsets(classifier: Mapping[str, Tensor], offsets: Tensor) -> dict[str, Tensor]:
    """A state of `domain_classifier` with these numbers [D] added to its outputs."""
    bias = classifier[_OUTPUT_BIAS]
    return {**classifier, _OUTPUT_BIAS: (bias.double() + offsets).to(bias.dtype)}

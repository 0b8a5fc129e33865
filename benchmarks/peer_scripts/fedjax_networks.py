"""The benchmark's networks in JAX, layer by layer as in `work.layers` and `coterie.models`. Needs jax and haiku."""
# mypy: disable-error-code="import-not-found,misc,no-any-return"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import haiku as hk
import jax

_WIDE = (64, 128, 256, 512)


def lenet5(x: Any) -> Any:
    """LeNet-5 for 28 x 28 images."""
    x = hk.max_pool(jax.nn.relu(hk.Conv2D(6, 5)(x)), 2, 2, "VALID")
    x = hk.max_pool(jax.nn.relu(hk.Conv2D(16, 5, padding="VALID")(x)), 2, 2, "VALID")
    return hk.nets.MLP((120, 84, 10))(hk.Flatten()(x))


def mlp(x: Any) -> Any:
    """784-200-200-10."""
    return hk.nets.MLP((200, 200, 10))(hk.Flatten()(x))


def pens_cnn(x: Any) -> Any:
    """Three convolutions and two linear layers."""
    for channels in (32, 64, 64):
        x = hk.max_pool(jax.nn.relu(hk.Conv2D(channels, 3, padding="VALID")(x)), 2, 2, "VALID")
    return hk.nets.MLP((64, 10))(hk.Flatten()(x))


def _norm(x: Any) -> Any:
    return hk.GroupNorm(2)(x)


def _residual(x: Any, channels: int, stride: int) -> Any:
    body = jax.nn.relu(_norm(hk.Conv2D(channels, 3, stride, with_bias=False)(x)))
    body = _norm(hk.Conv2D(channels, 3, with_bias=False)(body))
    if stride != 1 or x.shape[-1] != channels:
        x = _norm(hk.Conv2D(channels, 1, stride, with_bias=False)(x))
    return jax.nn.relu(body + x)


def resnet18_gn(x: Any) -> Any:
    """ResNet-18 with a 3 x 3 stem and group normalisation."""
    x = jax.nn.relu(_norm(hk.Conv2D(_WIDE[0], 3, with_bias=False)(x)))
    for stage, channels in enumerate(_WIDE):
        for block in range(2):
            x = _residual(x, channels, 2 if stage and not block else 1)
    return hk.Linear(10)(x.mean((1, 2)))


NETWORKS: dict[str, Callable[[Any], Any]] = {
    "lenet5": lenet5, "mlp": mlp, "pens-cnn": pens_cnn, "resnet18-gn": resnet18_gn,
}  # fmt: skip

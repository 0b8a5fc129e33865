"""A model by its name: one of the registry, or a function of the user's."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from coterie.core import user_code
from coterie.core.errors import CoterieError
from coterie.core.task import DRAWING
from coterie.models import build_model


def builder_named(name: str, shape: tuple[int, ...], classes: int) -> Callable[[], nn.Module]:
    """The function that builds the model of that name for inputs of that shape."""
    if name.endswith(".py"):
        raise CoterieError(f"{name} is a file; name the function in it that builds the model too: {name}:FUNCTION.")
    if ":" not in name:
        with DRAWING:
            build_model(name, shape, classes)  # a bad name or shape is said now, not in the first round
        return lambda: build_model(name, shape, classes)
    made = user_code.load(name, "model")

    def build_own() -> nn.Module:
        return user_code.build(made, name)

    with DRAWING:
        build_own()  # likewise
    return build_own

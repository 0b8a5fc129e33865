"""How the members of a run come to one mind about what is learnt."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from coterie.config import RunConfig
from coterie.data.samples import ClientId
from coterie.data.scenarios import SCENARIOS
from coterie.engine.orders import Agreement, Hello, pooled, settings_of
from coterie.errors import CoterieError
from coterie.experiment import builder_named, defaults_of


def agree(config: RunConfig, hellos: Mapping[ClientId, Hello]) -> Agreement:
    """What the run is about, from the configuration and from what the clients say of their data."""
    shapes = {hello.shape for hello in hellos.values()}
    if len(shapes) > 1:
        listed = ", ".join(f"{name}: {hello.shape}" for name, hello in sorted(hellos.items()))
        raise CoterieError(f"The clients have inputs of different shapes ({listed}); bring all to one.")
    named = SCENARIOS[config.scenario.name] if config.scenario.data is None else None
    model = config.model or (named.model if named is not None else "")
    if not model:
        raise CoterieError('Your own data need a model: set model = "NAME" (see `coterie list models`).')
    shape, classes = shapes.pop(), max(hello.classes for hello in hellos.values())
    builder_named(model, shape, classes)
    return Agreement(
        run=f"{config.method}-{secrets.token_hex(8)}",
        method=config.method,
        settings=settings_of(config.build_method(defaults_of(config))),
        model=model,
        shape=shape,
        classes=classes,
        normalise=named.normalise if named is not None else pooled(hellos),
        dtype=config.dtype,
        seed=config.seed,
        use_kernel=config.engine.kernel,
    )


def subject_of(config: RunConfig) -> str:
    """What the run is about, for its report."""
    return config.scenario.name if config.scenario.data is None else config.scenario.data

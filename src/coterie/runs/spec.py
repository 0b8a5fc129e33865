"""How the members of a run agree on what is learnt."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median_high
from typing import TypeVar

from coterie.core.errors import CoterieError
from coterie.core.samples import ClientId
from coterie.data.labels import sorted_names
from coterie.data.scenarios import SCENARIOS, Scenario, scaled
from coterie.data.schema import Column, Schema
from coterie.deploy.boundary import check
from coterie.deploy.protocol import Hello, RunSpec, pooled, settings_of
from coterie.methods import Method
from coterie.models.named import builder_named
from coterie.runs.config import RunConfig
from coterie.runs.experiment import defaults_of
from coterie.simulation.faults import Faults

_ALWAYS_FINE = 100  # so many classes cost a model next to nothing
_FAR_FROM_OTHERS = 4


def check_deployable(config: RunConfig) -> Method:
    """The method of a run between real machines, once what only a simulation has is refused."""
    if config.faults != Faults():
        raise CoterieError("faults are simulated ones, and these clients are real; leave the table [faults] out.")
    if config.scenario.data is None and config.scenario.name not in SCENARIOS:
        raise CoterieError(f"There is no scenario {config.scenario.name!r}; see `coterie list scenarios`.")
    if config.settings.get("lr") == "auto":
        raise CoterieError("lr = auto is found by a test in the simulator, and these clients are real; set a number.")
    return config.build_method(defaults_of(config))


T = TypeVar("T")


class NoMajority(CoterieError):
    """The clients have inputs of different forms, and none of them is that of most."""


def odd_ones(config: RunConfig, hellos: Mapping[ClientId, Hello]) -> dict[ClientId, str]:
    """Clients whose data are not what the run is about, each with the reason.

    The form of the inputs (their shape; bytes or floats) is that of most clients; where two forms are as common, the
    image size of the run's scenario decides. The number of classes is bounded by the scenario's or, for own data, by
    what the other clients have: a client may see few labels, but not many times more than the others.
    """
    form = _usual_form(_scenario(config), config.scenario.image_size, hellos)
    odd = {
        client: f"it has {hello.inputs} of shape {hello.shape}, the run is about {form[1]} of shape {form[0]}"
        for client, hello in hellos.items()
        if (hello.shape, hello.inputs) != form
    }
    odd |= _odd_words({client: hello for client, hello in hellos.items() if client not in odd})
    rest = {client: hello.classes for client, hello in hellos.items() if client not in odd}
    named = _scenario(config)
    most = max(_ALWAYS_FINE, _FAR_FROM_OTHERS * median_high(rest.values())) if named is None else named.classes
    odd |= {c: f"it has {n} classes, the run is about at most {most}" for c, n in rest.items() if n > most}
    return odd


def _odd_words(hellos: Mapping[ClientId, Hello]) -> dict[ClientId, str]:
    """Clients whose tables have other columns than most, or labels in words where most have numbers, or the reverse."""
    columns = _usual([hello.columns for hello in hellos.values()])
    words = _usual([bool(hello.names) for hello in hellos.values()])
    kinds = {True: "words", False: "numbers"}
    odd = {
        client: f"its labels are {kinds[not words]}, those of the run are {kinds[words]}"
        for client, hello in hellos.items()
        if bool(hello.names) != words
    }
    return odd | {
        client: "the columns of its table are others, or in another order, than those of most clients"
        for client, hello in hellos.items()
        if hello.columns != columns
    }


def _usual(values: Sequence[T]) -> T:
    """The most frequent of some values; of as many, one that does not depend on their order."""
    votes = Counter(values)
    return min((value for value, number in votes.items() if number == max(votes.values())), key=repr)


def _usual_form(
    named: Scenario | None, image_size: int | None, hellos: Mapping[ClientId, Hello]
) -> tuple[tuple[int, ...], str]:
    votes = Counter((hello.shape, hello.inputs) for hello in hellos.values())
    most = max(votes.values())
    usual = [form for form, number in votes.items() if number == most]
    if len(usual) > 1 and named is not None:
        size = image_size or named.image_size
        usual = [form for form in usual if form[0][-2:] == (size, size)] or usual
    if len(usual) > 1:
        listed = ", ".join(f"{name}: {h.inputs} of shape {h.shape}" for name, h in sorted(hellos.items())[:10])
        raise NoMajority(f"The clients have inputs of different forms ({listed}) and none is that of most.")
    return usual[0]


def _scenario(config: RunConfig) -> Scenario | None:
    return SCENARIOS[config.scenario.name] if config.scenario.data is None else None


def agree(config: RunConfig, hellos: Mapping[ClientId, Hello]) -> RunSpec:
    """What the run is about, from the configuration and from what those clients say of their data that fit together."""
    if ":" in config.method:
        raise CoterieError(
            f"{config.method} is a method of your own, which the other machines do not have; "
            "run it in the simulator (coterie run), or make it one of coterie's METHODS on every machine."
        )
    odd = odd_ones(config, hellos)
    fitting = {client: hello for client, hello in hellos.items() if client not in odd}
    named = _scenario(config)
    model = model_of(config)
    if not model:
        raise CoterieError('Your own data need a model: set model = "NAME" (see `coterie list models`).')
    names = sorted_names(name for hello in fitting.values() for name in hello.names)
    shape = next(iter(fitting.values())).shape
    classes = len(names) or max(hello.classes for hello in fitting.values())
    builder_named(model, shape, classes)
    spec = RunSpec(
        run=f"{config.method}-{secrets.token_hex(8)}",
        method=config.method,
        settings=settings_of(config.build_method(defaults_of(config))),
        model=model,
        shape=shape,
        classes=classes,
        normalise=scaled(named, config.scenario.pixels)
        if named is not None
        else pooled(fitting, config.scenario.normalise),
        dtype=config.dtype,
        seed=config.seed,
        use_kernel=config.engine.kernel,
        class_names=names,
    )
    check(RunSpec, spec, "what this run is about")
    return spec


def common_schema(spec: RunSpec, hello: Hello) -> Schema:
    """How the data of a deployed run are read, as far as the clients have told it."""
    layout = "tokens" if hello.inputs == "token ids" else {1: "rows", 2: "series", 3: "images"}.get(len(spec.shape), "")
    return Schema(
        shape=spec.shape,
        classes=spec.classes,
        layout=layout,
        dtype=hello.dtype,
        normalise=spec.normalise,
        class_names=spec.class_names,
        columns=tuple(map(Column, hello.columns)),
    )


def model_of(config: RunConfig) -> str:
    """The model that the user of this machine has named, or that of the scenario."""
    named = _scenario(config)
    return config.model or (named.model if named is not None else "")

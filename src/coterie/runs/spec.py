"""How the members of a run agree on what is learnt."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeVar, cast

from coterie.core.errors import CoterieError
from coterie.core.samples import ClientId
from coterie.core.targets import TaskKind, chosen_kind
from coterie.core.terminal import brief, shown
from coterie.data.agreed import together
from coterie.data.encoding import MOST_CATEGORIES
from coterie.data.labels import are_whole
from coterie.data.scenarios import SCENARIOS, Scenario, scaled
from coterie.data.schema import Schema
from coterie.deploy.boundary import check
from coterie.deploy.fitting import are_words, other_columns
from coterie.deploy.hello import ColumnTold, Hello, pooled, pooled_targets, told_column
from coterie.deploy.protocol import RunSpec, settings_of
from coterie.methods import Method
from coterie.models.named import builder_named
from coterie.runs.classes import brought_alone, common_classes, odd_classes
from coterie.runs.config import RunConfig
from coterie.runs.experiment import defaults_of
from coterie.simulation.faults import Faults

_CLASSES = "classification"
_LONGEST_WHY = 400


def check_deployable(config: RunConfig) -> Method:
    """The method of a run between real machines, once what only a simulation has is refused."""
    if config.faults != Faults():
        raise CoterieError("faults are simulated ones, and these clients are real; leave the table [faults] out.")
    if config.scenario.data is None and config.scenario.name not in SCENARIOS:
        raise CoterieError(f"There is no scenario {config.scenario.name!r}; see `coterie list scenarios`.")
    return config.build_method(defaults_of(config))


T = TypeVar("T")


class NoMajority(CoterieError):
    """The clients have inputs of different forms, and none of them is that of most."""


def odd_ones(config: RunConfig, hellos: Mapping[ClientId, Hello]) -> dict[ClientId, str]:
    """Clients whose data are not what the run is about, each with the reason.

    The form of the inputs (their shape; bytes or floats) is that of most clients; where two forms are as common, the
    image size of the run's scenario decides. The classes are the scenario's or, for own data, those that the
    configuration says or most clients have (`odd_classes`): a client may see few labels, but not many more than others.
    """
    said = config.scenario.classes if _scenario(config) is None else None
    odd = odd_classes(said, {c: h for c, h in hellos.items() if h.task == _CLASSES}) if said is not None else {}
    hellos = {client: hello for client, hello in hellos.items() if client not in odd}  # the configuration decides first
    if not hellos:
        return odd
    form, example = _usual_form(_scenario(config), config.scenario.image_size, hellos)
    odd |= {client: _other_form(hello, example) for client, hello in hellos.items() if hello.form != form}
    odd |= _odd_targets(config, {client: hello for client, hello in hellos.items() if client not in odd})
    if _task_told(config, hellos) != _CLASSES:
        return odd
    named = _scenario(config)
    rest = {client: hello for client, hello in hellos.items() if client not in odd}
    return odd | odd_classes(config.scenario.classes if named is None else named.classes, rest)


def _other_form(hello: Hello, example: Hello) -> str:
    """In what a client's inputs are others than those of most."""
    if not hello.columns or not example.columns:
        return f"it has {hello.described}, the run is about {example.described}"
    names = other_columns(hello.columns, example.columns)
    return f"the columns of its table are others than those of most clients: they differ in {names}"


def left_out(how: str, odd: Mapping[ClientId, str], unclear: str) -> str:
    """Who is there and does not fit, and why, in brackets: for the end of a wait."""
    left = "; ".join(f"{client}, {why}" for client, why in sorted(odd.items()))
    text = f"{how}: {left}" if left else unclear
    return f" ({brief(text, _LONGEST_WHY)})" if text else ""


def alone(config: RunConfig, fitting: Mapping[ClientId, Hello]) -> dict[ClientId, str]:
    """Clients who alone bring classes that everybody's model then has, and what; where the configuration is silent."""
    decided = _scenario(config) is not None or config.scenario.classes is not None
    if decided or _task_told(config, fitting) != _CLASSES:
        return {}
    return {
        client: f"{what}, and every model has a class for that; if it is a mistake, say the classes under [scenario] "
        "where the run is configured"
        for client, what in brought_alone(fitting).items()
    }


def _task_told(config: RunConfig, hellos: Mapping[ClientId, Hello]) -> str:
    """What the clients' targets should be: as the configuration says, or as those of most are."""
    if config.task == "auto":
        return _usual([hello.task for hello in hellos.values()])
    return _CLASSES if config.task == "binary" else config.task


def _odd_targets(config: RunConfig, hellos: Mapping[ClientId, Hello]) -> dict[ClientId, str]:
    """Clients with targets of another kind, another number of them, or words for labels where most have numbers."""
    if not hellos:
        return {}
    task = _task_told(config, hellos)
    odd = {
        client: f"its targets are those of {hello.task}, the run is about {task}: if they can be that, "
        f"join with --set task={task}"
        for client, hello in hellos.items()
        if hello.task != task
    }
    rest = {client: hello for client, hello in hellos.items() if client not in odd}
    if task != _CLASSES:
        number = _usual([hello.classes for hello in rest.values() or hellos.values()])
        wrong = {client: hello for client, hello in rest.items() if hello.classes != number}
        return odd | {
            client: f"it has {hello.classes} targets a sample, the run is about {number}"
            for client, hello in wrong.items()
        }
    wordy, said = {client: are_words(hello) for client, hello in rest.items()}, config.scenario.classes
    words, kinds = _usual([*wordy.values()] or [False]), {True: "words", False: "numbers"}
    if said is not None:
        words = not isinstance(said, int) and not are_whole(said)
    return odd | {
        client: f"its labels are {kinds[not words]}, those of the run are {kinds[words]}"
        for client, own in wordy.items()
        if own != words
    }


def _usual(values: Sequence[T]) -> T:
    """The most frequent of some values; of as many, one that does not depend on their order."""
    votes = Counter(values)
    return min((value for value, number in votes.items() if number == max(votes.values())), key=repr)


def _usual_form(
    named: Scenario | None, image_size: int | None, hellos: Mapping[ClientId, Hello]
) -> tuple[tuple[object, ...], Hello]:
    """The form of the inputs that most clients have, and one of these clients."""
    votes = Counter(hello.form for hello in hellos.values())
    examples = {hello.form: hello for hello in hellos.values()}
    most = max(votes.values())
    usual = [form for form, number in votes.items() if number == most]
    if len(usual) > 1 and named is not None:
        size = image_size or named.image_size
        usual = [form for form in usual if examples[form].shape[-2:] == (size, size)] or usual
    if len(usual) > 1:
        listed = ", ".join(f"{name}: {hello.described}" for name, hello in sorted(hellos.items())[:10])
        raise NoMajority(f"The clients have inputs of different forms ({listed}) and none is that of most.")
    return usual[0], examples[usual[0]]


def _scenario(config: RunConfig) -> Scenario | None:
    return SCENARIOS[config.scenario.name] if config.scenario.data is None else None


def tests_alike(config: RunConfig) -> bool:
    """Whether clients are asked for labels as often as they have them: those with data of their own, unless said."""
    named = _scenario(config)
    return config.scenario.tests != "all" if named is None else named.partition == "natural"


def agree(config: RunConfig, hellos: Mapping[ClientId, Hello]) -> RunSpec:
    """What the run is about, from the configuration and from what those clients say of their data that fit together."""
    return usable(config, drafted(config, hellos))


def usable(config: RunConfig, spec: RunSpec) -> RunSpec:
    """The same, once the network, the loss and the method are known to fit it."""
    check(RunSpec, spec, "what this run is about")
    builder_named(spec.model, spec.shape, spec.classes)
    task = spec.build_task(spec.model, config.loss, config.metric)
    config.build_method(defaults_of(config)).check_classes(task)
    return spec


def drafted(config: RunConfig, hellos: Mapping[ClientId, Hello]) -> RunSpec:
    """What the run would be about, by what these clients say."""
    if ":" in config.method:
        raise CoterieError(
            f"{config.method} is a method of your own, which the other machines do not have; "
            "run it in the simulator (coterie run), or make it one of coterie's METHODS on every machine."
        )
    odd = odd_ones(config, hellos)
    fitting = {client: hello for client, hello in hellos.items() if client not in odd}
    named, model, task = _scenario(config), model_of(config), _task_told(config, fitting)
    if not model:
        raise CoterieError('Your own data need a model: set model = "NAME" (see `coterie list models`).')
    said = config.scenario.classes if named is None and task == _CLASSES else None
    names, classes = common_classes(said, fitting)
    columns = _columns(fitting)
    shape = (sum(column.width for column in columns),) if columns else next(iter(fitting.values())).shape
    found = cast(TaskKind, "binary" if classes == 2 and task == _CLASSES else task)
    scale = pooled_targets(fitting) if task == "regression" and config.loss == "auto" else None
    return RunSpec(
        run=f"{config.method}-{secrets.token_hex(8)}",
        method=config.method,
        settings=settings_of(config.build_method(defaults_of(config))),
        model=model,
        shape=shape,
        classes=classes,
        normalise=scaled(named, config.scenario.pixels)
        if named is not None
        else pooled(fitting, config.scenario.normalise, columns, shape),
        dtype=config.dtype,
        seed=config.seed,
        use_kernel=config.engine.kernel,
        class_names=names,
        columns=columns,
        tokens=next(iter(fitting.values())).inputs == "token ids",
        task=chosen_kind(config.task, found, classes, squares=config.loss == "mse"),
        target_mean=() if scale is None else scale.mean,
        target_std=() if scale is None else scale.std,
        loss=config.loss,
        metric=config.metric,
    )


def _columns(fitting: Mapping[ClientId, Hello]) -> tuple[ColumnTold, ...]:
    """The columns of all clients' tables together, in the order that is usual."""
    order = _usual([tuple(column.name for column in hello.columns) for hello in fitting.values()])
    if not order:
        return ()
    first = [hello for hello in fitting.values() if tuple(column.name for column in hello.columns) == order]
    rest = [hello for hello in fitting.values() if hello not in first]
    found = together([tuple(column.column for column in hello.columns) for hello in (*first, *rest)])
    for column in found:
        if len(column.categories) > MOST_CATEGORIES:
            raise CoterieError(
                f"Column {shown(column.name)} holds text with {len(column.categories)} different values over all "
                f"clients; {MOST_CATEGORIES} at most become inputs: have all clients leave it out with "
                f"--set scenario.ignore={column.name}."
            )
    text = {column.name: column.text for column in first[0].columns}
    empty = [column.name for column in found if text[column.name] and not column.categories]
    if empty:
        raise CoterieError(f"Column {shown(empty[0])} holds text, and no client tells its words; leave it out.")
    return tuple(map(told_column, found))


def common_schema(spec: RunSpec, hello: Hello) -> Schema:
    """How the data of a deployed run are read, as far as the clients have told it."""
    layout = "tokens" if hello.inputs == "token ids" else {1: "rows", 2: "series", 3: "images"}.get(len(spec.shape), "")
    return Schema(
        shape=spec.shape,
        classes=spec.classes,
        layout=layout,
        dtype=hello.dtype,
        task=spec.kind,
        normalise=spec.normalise,
        class_names=spec.class_names,
        columns=spec.terms.columns,
        missing="mean" if any(column.known for column in spec.columns) else "refuse",
    )


def model_of(config: RunConfig) -> str:
    """The model that the user of this machine has named, or that of the scenario."""
    named = _scenario(config)
    return config.model or (named.model if named is not None else "")

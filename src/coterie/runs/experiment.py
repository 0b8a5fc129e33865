"""From a configuration to a run: whose data, which model, which method, then `run`."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from coterie.core import user_code
from coterie.core.errors import CoterieError, unknown
from coterie.core.samples import Population
from coterie.core.task import DRAWING, Task
from coterie.data import SCENARIOS, Drift, build, from_path
from coterie.methods.p2p.simulation import in_simulator
from coterie.models import build_model
from coterie.report.sinks import Sink, open_sink
from coterie.runs.config import (
    RunConfig,
    ScenarioConfig,
    from_tables,
    read_tables,
)
from coterie.runs.folder import finished, holds_comparison
from coterie.runs.kind import Kind, check_kind
from coterie.runs.loop import WatchesClients
from coterie.runs.run import Result, View, run

_DTYPES = {"float32": torch.float32, "float64": torch.float64}


def population_of(scenario: ScenarioConfig, seed: int) -> Population:
    """The clients and their data.

    The seed draws a named scenario. The user's own data are split as `from_path` does, in the same way whatever the
    seed is, so that runs with several seeds are judged on the same samples.
    """
    if scenario.data is not None:
        extra = [f.name for f in dataclasses.fields(scenario) if f.name in _SHAPING and getattr(scenario, f.name)]
        if extra:
            raise CoterieError(f"{', '.join(extra)} shape a named scenario, not your own data; leave them out.")
        return from_path(Path(scenario.data), validation=scenario.validation, layout=scenario.layout)
    if scenario.layout is not None:
        raise CoterieError("layout says what your own data are, and a named scenario knows it; leave it out.")
    return build(
        scenario.name,
        seed=seed,
        root=scenario.root,
        clients=scenario.clients,
        samples=scenario.samples,
        test_samples=scenario.test_samples,
        groups=scenario.groups,
        alpha=scenario.alpha,
        partition=scenario.partition,
        pixels=scenario.pixels,
        image_size=scenario.image_size,
        validation=scenario.validation,
        unseen=int(scenario.unseen) if scenario.unseen >= 1 else scenario.unseen,
        drift=[Drift(when, share) for when, share in scenario.drift],
    )


_SHAPING = {
    *("clients", "samples", "test_samples", "groups", "alpha", "partition", "pixels", "image_size", "drift", "unseen")
}


def builder_of(config: RunConfig, population: Population) -> Callable[[], nn.Module]:
    """The function that builds the model: a name of the registry, or `file.py:function` / `package.module:function`."""
    name = config.model or (SCENARIOS[config.scenario.name].model if config.scenario.data is None else "")
    if not name:
        raise CoterieError("Your own data need a model: --model NAME, or --model file.py:function for your own.")
    return builder_named(name, tuple(population.shape), population.classes)


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


def defaults_of(config: RunConfig) -> dict[str, Any]:
    """How a named scenario is trained unless the user says otherwise."""
    if config.scenario.data is None and config.scenario.name not in SCENARIOS:
        raise unknown("scenario", config.scenario.name, SCENARIOS)
    return dict(SCENARIOS[config.scenario.name].training) if config.scenario.data is None else {}


@dataclass(frozen=True)
class _Tracked:
    """A view that passes every round on to trackers as well."""

    view: View | None
    sinks: tuple[Sink, ...]

    def update(self, row: Mapping[str, Any]) -> None:
        for sink in self.sinks:
            sink.round(row)
        if self.view is not None:
            self.view.update(row)

    def note(self, text: str) -> None:
        if self.view is not None:
            self.view.note(text)

    def progress(self, what: str, done: int, asked: int) -> None:
        if isinstance(self.view, WatchesClients):
            self.view.progress(what, done, asked)


def execute(config: RunConfig, out: Path | None, *, view: View | None = None, resume: bool = False) -> Result:
    """Run a configuration, with the trackers it names."""
    sinks = tuple(open_sink(name, out or Path()) for name in config.track)
    for sink in sinks:
        sink.start(tomllib.loads(config.to_toml()))
    result = _execute(config, out, _Tracked(view, sinks) if sinks else view, resume)
    for sink in sinks:
        sink.end(json.loads(result.to_json()))
    return result


def _execute(config: RunConfig, out: Path | None, view: View | None, resume: bool) -> Result:
    if config.scenario.data is None and config.scenario.name not in SCENARIOS:
        build(config.scenario.name, seed=config.seed)  # refuses the name
    population = population_of(config.scenario, config.seed)
    method = config.build_method(defaults_of(config))
    return run(
        method,
        population,
        builder_of(config, population),
        rounds=config.rounds,
        seed=config.seed,
        out=out,
        dtype=_DTYPES[config.dtype],
        faults=config.faults,
        engine=config.engine,
        view=view,
        scenario=config.scenario.name if config.scenario.data is None else config.scenario.data,
        config=config.to_toml(),
        evaluate_every=config.evaluate_every,
        evaluate_clients=config.evaluate_clients,
        checkpoint_seconds=config.checkpoint_seconds,
        resume=resume,
    )


def check(configs: Sequence[RunConfig]) -> None:
    """Refuse, before the first of several runs, what a later one could not begin with; shared data are read once."""
    read: dict[tuple[ScenarioConfig, int], Population] = {}
    for config in configs:
        key = (config.scenario, config.seed)
        population = read[key] = read.get(key) or population_of(*key)
        method = config.build_method(defaults_of(config))
        if method.needs_groups and any(population.group(client) is None for client in population.ids):
            raise CoterieError(
                f"{config.method} needs the true groups of the clients, which are not known here; "
                f"leave {config.method} out."
            )
        in_simulator(method).task(Task.of(builder_of(config, population), population, dtype=_DTYPES[config.dtype]))


def config_of(folder: Path) -> RunConfig:
    """The configuration of a run that is on disk."""
    if not (folder / "config.toml").is_file():
        if holds_comparison(folder):
            raise CoterieError(f"{folder} holds a comparison; the same `coterie compare` command goes on with it.")
        raise CoterieError(f"{folder} is not the folder of a run: it has no config.toml.")
    return from_tables(read_tables(folder / "config.toml"))


def resume(folder: Path, *, view: View | None = None) -> Result:
    """Go on with a run from its last checkpoint, in the same folder, to the same end."""
    config = config_of(folder)
    if (folder / "result.json").is_file():
        raise finished(folder)
    check_kind(folder, Kind.SIMULATION)  # before any tracker begins
    return execute(config, folder, view=view, resume=True)

"""From a configuration to a run: whose data, which model, which method, then `simulate`."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from coterie.core.errors import CoterieError, unknown
from coterie.core.samples import ClientId, Population
from coterie.core.targets import TaskName
from coterie.core.task import Task
from coterie.data import SCENARIOS, Drift, build, from_path
from coterie.data.adapters import TableOptions
from coterie.data.folders import files_of_clients, from_file
from coterie.data.population import unseen_ids
from coterie.methods.p2p.simulation import in_simulator
from coterie.models.named import builder_named
from coterie.runs.config import RunConfig, ScenarioConfig, from_tables, read_tables
from coterie.runs.folder import RunFolder, RunKind, check_kind, finished, holds_comparison
from coterie.runs.rates import tested_rate
from coterie.runs.records import CONFIG_FILE, RESULT_FILE, read_metrics
from coterie.runs.result import Result
from coterie.runs.simulate import simulate
from coterie.runs.view import View, Views


def population_of(scenario: ScenarioConfig, seed: int, task: TaskName = "auto") -> Population:
    """The clients and their data.

    The seed draws a named scenario. The user's own data are split as `from_path` does, in the same way whatever the
    seed is, so that runs with several seeds are judged on the same samples.
    """
    if scenario.data is not None:
        extra = [f.name for f in dataclasses.fields(scenario) if f.name in _SHAPING and getattr(scenario, f.name)]
        if extra:
            raise CoterieError(f"{', '.join(extra)} shape a named scenario, not your own data; leave them out.")
        reading = _reading(scenario, task)
        reading["client"] = scenario.client_column
        reading["classes"] = scenario.classes
        reading["unseen"] = int(scenario.unseen) if scenario.unseen >= 1 else scenario.unseen
        reading["drift"] = [Drift(when, share, to=scenario.drift_to) for when, share in scenario.drift]
        return from_path(Path(scenario.data), image_size=scenario.image_size, **reading)
    said = [name for name in _OWN if getattr(scenario, name) != getattr(ScenarioConfig, name)]
    if said:
        raise CoterieError(
            f"{', '.join(said)} say what your own data are, and a named scenario knows it; leave them out."
        )
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
        drift=[Drift(when, share, to=scenario.drift_to) for when, share in scenario.drift],
        shift=scenario.shift,
        group_sizes=scenario.group_sizes,
        mixed=scenario.mixed,
    )


_SHAPING = {
    *("clients", "samples", "test_samples", "groups", "alpha", "partition", "pixels"),
    *("shift", "group_sizes", "mixed"),
}
_OWN = ("layout", "client_column", "target_column", "ignore", "missing", "classes", "normalise", "tests")


def _reading(scenario: ScenarioConfig, task: TaskName) -> TableOptions:
    """How one client's own data are read."""
    return {
        "layout": scenario.layout,
        "normalise": scenario.normalise,
        "target": scenario.target_column,
        "ignore": scenario.ignore,
        "missing": scenario.missing,
        "validation": scenario.validation,
        "tests": scenario.tests,
        "task": task,
    }


def client_data(path: Path, name: ClientId, task: TaskName = "auto", how: ScenarioConfig | None = None) -> Population:
    """A client's own data: an .npz, .csv or .parquet file or a folder of images, read as `how` says.

    Or, for trials, a run's TOML file, of whose scenario it is client `name`.
    """
    if path.suffix != ".toml":
        return from_file(path, name, **_reading(how or ScenarioConfig(), task))
    return _with_client(_scenario_in(path), name, path)


def clients_data(
    path: Path, names: Sequence[ClientId], task: TaskName = "auto", how: ScenarioConfig | None = None
) -> dict[ClientId, Population]:
    """The data of several clients, each as `client_data` reads them: a file or folder for each in `path`.

    Or a run's TOML file, whose scenario they share. The names may be `all`.
    """
    everyone = list(names) == ["all"]
    if path.suffix == ".toml":
        population = _scenario_in(path)
        return {name: _with_client(population, name, path) for name in (population.ids if everyone else names)}
    if not path.is_dir():
        raise CoterieError(f"There is no folder {path}; --names takes one with a file for each client.")
    files = files_of_clients(path)
    missing = [] if everyone else [name for name in names if name not in files]
    if missing or not files:
        raise CoterieError(f"{path} has no data of {missing[0] if missing else 'any client'}; name them NAME.npz, ...")
    return {name: client_data(files[name], name, task, how) for name in (files if everyone else names)}


def _scenario_in(path: Path) -> Population:
    config = from_tables(read_tables(path))
    return population_of(config.scenario, config.seed, config.task)


def _with_client(population: Population, name: ClientId, path: Path) -> Population:
    known = [*population.ids, *unseen_ids(population)]
    if name not in known:
        few = ", ".join(known[:5]) + (", ..." if len(known) > 5 else "")
        raise CoterieError(f"The scenario of {path} has no client {name!r}; choose a --name among {few}.")
    return population


def builder_of(config: RunConfig, population: Population) -> Callable[[], nn.Module]:
    """The function that builds the model: a name of the registry, or `file.py:function` / `package.module:function`."""
    name = config.model or (SCENARIOS[config.scenario.name].model if config.scenario.data is None else "")
    if not name:
        raise CoterieError("Your own data need a model: --model NAME, or --model file.py:function for your own.")
    return builder_named(name, tuple(population.shape), population.classes)


def defaults_of(config: RunConfig) -> dict[str, Any]:
    """How a named scenario is trained unless the user says otherwise."""
    if config.scenario.data is None and config.scenario.name not in SCENARIOS:
        raise unknown("scenario", config.scenario.name, SCENARIOS)
    return dict(SCENARIOS[config.scenario.name].training) if config.scenario.data is None else {}


def execute(config: RunConfig, out: Path | None, *, view: View | None = None, resume: bool = False) -> Result:
    """Run a configuration in the simulator."""
    views = Views(view)
    views.started(tomllib.loads(config.to_toml()))
    if config.scenario.data is None and config.scenario.name not in SCENARIOS:
        build(config.scenario.name, seed=config.seed)  # refuses the name
    population = population_of(config.scenario, config.seed, config.task)
    if not resume:  # what a folder holds has the rate that it began with
        config = rated_config(config, population, views.note)
    return simulate(
        config.build_method(defaults_of(config)),
        population,
        builder_of(config, population),
        config,
        out=out,
        faults=config.faults,
        engine=config.engine,
        view=views,
        scenario=config.subject,
        config=config.to_toml(),
        resume=resume,
    )


def _task(config: RunConfig, population: Population) -> Task:
    """What a configuration has learnt of a population."""
    return Task.of(
        builder_of(config, population),
        population,
        task=config.task,
        loss=config.loss,
        metric=config.metric,
        dtype=config.torch_dtype,
    )


def rated_config(config: RunConfig, population: Population, note: Callable[[str], None]) -> RunConfig:
    """The configuration with a learning rate: one found by a test, unless the user or the scenario has one for it."""
    method = config.build_method(defaults_of(config))
    if method.has_rate:
        return config
    task = dataclasses.replace(_task(config, population), use_kernel=config.engine.kernel)
    rate = tested_rate(task, population, method.opt, config.seed, note)
    return dataclasses.replace(config, settings={**config.settings, "lr": rate})


def check(configs: Sequence[RunConfig]) -> None:
    """Refuse, before the first of several runs, what a later one could not begin with; shared data are read once."""
    read: dict[tuple[ScenarioConfig, int, TaskName], Population] = {}
    for config in configs:
        key = (config.scenario, config.seed, config.task)
        population = read[key] = read.get(key) or population_of(*key)
        method = config.build_method(defaults_of(config))
        if method.needs_groups and any(population.group(client) is None for client in population.ids):
            raise CoterieError(
                f"{config.method} needs the true groups of the clients, which are not known here; "
                f"leave {config.method} out."
            )
        learnt = _task(config, population)
        method.check_classes(learnt)
        in_simulator(method).task(learnt)


def config_of(folder: Path) -> RunConfig:
    """The configuration of a run that is on disk."""
    if not (folder / CONFIG_FILE).is_file():
        if holds_comparison(folder):
            raise CoterieError(f"{folder} holds a comparison; the same `coterie compare` command goes on with it.")
        raise CoterieError(f"{folder} is not the folder of a run: it has no config.toml.")
    return from_tables(read_tables(folder / CONFIG_FILE))


def resume(folder: Path, *, rounds: int | None = None, view: View | None = None) -> Result:
    """Go on with a run from its last checkpoint, in the same folder: to its end, or to another number of rounds."""
    config = config_of(folder)
    over = (folder / RESULT_FILE).is_file()
    if over and (rounds is None or rounds == config.rounds):
        raise finished(folder)
    check_kind(folder, RunKind.SIMULATION)  # before any tracker begins
    if rounds is not None and rounds != config.rounds:
        config = _lengthened(folder, config, rounds, over)
    return execute(config, folder, view=view, resume=True)


def _lengthened(folder: Path, config: RunConfig, rounds: int, over: bool) -> RunConfig:
    """The configuration with another number of rounds, which config.toml then says too; the old result goes."""
    least = config.rounds if over else len(read_metrics(folder))
    if rounds < max(least, 1):
        raise CoterieError(f"The run in {folder} has reached round {least}; set --rounds to more than that.")
    longer = dataclasses.replace(config, rounds=rounds)
    (folder / RESULT_FILE).unlink(missing_ok=True)  # first: a run without it is one to go on with
    RunFolder(folder).write(CONFIG_FILE, longer.to_toml().encode())
    return longer

"""One run from start to end in the simulator."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from coterie.core import devices
from coterie.core.errors import CoterieError
from coterie.core.losses import LossChoice, LossFn
from coterie.core.metrics import METRICS, Metric, MetricFn
from coterie.core.samples import Population
from coterie.core.settings import changed_fields, to_toml
from coterie.core.task import Task
from coterie.data.describe import remarks
from coterie.data.schema import SCHEMA_FILE, schema_of
from coterie.methods import Method, chosen_method
from coterie.methods.base import RoundMethod
from coterie.methods.local_training import LocalTraining
from coterie.methods.p2p.simulation import in_simulator
from coterie.runs.folder import IN_PYTHON, RunFolder
from coterie.runs.loop import RoundLoop
from coterie.runs.options import RunOptions, check_quorum
from coterie.runs.rates import is_own, rated, tested_rate
from coterie.runs.result import Result
from coterie.runs.view import View, Views
from coterie.simulation.faults import Faults
from coterie.simulation.simulator import EngineOptions, Simulator


def simulate(
    method: Method | RoundMethod[Any] | str,
    population: Population,
    model: nn.Module | Callable[[], nn.Module],
    options: RunOptions,
    *,
    out: Path | None = None,
    loss: LossChoice | LossFn = "auto",
    metric: str | Metric | MetricFn = "auto",
    faults: Faults | None = None,
    engine: EngineOptions | None = None,
    view: View | None = None,
    scenario: str = "own data",
    config: str | None = None,
    resume: bool = False,
) -> Result:
    """Run a method in the simulator. `config` is the text of config.toml; without it, it is made of the settings."""
    if isinstance(method, str):
        method = chosen_method(method)()
    if not isinstance(method, (LocalTraining, RoundMethod)):
        raise CoterieError('The method must be a name such as "fedavg", or coterie.method(NAME, ...) with settings.')
    if not len(population.ids):
        raise CoterieError("There are no clients; a federation needs at least one.")
    faults, engine, views = faults or Faults(), engine or EngineOptions(), Views(view)
    given = options.loss if isinstance(loss, str) and loss == "auto" else loss
    judge = options.metric if isinstance(metric, str) and metric == "auto" else metric
    task = Task.of(model, population, task=options.task, loss=given, metric=judge, dtype=options.torch_dtype)
    device = devices.chosen(engine.device)
    task = dataclasses.replace(task, use_kernel=engine.kernel, device=device, precision=engine.precision)
    for remark in remarks(population) if is_own(population) else ():
        views.note(remark)
    if task.primary.name not in METRICS and not task.primary.lower_is_better:
        views.note(
            f"{task.primary.name}: more is taken as better; where less is, give coterie.Metric(name, function, "
            "lower_is_better=True)"
        )
    check_quorum(method, options)
    if isinstance(method, LocalTraining):
        method.check_classes(task)
        opt, seed = method.opt, options.seed
        method = rated(method, population, lambda: _kept(out) or tested_rate(task, population, opt, seed, views.note))
    method = in_simulator(method)
    fed = Simulator(
        method,
        method.task(task),
        population,
        seed=options.seed,
        faults=faults,
        options=engine,
        quorum=options.closing,
        note=views.note,
        progress=views.progress,
    )
    folder = None
    if out is not None:
        config = config or _described(method.training, options, faults, engine)
        folder = RunFolder.reopen(out) if resume else RunFolder.create(out, config)
        folder.check_same(config)
        folder.write(SCHEMA_FILE, schema_of(population).to_json().encode())
    return RoundLoop(method, fed, options, folder, view=views, scenario=scenario).run(resume)


def _kept(out: Path | None) -> float | None:
    """The rate that the folder of a run to go on with has kept."""
    kept = RunFolder(out).config if out is not None and out.is_dir() else ""
    rate = tomllib.loads(kept).get("settings", {}).get("lr") if kept else None
    return rate if isinstance(rate, float) else None


def _described(method: LocalTraining, options: RunOptions, faults: Faults, engine: EngineOptions) -> str:
    """The config.toml of a run whose data and model only the calling program has; everything else is in it."""
    settings = {f.name: _plain(getattr(method, f.name)) for f in dataclasses.fields(method)}
    settings["lr"] = method.opt.rate(0)  # a default belongs to the optimiser, and the file says what it was
    tables = {"faults": changed_fields(faults), "engine": changed_fields(engine)}
    return to_toml(
        {"method": method.name, **options.plain, "scenario": {"name": IN_PYTHON}, "settings": settings, **tables}
    )


def _plain(value: Any) -> Any:
    """A setting as TOML has it; what is not a plain value, by its name."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return getattr(value, "__qualname__", type(value).__qualname__)

"""One experiment from start to end in the simulator."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from coterie.core.errors import CoterieError, Interrupted
from coterie.core.samples import Population
from coterie.core.settings import changed_fields, to_toml
from coterie.core.task import LossFn, LossName, Task
from coterie.methods import Method, chosen_method
from coterie.methods.base import LocalTraining, RoundMethod
from coterie.methods.p2p.simulation import in_simulator
from coterie.runs.folder import RunFolder
from coterie.runs.kind import IN_PYTHON
from coterie.runs.loop import (
    Nobody,
    Result,
    View,
    WatchesClients,
    run_with,
)
from coterie.simulation.faults import Faults
from coterie.simulation.simulator import EngineOptions, Simulator

__all__ = ["Interrupted", "Result", "View", "run"]


def run(
    method: Method | RoundMethod[Any] | str,
    population: Population,
    model: nn.Module | Callable[[], nn.Module],
    *,
    rounds: int = 20,
    seed: int = 0,
    out: Path | str | None = None,
    loss: LossName | LossFn = "cross_entropy",
    dtype: torch.dtype = torch.float32,
    faults: Faults | None = None,
    engine: EngineOptions | None = None,
    view: View | None = None,
    scenario: str = "own data",
    config: str | None = None,
    evaluate_every: int = 1,
    evaluate_clients: int = 1000,
    checkpoint_seconds: float = 10.0,
    resume: bool = False,
) -> Result:
    """Run a method on a population in the simulator.

    `method` is a ready one (`coterie.method("ifca", k=3)`) or the name of one, which then has its own defaults.
    With `out`, everything is written to that folder; `resume=True` goes on from its last checkpoint and ends in the
    same state, bit for bit, as a run that was never interrupted.
    """
    if isinstance(method, str):
        method = chosen_method(method)()
    if not isinstance(method, (LocalTraining, RoundMethod)):
        raise CoterieError('The method must be a name such as "fedavg", or coterie.method(NAME, ...) with settings.')
    if rounds < 1:
        raise CoterieError(f"rounds must be at least 1, not {rounds}.")
    if not len(population.ids):
        raise CoterieError("There are no clients; a federation needs at least one.")
    method = _with_rate(method, population)
    options = engine or EngineOptions()
    task = dataclasses.replace(Task.of(model, population, loss=loss, dtype=dtype), use_kernel=options.kernel)
    watcher = view or Nobody()
    driven = in_simulator(method)
    fed = Simulator(
        driven,
        driven.task(task),
        population,
        seed=seed,
        faults=faults,
        options=options,
        note=watcher.note,
        progress=watcher.progress if isinstance(watcher, WatchesClients) else lambda *_: None,
    )
    folder = None
    if out is not None:
        if config is None:
            config = _described(
                driven.training,
                {
                    "rounds": rounds,
                    "seed": seed,
                    "dtype": str(dtype).removeprefix("torch."),
                    "evaluate_every": evaluate_every,
                    "evaluate_clients": evaluate_clients,
                    "checkpoint_seconds": checkpoint_seconds,
                },
                faults or Faults(),
                options,
            )
        folder = RunFolder.reopen(Path(out)) if resume else RunFolder.create(Path(out), config)
        folder.check_same(config)
    return run_with(
        fed,
        driven,
        folder,
        rounds=rounds,
        view=watcher,
        scenario=scenario,
        evaluate_every=evaluate_every,
        evaluate_clients=evaluate_clients,
        checkpoint_seconds=checkpoint_seconds,
        resume=resume,
    )


def _with_rate(method: Method | RoundMethod[Any], population: Population) -> Method | RoundMethod[Any]:
    """The method with a named scenario's learning rate, where it has none and the optimiser is the scenario's."""
    training: Mapping[str, Any] = getattr(population, "training", {})
    if not isinstance(method, LocalTraining):
        return method
    rate = {**training, **method.scenario_training.get(getattr(population, "scenario", ""), {})}.get("lr")
    if method.lr is not None or rate is None or training.get("optimiser", "sgd") != method.optimiser:
        return method
    return dataclasses.replace(method, lr=rate)


def _described(method: LocalTraining, run: dict[str, Any], faults: Faults, engine: EngineOptions) -> str:
    """The config.toml of a run whose data and model only the calling program has; everything else is in it."""
    settings = {f.name: _plain(getattr(method, f.name)) for f in dataclasses.fields(method)}
    settings["lr"] = method.opt.rate(0)  # a default belongs to the optimiser, and the file says what it was
    tables = {"faults": changed_fields(faults), "engine": changed_fields(engine)}
    return to_toml({"method": method.name, **run, "scenario": {"name": IN_PYTHON}, "settings": settings, **tables})


def _plain(value: Any) -> Any:
    """A setting as TOML has it; what is no plain value, by its name."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return getattr(value, "__qualname__", type(value).__qualname__)

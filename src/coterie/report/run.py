"""`coterie.run`: a run in the simulator, and its report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from coterie.core.losses import LossChoice, LossFn
from coterie.core.metrics import Metric, MetricFn
from coterie.core.quorum import LateRule
from coterie.core.samples import Population
from coterie.core.targets import TaskName
from coterie.methods import Method
from coterie.methods.base import RoundMethod
from coterie.report.observers import ReportWriter
from coterie.runs.options import RunOptions
from coterie.runs.result import Result
from coterie.runs.simulate import simulate
from coterie.runs.view import View, Views
from coterie.simulation.faults import Faults
from coterie.simulation.simulator import EngineOptions


def run(
    method: Method | RoundMethod[Any] | str,
    population: Population,
    model: nn.Module | Callable[[], nn.Module],
    *,
    rounds: int = 20,
    seed: int = 0,
    out: Path | str | None = None,
    task: TaskName = "auto",
    loss: LossChoice | LossFn = "auto",
    metric: str | Metric | MetricFn = "auto",
    dtype: torch.dtype = torch.float32,
    faults: Faults | None = None,
    engine: EngineOptions | None = None,
    view: View | None = None,
    scenario: str = "own data",
    config: str | None = None,
    evaluate_every: int = 1,
    evaluate_clients: int = 1000,
    checkpoint_seconds: float = 10.0,
    quorum: float = 1.0,
    late: LateRule = "drop",
    resume: bool = False,
) -> Result:
    """Run a method on a population in the simulator.

    `method` is a ready one (`coterie.method("ifca", k=3)`) or the name of one, which then has its own defaults.
    `task` says what is learnt where the targets leave that open, `loss` what is minimised (a name, or a function
    (output, target) that returns the mean over a batch) if not the usual loss of the task.
    `metric` is what the run is judged by: a name such as "f1", a function (prediction, target) that returns a number of
    which more is better, or `coterie.Metric(name, function, lower_is_better=True)`.
    A round is closed when the share `quorum` of its clients has answered; later replies are dropped, or used (`late`).
    With `out`, everything is written to that folder; `resume=True` goes on from its last checkpoint and ends in the
    same state as a run that was never interrupted: bit for bit on the same kind of CPU with the same torch.
    """
    return simulate(
        method,
        population,
        model,
        RunOptions(
            rounds=rounds,
            seed=seed,
            dtype=str(dtype).removeprefix("torch."),
            evaluate_every=evaluate_every,
            evaluate_clients=evaluate_clients,
            checkpoint_seconds=checkpoint_seconds,
            task=task,
            quorum=quorum,
            late=late,
        ),
        out=None if out is None else Path(out),
        loss=loss,
        metric=metric,
        faults=faults,
        engine=engine,
        view=Views(view, ReportWriter()),
        scenario=scenario,
        config=config,
        resume=resume,
    )

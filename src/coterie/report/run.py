"""`coterie.run`: a run in the simulator, and its report."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, TypedDict, Unpack

import torch
from torch import nn

from coterie.core.losses import LossChoice, LossFn
from coterie.core.metrics import Metric, MetricFn
from coterie.core.quorum import LateRule
from coterie.core.samples import Population
from coterie.core.settings import check_keywords
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


class RunKeywords(TypedDict, total=False):
    """What `coterie.run` and `coterie.compare` both take by name; the defaults are `RunOptions`' and `simulate`'s."""

    rounds: int
    task: TaskName
    loss: LossChoice | LossFn
    metric: str | Metric | MetricFn
    dtype: torch.dtype
    evaluate_every: int
    evaluate_clients: int
    checkpoint_seconds: float
    quorum: float
    late: LateRule
    faults: Faults | None
    engine: EngineOptions | None
    view: View | None
    scenario: str
    config: str | None


def run(
    method: Method | RoundMethod[Any] | str,
    population: Population,
    model: nn.Module | Callable[[], nn.Module],
    *,
    seed: int = 0,
    out: Path | str | None = None,
    resume: bool = False,
    **options: Unpack[RunKeywords],
) -> Result:
    """Run a method on a population in the simulator.

    `method` is a ready one (`coterie.method("ifca", k=3)`) or the name of one, which then has its own defaults.
    `task` says what is learnt where the targets leave that open, `loss` what is minimised (a name, or a function
    (output, target) that returns the mean over a batch) if not the usual loss of the task.
    `metric` is what the run is judged by: a name such as "f1", a function (prediction, target) that returns a number of
    which more is better, or `coterie.Metric(name, function, lower_is_better=True)`.
    A round is closed when the share `quorum` of its clients has answered; later replies are dropped, or used (`late`).
    Clients are evaluated after every `evaluate_every` rounds (of more than `evaluate_clients`, a sample of these).
    With `out`, everything is written to that folder; `resume=True` goes on from its last checkpoint and ends in the
    same state as a run that was never interrupted: bit for bit on the same kind of CPU with the same torch.
    """
    check_keywords("run", RunKeywords, options)
    how: dict[str, Any] = {**options}
    if "dtype" in how:
        how["dtype"] = str(how["dtype"]).removeprefix("torch.")
    chosen = RunOptions(seed=seed, **{name: how.pop(name) for name in _OPTIONS if name in how})
    how["view"] = Views(how.get("view"), ReportWriter())
    return simulate(method, population, model, chosen, out=None if out is None else Path(out), resume=resume, **how)


_OPTIONS = {each.name for each in fields(RunOptions)} - {"loss", "metric"}
"""`simulate` takes these two itself: from Python they may be functions, which a configuration cannot hold."""


def _spelled_out() -> inspect.Signature:
    """The signature of `run` with every keyword and its default, for `help` and for notebooks."""
    own = inspect.signature(run)
    passed_on = inspect.signature(simulate).parameters
    defaults = {name: each.default for name, each in passed_on.items()}
    defaults |= {each.name: each.default for each in fields(RunOptions)} | {"dtype": torch.float32}
    named = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=kind)
        for name, kind in RunKeywords.__annotations__.items()
    ]
    return own.replace(parameters=[*list(own.parameters.values())[:-1], *named])


run.__signature__ = _spelled_out()  # type: ignore[attr-defined]

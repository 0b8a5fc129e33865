"""Short runs of methods on held-out data, at one rate."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from coterie.core.errors import CoterieError, Unfinished
from coterie.core.losses import LossChoice, LossFn
from coterie.core.notes import Note
from coterie.methods.base import ServerMethod
from coterie.methods.fedavg import FedAvg
from coterie.runs.advice.held_out import HeldOut
from coterie.runs.options import RunOptions
from coterie.runs.result import Result
from coterie.runs.simulate import simulate
from coterie.runs.view import NotesOnly
from coterie.simulation.simulator import EngineOptions

CLOSE = 0.005
"""A gain below this (half a point) does not count."""
_HARDLY = 0.1
"""Who is no further ahead of a constant answer has hardly begun to learn."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """Short runs on the same held-out data, with the same local training."""

    population: HeldOut
    model: nn.Module | Callable[[], nn.Module]
    settings: Mapping[str, Any]
    options: RunOptions
    loss: LossChoice | LossFn
    engine: EngineOptions | None
    note: Note

    def run(self, kind: type[Any], **own: Any) -> Result:
        """One method, from start to end."""
        self.note(f"trying {kind.title}: {self.options.rounds} rounds")
        method: ServerMethod[Any] = kind(**known_settings(kind, self.settings), **own)
        return simulate(
            method,
            self.population,
            self.model,
            self.options,
            loss=self.loss,
            engine=self.engine,
            view=NotesOnly(self.note),
        )

    def tried(self, name: str, kind: type[Any], **own: Any) -> dict[str, Result]:
        """The same for a method that is not made for every network and task: nothing where it refuses or fails."""
        try:
            return {name: self.run(kind, **own)}
        except Unfinished:
            raise
        except CoterieError as error:
            self.note(f"{kind.title} is left out: {error}")
            return {}


def first_run(trial: Trial, test: Callable[[], float] | None) -> tuple[Trial, Result, dict[str, float]]:
    """FedAvg's run; where it learns hardly anything, by the rate that `test` finds, if that is better.

    With it the trial to go on with, and the rate if it is another. A scenario has the rate of its paper, which may be
    for thousands of rounds: by LEAF's, writers learn nothing in 20.
    """
    first = trial.run(FedAvg)
    if test is None or ahead_of_nothing(mean_score(first), first) > _HARDLY:
        return trial, first, {}
    trial.note(f"at the scenario's rate, lr = {trial.settings['lr']:g}, hardly anything is learnt in so few rounds")
    other = dataclasses.replace(trial, settings={**trial.settings, "lr": (rate := test())})
    if rate == trial.settings["lr"]:
        return trial, first, {}
    again = other.run(FedAvg)
    before, after = mean_score(first), mean_score(again)
    more = before - after if first.lower_is_better else after - before
    return (other, again, {"lr": rate}) if more > 0 else (trial, first, {})


def known_scores(result: Result, values: Sequence[float | None]) -> dict[str, float]:
    """What clients have reached, by name; without those of which nothing is known."""
    return {client: value for client, value in zip(result.client_ids, values, strict=True) if value is not None}


def mean_score(result: Result) -> float:
    """The mean over the clients of what a run reached."""
    scores = known_scores(result, result.per_client_score)
    return sum(scores.values()) / max(len(scores), 1)


def ahead_of_nothing(score: float, first: Result) -> float:
    """How much better a score is than a constant answer's; of errors, as a share of it."""
    if first.floor is None:
        return math.inf
    return (first.floor - score) / max(abs(score), 1e-12) if first.lower_is_better else score - first.floor


def known_settings(kind: type[Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those of some settings that a method has."""
    return {key: value for key, value in settings.items() if key in kind.__dataclass_fields__}

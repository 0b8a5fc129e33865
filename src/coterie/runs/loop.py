"""The loop over rounds, whatever the clients are: evaluation, checkpoints, the result."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from typing import Any, Protocol, runtime_checkable

from coterie.core import wire
from coterie.core.cohort import Memory
from coterie.core.errors import CoterieError, Interrupted, Unfinished
from coterie.core.federation import Engine, Ledger, Tally
from coterie.core.interrupts import held_back
from coterie.core.panels import save_panels
from coterie.core.samples import ClientId
from coterie.core.states import State
from coterie.core.threads import one_thread_everywhere
from coterie.methods.base import Log, RoundMethod
from coterie.report.html import write_run_report
from coterie.runs.folder import Row, RunFolder
from coterie.runs.health import Health
from coterie.runs.judge import Judge, Judgement
from coterie.runs.result import Result

__all__ = ["Interrupted", "Nobody", "Result", "View", "run_with"]


class View(Protocol):
    """Someone who watches a run."""

    def update(self, row: Mapping[str, Any]) -> None:
        """A round has ended."""

    def note(self, text: str) -> None:
        """Something worth a line has happened."""


@runtime_checkable
class WatchesClients(View, Protocol):
    """Someone who also watches how far a round has come."""

    def progress(self, what: str, done: int, asked: int) -> None:
        """So many of the clients that were asked are done with their training or evaluation."""


class Nobody:
    """Nobody watches."""

    def update(self, row: Mapping[str, Any]) -> None:
        """Not seen."""

    def note(self, text: str) -> None:
        """Not heard."""


def run_with(
    fed: Engine,
    method: RoundMethod[Any],
    folder: RunFolder | None,
    *,
    rounds: int,
    view: View | None = None,
    scenario: str = "own data",
    evaluate_every: int = 1,
    evaluate_clients: int = 1000,
    checkpoint_seconds: float = 10.0,
    resume: bool = False,
) -> Result:
    """Run a method on a federation that is ready, the simulator or another, and close it at the end."""
    with one_thread_everywhere(), closing(fed):
        experiment = _Experiment(
            method, fed, folder, view or Nobody(), rounds, evaluate_every, evaluate_clients, checkpoint_seconds
        )
        return experiment.run(scenario, resume)


class _Experiment:
    """The loop over rounds and what is written down after each."""

    def __init__(
        self,
        method: RoundMethod[Any],
        fed: Engine,
        folder: RunFolder | None,
        view: View,
        rounds: int,
        evaluate_every: int,
        evaluate_clients: int,
        checkpoint_seconds: float,
    ) -> None:
        self.method, self.fed, self.folder, self.view = method, fed, folder, view
        self.rounds, self.evaluate_every = rounds, evaluate_every
        self.judge = Judge(method, fed, evaluate_clients)
        self.checkpoint_seconds = checkpoint_seconds
        self.failures = 0
        self.health = Health()
        self.spent = 0.0
        self.paid: tuple[dict[Any, int], dict[Any, int]] = ({}, {})
        self._constant: float | None = None
        self._began = self._saved = time.monotonic()

    @property
    def seconds(self) -> float:
        """Wall time of the run so far, over all its sessions."""
        return self.spent + time.monotonic() - self._began

    def run(self, scenario: str, resume: bool) -> Result:
        """All rounds, then the result."""
        state, first = self._start(scenario, resume)
        judged: Judgement | None = None
        reached = first
        try:
            for number in range(first, self.rounds):
                new = self.fed.begin(number)
                self.fed.tally = Tally()
                before = wire.laid_out(self.method.admit(state, self.fed, new)) if new else state
                stepped, log = self.method.step(before, self.fed)
                after = wire.laid_out(stepped)  # as a checkpoint would give it back
                heard = self.fed.tally
                due = number % self.evaluate_every == 0 or number == self.rounds - 1
                latest = self.judge(after) if due else None
                with held_back():
                    state, reached, judged = after, number + 1, latest
                    self._conclude(number, heard, judged, log)
                    if self.folder and time.monotonic() - self._saved >= self.checkpoint_seconds:
                        self._save(state, reached)
            self.fed.round = self.rounds - 1
            self.health.check_end(self.method.name, self.rounds)
            judged = judged or self.judge(state)
            return self._finish(state, judged, scenario)
        except KeyboardInterrupt:
            raise self._interrupted(state, reached) from None
        except Unfinished as stop:
            if not isinstance(stop.__cause__, OSError):  # on a full disk the logs may end in half a line: keep the old
                with suppress(CoterieError):
                    self._interrupted(state, reached)
            raise

    def _start(self, scenario: str, resume: bool) -> tuple[Any, int]:
        if resume and self.folder and self.folder.has_checkpoint:
            progress, state, memory = self.folder.load(self.method.name, self.method.state_type, self.rounds)
            self.fed.restore(memory, progress.next_round)
            self.fed.ledger.down.update(progress.down)  # type: ignore[arg-type]
            self.fed.ledger.up.update(progress.up)  # type: ignore[arg-type]
            self.failures, self.spent, self.health = progress.failures, progress.seconds, progress.health
            self.paid = (dict(progress.down), dict(progress.up))
            self.view.note(f"going on from round {progress.next_round} of {self.rounds}")
            return state, progress.next_round
        if resume and self.folder:
            self.folder.restart()
        path = self.fed.path
        self.view.note(f"{self.method.name}: local training by {path}")
        if self.folder:
            self.folder.event(
                "start", method=self.method.name, scenario=scenario, rounds=self.rounds, seed=self.fed.seed
            )
            self.folder.event("engine", path=path)
        try:
            state = wire.laid_out(self.method.init(self.fed))
            self.fed.commit()
            self.paid = (dict(self.fed.ledger.down), dict(self.fed.ledger.up))
            if self.folder:
                self._save(state, 0)  # so that logs without a checkpoint are those of one that was lost
            return state, 0
        except KeyboardInterrupt:
            how = self.folder.go_on if self.folder else ""
            raise Interrupted("Stopped before the first round; nothing was learnt yet", how) from None
        except Unfinished:
            raise
        except CoterieError:
            if self.folder and not resume:
                self.folder.discard()
            raise

    def _look(self, number: int, heard: Tally, judged: Judgement | None) -> None:
        """Say at once what is wrong with a round."""
        texts = self.health.replies(number, heard)
        if judged is not None:
            rate = self.method.training.opt.rate(number)
            texts += self.health.judged(number, self.rounds, judged, rate, self._guess, self._majority(judged))
        for text in texts:
            self.view.note(f"warning: {text}")
            if self.folder:
                self.folder.event("warning", round=number + 1, text=text)

    @property
    def _guess(self) -> float | None:
        """The loss of knowing nothing."""
        task = self.fed.task
        return math.log(task.classes) if task.loss == "cross_entropy" and task.classes > 1 else None

    def _majority(self, judged: Judgement) -> float | None:
        """The accuracy of the best constant answer, counted once."""
        if self._constant is None and self.fed.task.loss == "cross_entropy":
            self._constant = self.fed.majority(judged.ids)
        return self._constant

    def _conclude(self, number: int, heard: Tally, judged: Judgement | None, log: Log) -> None:
        """Make a finished round count, and write it down."""
        self.fed.commit()
        self.paid = (dict(self.fed.ledger.down), dict(self.fed.ledger.up))
        self._look(number, heard, judged)
        self._log(number, judged, log)

    def _log(self, number: int, judged: Judgement | None, log: Log) -> None:
        ledger = self.fed.ledger
        lost = [(client, failure) for _, client, failure in self.fed.failures]
        self.failures += len(lost)
        self.health.failed([failure for _, failure in lost])
        row: Row = {
            "round": number + 1,
            "accuracy": _mean(judged.known) if judged else None,
            "worst_accuracy": min(judged.known, default=None) if judged else None,
            "loss": judged.loss if judged else None,
            "n_clusters": judged.n_clusters if judged else None,
            "ari": judged.ari if judged else None,
            "unseen_accuracy": judged.unseen if judged else None,
            "bytes_down": ledger.down["train"],
            "bytes_up": ledger.up["train"],
            "bytes_evaluation": ledger.evaluation,
            "failures": self.failures,
            "seconds": round(self.seconds, 3),
        }
        if self.folder:
            for client, failure in lost:
                self.folder.event("failure", round=number + 1, client=client, fault=failure.kind, reason=failure.reason)
            self.folder.event("round", **row, log=log)
            self.folder.metrics(row)
        self.fed.failures.clear()
        self.view.update({**row, "rounds": self.rounds, "log": log})

    def _save(self, state: Any, reached: int) -> None:
        assert self.folder is not None
        self.folder.save(
            method=self.method.name,
            state=state,
            next_round=reached,
            seconds=self.seconds,
            failures=self.failures,
            health=self.health,
            ledger=self.paid,
            memory=self.fed.memory,
            touched=self.fed.take_touched(),
        )
        self._saved = time.monotonic()
        self.fed.saved(reached)

    def _interrupted(self, state: Any, reached: int) -> Interrupted:
        if not self.folder:
            return Interrupted(
                f"Stopped after {reached} of {self.rounds} rounds; give an output folder to be able to resume"
            )
        self._save(state, reached)
        return Interrupted(f"Stopped after {reached} of {self.rounds} rounds; nothing is lost", self.folder.go_on)

    def _finish(self, state: Any, judged: Judgement, scenario: str) -> Result:
        ledger = Ledger(*self.paid)  # not the simulator's: a run resumed at its very end has judged once more
        used = {*(judged.clusters or ()), *(self.method.clusters(state, self.fed.ids) or ())}
        models = {**self.method.models_in_use(state, used), **_kept_models(self.fed.memory)}
        result = Result(
            method=self.method.name,
            scenario=scenario,
            seed=self.fed.seed,
            rounds=self.rounds,
            clients=self.fed.registered,
            accuracy=_mean(judged.known),
            worst_accuracy=min(judged.known, default=0.0),
            clusters=judged.clusters,
            n_clusters=judged.n_clusters,
            ari=judged.ari,
            bytes_down=ledger.down["train"],
            bytes_up=ledger.up["train"],
            bytes_evaluation=ledger.evaluation,
            seconds=round(self.seconds, 3),
            failures=self.failures,
            client_ids=list(judged.ids),
            truth=judged.truth,
            per_client_accuracy=judged.accuracy,
            engine=self.fed.path,
            unseen_accuracy=judged.unseen,
            unseen_sample_accuracy=judged.unseen_samples,
            lost=dict(self.health.lost),
            warnings=list(self.health.warnings),
            models=models,
            state=state,
        )
        if self.folder:
            self._save(state, self.rounds)
            self.folder.models(models, self.fed.task.normalise)
            panels = self.method.panels(state, judged.ids, judged.truth)
            with self.folder.writing(self.folder.path):
                if panels:
                    save_panels(self.folder.path / "panels.json", panels)
            self.folder.event("end", accuracy=result.accuracy, seconds=result.seconds)
            self.folder.write("result.json", result.to_json().encode())
            with self.folder.writing(self.folder.path / "report.html", then=f"coterie report {self.folder.path}"):
                write_run_report(self.folder.path)
        return result


def _kept_models(memory: Mapping[ClientId, Memory]) -> dict[str, State]:
    """Models that clients keep for themselves."""
    kept = {client: items.get("model") for client, items in memory.items()}
    return {f"client-{client}": model for client, model in kept.items() if isinstance(model, dict)}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0

"""The loop over rounds, whatever the clients are: evaluation, checkpoints, the result."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import Any

from coterie.core import wire
from coterie.core.devices import computing_on
from coterie.core.errors import CoterieError, Interrupted, Unfinished
from coterie.core.federation import Engine, Ledger, Tally
from coterie.core.interrupts import defer_interrupts
from coterie.core.samples import ClientId
from coterie.core.terminal import brief
from coterie.core.threads import one_thread_everywhere
from coterie.data.scaling import said as scale_said
from coterie.methods.base import Log, RoundMethod
from coterie.runs.evaluation import Evaluation, Evaluator
from coterie.runs.folder import RunFolder, RunKind
from coterie.runs.health import Health
from coterie.runs.options import RunOptions
from coterie.runs.records import REPORT_FILE, RESULT_FILE, Row
from coterie.runs.result import Result
from coterie.runs.standing import known, mean_known
from coterie.runs.view import View, Views

_log = logging.getLogger(__name__)
_OTHERS_ANSWER = (RunKind.SERVED, RunKind.PEER)
_SPOILT = 20
"""So many rounds in a row, and not all of a run, may be lost to replies that cannot be used."""


class RoundLoop:
    """Runs a method on a federation that is ready, the simulator or another, and writes down each round."""

    def __init__(
        self,
        method: RoundMethod[Any],
        fed: Engine,
        options: RunOptions,
        folder: RunFolder | None = None,
        *,
        view: View | None = None,
        scenario: str = "own data",
        noticed: Sequence[str] = (),
    ) -> None:
        self.method, self.fed, self.options, self.folder, self.scenario = method, fed, options, folder, scenario
        self.view = Views(view)
        self.rounds = options.rounds
        self.evaluator = Evaluator(method, fed, options.evaluate_clients)
        self.failures = 0
        self.health = Health(warnings=list(noticed))
        self.spent = 0.0
        self.paid: tuple[dict[Any, int], dict[Any, int]] = ({}, {})
        self._constant: float | None = None
        self._asked = False
        self._began = self._saved = time.monotonic()
        self._kept, self._spoilt = -1, 0
        """The round that the newest checkpoint would begin with, and how many rounds in a row were lost."""

    @property
    def seconds(self) -> float:
        """Wall time of the run so far, over all its sessions."""
        return self.spent + time.monotonic() - self._began

    def run(self, resume: bool = False) -> Result:
        """All rounds, then the result; the federation is closed at the end."""
        with one_thread_everywhere(), closing(self.fed), computing_on(self.fed.task.device):
            state, reached = self._start(resume)
            evaluation: Evaluation | None = None
            try:
                for number in range(reached, self.rounds):
                    if self._may_grow and number == self.rounds - 1 and self._kept < number:
                        self._save(state, number)
                    new = self.fed.begin(number)
                    self.fed.tally = Tally()
                    after, log = self._stepped(state, new)
                    tally = self.fed.tally
                    due = number % self.options.evaluate_every == 0 or number == self.rounds - 1
                    if number == self.rounds - 1:
                        self.fed.settle()
                    latest = self.evaluator.evaluate(after, last=number == self.rounds - 1) if due else None
                    with defer_interrupts():
                        state, reached, evaluation = after, number + 1, latest
                        self._conclude(number, tally, evaluation, log)
                        waited = time.monotonic() - self._saved
                        if self.folder and waited >= self.options.checkpoint_seconds and not self._at_end(reached):
                            self._save(state, reached)
                self.fed.round = self.rounds - 1
                self.health.check_end(self.method.name, self.rounds)
                if evaluation is None:
                    evaluation = self.evaluator.evaluate(state, last=True)
                    self.fed.commit()
                return self._finish(state, evaluation)
            except KeyboardInterrupt:
                raise self._interrupted(state, reached) from None
            except Unfinished as stop:
                # on a full disk the logs may end in half a line: keep the old checkpoint
                if not isinstance(stop.__cause__, OSError):
                    with suppress(CoterieError):
                        self._interrupted(state, reached)
                raise

    def _stepped(self, state: Any, new: Sequence[ClientId]) -> tuple[Any, Log]:
        """The state after a round, laid out as a checkpoint would give it back.

        Replies of other machines are checked before a method sees them. Whatever one of them does to it nevertheless
        costs the round, not the federation.
        """
        try:
            before = wire.laid_out(self.method.admit(state, self.fed, new)) if new else state
            stepped, log = self.method.step(before, self.fed)
            self._spoilt = 0
            return wire.laid_out(stepped), log
        except CoterieError:
            raise
        except Exception as error:
            if (
                self.folder is None
                or self.folder.kind not in _OTHERS_ANSWER
                or self._spoilt >= min(_SPOILT, self.rounds - 1)
            ):
                raise
            self._spoilt += 1
            _log.debug("a round could not be finished", exc_info=True)
            text = f"round {self.fed.round + 1} is lost: the replies could not be used ({brief(repr(error))})"
            self.view.note(f"warning: {text}")
            self.folder.log_event("warning", round=self.fed.round + 1, text=text)
            return state, {}

    @property
    def _may_grow(self) -> bool:
        """Whether more rounds can be asked for once the run is over.

        The last round is evaluated as no other is, so that its checkpoint is the one from before it: a run that goes on
        beyond the end makes that round again, as one among others.
        """
        return self.folder is not None and self.folder.kind is RunKind.SIMULATION

    def _at_end(self, reached: int) -> bool:
        return self._may_grow and reached == self.rounds

    def _start(self, resume: bool) -> tuple[Any, int]:
        if resume and self.folder and self.folder.checkpoint.exists:
            progress, state, memory = self.folder.checkpoint.load(self.method.name, self.method.state_type, self.rounds)
            self.fed.restore(memory, progress.next_round)
            self.fed.ledger.down.update(progress.down)  # type: ignore[arg-type]
            self.fed.ledger.up.update(progress.up)  # type: ignore[arg-type]
            self.failures, self.spent, self.health = progress.failures, progress.seconds, progress.health
            self.paid = (dict(progress.down), dict(progress.up))
            self._kept = progress.next_round
            self.view.note(f"going on from round {progress.next_round} of {self.rounds}")
            return state, progress.next_round
        if resume and self.folder:
            self.folder.restart()
        path = self.fed.path
        self.view.note(f"{self.method.name}: local training by {path}")
        if self.folder:
            self.folder.log_event(
                "start", method=self.method.name, scenario=self.scenario, rounds=self.rounds, seed=self.fed.seed
            )
            self.folder.log_event("engine", path=path)
            for text in self.health.warnings:  # of how it began
                self.folder.log_event("warning", round=0, text=text)
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

    def _look(self, number: int, tally: Tally, evaluation: Evaluation | None) -> None:
        """Say at once what is wrong with a round."""
        texts = self.health.replies(number, tally)
        rate = self.method.training.opt.rate(number)
        losses = list(tally.losses.values())
        texts += self.health.trained(number, losses, rate, self._guess, clients=len(self.fed.ids))
        if evaluation is not None:
            texts += self.health.evaluated(number, self.rounds, evaluation, rate, self._guess, self._floor(evaluation))
        for text in texts:
            self.view.note(f"warning: {text}")
            if self.folder:
                self.folder.log_event("warning", round=number + 1, text=text)

    @property
    def _guess(self) -> float | None:
        """The loss of knowing nothing."""
        task = self.fed.task
        if task.loss == "cross_entropy":
            return math.log(task.classes) if task.classes > 1 else None
        if task.loss == "bce":
            return math.log(2)
        return 1.0 if task.loss == "mse" and task.target_scale is not None else None

    def _floor(self, evaluation: Evaluation) -> float | None:
        """The mean score of a constant answer, counted once; clients elsewhere are asked for it, once."""
        if self._constant is None and not self._asked:
            told = [] if evaluation.standing is None else evaluation.standing.floor
            known = mean_known(told) if told else self.fed.floor(evaluation.ids)
            self._constant = self.method.floor(self.fed, evaluation.ids) if known is None else known
            self._asked = True
        return self._constant

    def _conclude(self, number: int, tally: Tally, evaluation: Evaluation | None, log: Log) -> None:
        """Make a finished round count, and write it down."""
        self.fed.commit()
        self.paid = (dict(self.fed.ledger.down), dict(self.fed.ledger.up))
        self._look(number, tally, evaluation)
        self._log(number, evaluation, log)

    def _log(self, number: int, evaluation: Evaluation | None, log: Log) -> None:
        ledger = self.fed.ledger
        lost = [(client, failure) for _, client, failure in self.fed.failures]
        self.failures += len(lost)
        self.health.failed([failure for _, failure in lost])
        row: Row = {
            "round": number + 1,
            "accuracy": mean_known(evaluation.accuracy) if evaluation else None,
            "worst_accuracy": min(known(evaluation.accuracy), default=None) if evaluation else None,
            "score": mean_known(evaluation.known) if evaluation else None,
            "worst_score": evaluation.measure.worst(evaluation.known) if evaluation else None,
            "loss": evaluation.loss if evaluation else None,
            "n_clusters": evaluation.n_clusters if evaluation else None,
            "ari": evaluation.ari if evaluation else None,
            "unseen_accuracy": evaluation.unseen if evaluation else None,
            "bytes_down": ledger.down["train"],
            "bytes_up": ledger.up["train"],
            "bytes_evaluation": ledger.evaluation,
            "failures": self.failures,
            "seconds": round(self.seconds, 3),
        }
        if self.folder:
            for client, failure in lost:
                self.folder.log_event(
                    "failure", round=number + 1, client=client, fault=failure.kind, reason=failure.reason
                )
            self.folder.log_event("round", **row, log=log)
            self.folder.log_metrics(row)
        self.fed.failures.clear()
        primary = self.fed.task.primary
        judged = {"metric": primary.name, "lower_is_better": primary.lower_is_better, "floor": self._constant}
        self.view.update({**row, **judged, "rounds": self.rounds, "log": log})

    def _save(self, state: Any, reached: int) -> None:
        assert self.folder is not None
        self.folder.checkpoint.save(
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
        self._saved, self._kept = time.monotonic(), reached
        self.fed.saved(reached)

    def _interrupted(self, state: Any, reached: int) -> Interrupted:
        if not self.folder:
            return Interrupted(
                f"Stopped after {reached} of {self.rounds} rounds; give an output folder to be able to resume"
            )
        if not self._at_end(reached):
            self._save(state, reached)
        return Interrupted(f"Stopped after {reached} of {self.rounds} rounds; nothing is lost", self.folder.go_on)

    def _notes(self) -> list[str]:
        closing, health = self.options.closing, self.health
        late = health.lost.get("late", 0)
        return [closing.summary(late, health.used_late, health.age)] if closing.closes_early else []

    def _finish(self, state: Any, evaluation: Evaluation) -> Result:
        ledger = Ledger(*self.paid)  # not the simulator's: a run resumed at its very end has evaluated once more
        used = {*(evaluation.clusters or ()), *(self.method.clusters(state, self.fed.ids) or ())}
        alone = self.method.personal_models(state, self.fed.memory)
        models = {
            **self.method.models_in_use(state, used),
            **{f"client-{client}": model for client, model in alone.items()},
        }
        standing = evaluation.standing
        assert standing is not None
        result = Result(
            method=self.method.name,
            scenario=self.scenario,
            seed=self.fed.seed,
            rounds=self.rounds,
            clients=self.fed.registered,
            **standing.result(self._floor(evaluation)),
            clusters=evaluation.clusters,
            n_clusters=evaluation.n_clusters,
            ari=evaluation.ari,
            bytes_down=ledger.down["train"],
            bytes_up=ledger.up["train"],
            bytes_evaluation=ledger.evaluation,
            seconds=round(self.seconds, 3),
            failures=self.failures,
            client_ids=list(evaluation.ids),
            truth=evaluation.truth,
            engine=self.fed.path,
            unseen_accuracy=evaluation.unseen,
            unseen_sample_accuracy=evaluation.unseen_samples,
            unseen_score=evaluation.unseen_score,
            inputs=scale_said(self.fed.task.normalise, tuple(self.fed.task.shape)),
            lost=dict(self.health.lost),
            warnings=list(self.health.warnings),
            notes=self._notes(),
            title=self.method.training.title,
            models=models,
            state=state,
        )
        if self.folder:
            if self._may_grow:
                self.folder.checkpoint.save_end(state)
            else:
                self._save(state, self.rounds)
            self.folder.write_models(models, self.fed.task)
            self.folder.write_panels(self.method.panels(state, evaluation.ids, evaluation.truth))
            self.folder.log_event("end", metric=result.metric, score=result.score, seconds=result.seconds)
            (self.folder.path / REPORT_FILE).unlink(missing_ok=True)  # of fewer rounds, where the run went on
            self.folder.write(RESULT_FILE, result.to_json().encode())
        self.view.finished(result, self.folder.path if self.folder else None)
        return result

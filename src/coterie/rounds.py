"""The loop over rounds, whatever the clients are: evaluation, checkpoints, the result."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from coterie.cohort import Memory
from coterie.data.samples import ClientId
from coterie.errors import CoterieError, Unfinished
from coterie.federation import Engine, HasAttackers, KeepsSomeBack, Ledger
from coterie.folder import Row, RunFolder
from coterie.interrupts import held_back
from coterie.methods.base import Log, ServerMethod
from coterie.report.html import write_run_report
from coterie.report.panels import save_panels
from coterie.rng import rng
from coterie.states import State


class View(Protocol):
    """Someone who watches a run."""

    def update(self, row: Mapping[str, Any]) -> None:
        """A round has ended."""

    def note(self, text: str) -> None:
        """Something worth a line has happened."""


class Nobody:
    """Nobody watches."""

    def update(self, row: Mapping[str, Any]) -> None:
        """Not seen."""

    def note(self, text: str) -> None:
        """Not heard."""


class Interrupted(Unfinished):
    """The run was stopped by the user and can be resumed."""


@dataclass(frozen=True)
class Result:
    """How a run ended. `accuracy` is the mean over clients of their own test accuracy with the model they would use."""

    method: str
    scenario: str
    seed: int
    rounds: int
    clients: int
    accuracy: float
    worst_accuracy: float
    clusters: list[int] | None
    n_clusters: int | None
    ari: float | None
    bytes_down: int
    bytes_up: int
    bytes_evaluation: int
    seconds: float
    failures: int
    client_ids: list[str]
    truth: list[int] | None
    per_client_accuracy: list[float | None]
    engine: str
    unseen_accuracy: float | None = None
    """The same mean over the clients that never took part in training, where the population keeps some back."""
    unseen_sample_accuracy: float | None = None
    """The share of all their test samples together, in which a client counts as much as it has samples."""
    models: Mapping[str, State] = dataclasses.field(default_factory=dict, repr=False)
    state: Any = dataclasses.field(default=None, repr=False)

    def to_json(self) -> str:
        """The text of `result.json`: everything but the models."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in ("models", "state")}
        return json.dumps(plain, indent=1)


@dataclass(frozen=True)
class _Judgement:
    """One evaluation of all (or a fixed sample of) clients."""

    ids: tuple[ClientId, ...]
    accuracy: list[float | None]
    loss: float | None
    clusters: list[int] | None
    truth: list[int] | None
    unseen: float | None
    unseen_samples: float | None

    @property
    def known(self) -> list[float]:
        return [value for value in self.accuracy if value is not None]

    @property
    def ari(self) -> float | None:
        from sklearn.metrics import adjusted_rand_score

        if self.clusters is None or self.truth is None:
            return None
        pairs = [(t, c) for t, c in zip(self.truth, self.clusters, strict=True) if c >= 0]
        if not pairs:
            return None
        return float(adjusted_rand_score([t for t, _ in pairs], [c for _, c in pairs]))

    @property
    def n_clusters(self) -> int | None:
        return None if self.clusters is None else len({c for c in self.clusters if c >= 0})


def run_with(
    fed: Engine,
    method: ServerMethod[Any],
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
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        experiment = _Experiment(
            method, fed, folder, view or Nobody(), rounds, evaluate_every, evaluate_clients, checkpoint_seconds
        )
        return experiment.run(scenario, resume)
    finally:
        fed.close()
        torch.set_num_threads(threads)


class _Experiment:
    """The loop over rounds and what is written down after each."""

    def __init__(
        self,
        method: ServerMethod[Any],
        fed: Engine,
        folder: RunFolder | None,
        view: View,
        rounds: int,
        evaluate_every: int,
        evaluate_clients: int,
        checkpoint_seconds: float,
    ) -> None:
        self.method, self.fed, self.folder, self.view = method, fed, folder, view
        self.rounds, self.evaluate_every, self.evaluate_clients = rounds, evaluate_every, evaluate_clients
        self.checkpoint_seconds = checkpoint_seconds
        self.failures = 0
        self.spent = 0.0
        self.paid: tuple[dict[Any, int], dict[Any, int]] = ({}, {})
        self._began = self._saved = time.monotonic()

    @property
    def seconds(self) -> float:
        """Wall time of the run so far, over all its sessions."""
        return self.spent + time.monotonic() - self._began

    def run(self, scenario: str, resume: bool) -> Result:
        """All rounds, then the result."""
        state, first = self._start(scenario, resume)
        judged: _Judgement | None = None
        reached = first
        try:
            for number in range(first, self.rounds):
                new = self.fed.begin(number)
                before = self.method.admit(state, self.fed, new) if new else state
                after, log = self.method.step(before, self.fed)
                due = number % self.evaluate_every == 0 or number == self.rounds - 1
                latest = self._judge(after) if due else None
                with held_back():
                    state, reached, judged = after, number + 1, latest
                    self._conclude(number, judged, log)
                    if self.folder and time.monotonic() - self._saved >= self.checkpoint_seconds:
                        self._save(state, reached)
            self.fed.round = self.rounds - 1
            judged = judged or self._judge(state)
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
            self.failures, self.spent = progress.failures, progress.seconds
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
            state = self.method.init(self.fed)
            self.fed.commit()
            self.paid = (dict(self.fed.ledger.down), dict(self.fed.ledger.up))
            if self.folder:
                self._save(state, 0)  # so that logs without a checkpoint are those of one that was lost
            return state, 0
        except KeyboardInterrupt:
            how = f": {self.folder.go_on}" if self.folder else "."
            raise Interrupted(f"Stopped before the first round; nothing was learnt yet{how}") from None
        except Unfinished:
            raise
        except CoterieError:
            if self.folder and not resume:
                self.folder.discard()
            raise

    def _some(self, ids: Sequence[ClientId]) -> Sequence[ClientId]:
        """Those to judge: all, or a sample that is the same in every round."""
        if len(ids) <= self.evaluate_clients:
            return ids
        drawn = rng(self.fed.seed, "evaluated clients").choice(len(ids), self.evaluate_clients, replace=False)
        return [ids[i] for i in sorted(drawn)]

    def _judge_unseen(self, state: Any) -> tuple[float | None, float | None]:
        """Clients that never train are served as newcomers would be, on trial: by client, and by sample."""
        if not self.method.serves_newcomers or not isinstance(self.fed, KeepsSomeBack) or not self.fed.unseen:
            return None, None
        ids = self._some(self.fed.unseen)
        with self.fed.trial():
            value = self.method.assess(self.method.admit(state, self.fed, ids), self.fed, ids).value
        if value is None or not bool((value.count > 0).any()):
            return None, None
        correct, count = value.correct[value.count > 0], value.count[value.count > 0]
        return float((correct / count).mean()), float(correct.sum() / count.sum())

    def _judge(self, state: Any) -> _Judgement:
        attackers = self.fed.attackers if isinstance(self.fed, HasAttackers) else ()
        honest = [client for client in self.fed.ids if client not in attackers]
        replies = self.method.assess(state, self.fed, self._some(honest))
        if replies.value is None:
            why = next((f"{client}: {failure.reason}" for client, failure in replies.failed.items()), "nobody is there")
            raise CoterieError(f"{self.method.name}: no client could judge its model ({why}); try a smaller lr.")
        value = replies.value
        tested = value.count > 0
        finite = value.loss[tested & value.loss.isfinite()]
        # a deployed peer judges alone and goes on: that its model is lost says nothing about those of the others
        if bool(tested.any()) and not len(finite) and self.fed.registered > 1:
            raise CoterieError(f"{self.method.name}: every client's loss is NaN or infinite; try a smaller lr.")
        share = (value.correct / value.count.clamp_min(1)).tolist()
        accuracy = [s if n else None for s, n in zip(share, value.count.tolist(), strict=True)]
        clusters = self.method.clusters(state, replies.ids)
        if bool((value.cluster >= 0).all()):
            clusters = [int(cluster) for cluster in value.cluster]
        truth = self.fed.groups(replies.ids)
        unseen, unseen_samples = self._judge_unseen(state)
        loss = float(finite.mean()) if len(finite) else None
        return _Judgement(replies.ids, accuracy, loss, clusters, truth, unseen, unseen_samples)

    def _conclude(self, number: int, judged: _Judgement | None, log: Log) -> None:
        """Make a finished round count, and write it down."""
        self.fed.commit()
        self.paid = (dict(self.fed.ledger.down), dict(self.fed.ledger.up))
        self._log(number, judged, log)

    def _log(self, number: int, judged: _Judgement | None, log: Log) -> None:
        ledger = self.fed.ledger
        lost = [(client, failure) for _, client, failure in self.fed.failures]
        self.failures += len(lost)
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
            ledger=self.paid,
            memory=self.fed.memory,
            touched=self.fed.take_touched(),
        )
        self._saved = time.monotonic()
        self.fed.saved(reached)

    def _interrupted(self, state: Any, reached: int) -> Interrupted:
        if not self.folder:
            return Interrupted(
                f"Stopped after {reached} of {self.rounds} rounds; give an output folder to be able to resume."
            )
        self._save(state, reached)
        return Interrupted(f"Stopped after {reached} of {self.rounds} rounds; nothing is lost: {self.folder.go_on}")

    def _finish(self, state: Any, judged: _Judgement, scenario: str) -> Result:
        ledger = Ledger(*self.paid)  # not the simulator's: a run resumed at its very end has judged once more
        models = {**self.method.models(state), **_kept_models(self.fed.memory)}
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
            models=models,
            state=state,
        )
        if self.folder:
            self._save(state, self.rounds)
            self.folder.models(models)
            panels = self.method.panels(state, judged.ids, judged.truth)
            with self.folder.writing(self.folder.path):
                if panels:
                    save_panels(self.folder.path / "panels.json", panels)
            self.folder.event("end", accuracy=result.accuracy, seconds=result.seconds)
            self.folder.write("result.json", result.to_json().encode())
            with self.folder.writing(self.folder.path / "report.html"):
                write_run_report(self.folder.path)
        return result


def _kept_models(memory: Mapping[ClientId, Memory]) -> dict[str, State]:
    """Models that clients keep for themselves."""
    kept = {client: items.get("model") for client, items in memory.items()}
    return {f"client-{client}": model for client, model in kept.items() if isinstance(model, dict)}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0

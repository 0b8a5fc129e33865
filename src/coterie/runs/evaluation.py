"""Evaluating the state of a method: every client with the model it would use now, on its own test part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coterie.core.errors import NothingLearnt
from coterie.core.federation import Engine, HasAttackers, KeepsSomeBack, Replies
from coterie.core.groupings import adjusted_rand
from coterie.core.measures import Measure
from coterie.core.rng import rng
from coterie.core.samples import ClientId
from coterie.methods.base import RoundMethod
from coterie.methods.served import Assessment, Examination
from coterie.runs.standing import Standing, known


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of all (or a fixed sample of) clients."""

    ids: tuple[ClientId, ...]
    accuracy: list[float | None]
    losses: list[float]
    """Of every client that has test samples; of a model that has diverged it may be NaN or infinite."""
    loss: float | None
    clusters: list[int] | None
    truth: list[int] | None
    unseen: float | None
    unseen_samples: float | None
    standing: Standing | None = None
    """All that was measured, client by client."""
    unseen_score: float | None = None

    @property
    def known(self) -> list[float]:
        """Scores of the clients that have one: accuracies, if the run is judged by these."""
        return known(self.accuracy if self.standing is None else self.standing.score)

    @property
    def measure(self) -> Measure:
        """What the run is judged by."""
        return Measure() if self.standing is None else self.standing.measure

    @property
    def ari(self) -> float | None:
        """Agreement of the clusters with the true groups, where both are known."""
        if self.clusters is None or self.truth is None:
            return None
        pairs = [(t, c) for t, c in zip(self.truth, self.clusters, strict=True) if c >= 0]
        if not pairs:
            return None
        return adjusted_rand([t for t, _ in pairs], [c for _, c in pairs])

    @property
    def n_clusters(self) -> int | None:
        """How many clusters have a member."""
        return None if self.clusters is None else len({c for c in self.clusters if c >= 0})


@dataclass(frozen=True)
class Evaluator:
    """Asks the clients how their models do."""

    method: RoundMethod[Any]
    fed: Engine
    clients: int
    """With more clients than these a sample of them is evaluated, the same in every round."""

    def evaluate(self, state: Any, *, last: bool = False) -> Evaluation:
        """How the clients' models do in this state; at the `last` evaluation of a run, with all that can be said."""
        attackers = self.fed.attackers if isinstance(self.fed, HasAttackers) else ()
        ids = self._some([client for client in self.fed.ids if client not in attackers])
        now = self.method.placed(state, self.fed, ids)
        replies: Replies[Assessment] | Replies[Examination]
        if last and self._examines:
            replies = self.method.examine(now, self.fed, ids)
        else:
            replies = self.method.assess(now, self.fed, ids)
        if replies.value is None:
            why = next(
                (f"{client}: {failure.reason}" for client, failure in replies.failed.items()), "no client is there"
            )
            raise NothingLearnt(f"{self.method.name}: no client could judge its model ({why}); try a smaller lr.")
        value = replies.value
        tested = value.count > 0
        finite = value.loss[tested & value.loss.isfinite()]
        # a deployed peer evaluates alone and goes on: that its model is lost says nothing about those of the others
        if bool(tested.any()) and not len(finite) and self.fed.registered > 1:
            raise NothingLearnt(f"{self.method.name}: every client's loss is NaN or infinite; try a smaller lr.")
        standing = Standing.of(self.fed.task, value)
        clusters = self.method.clusters(now, replies.ids)
        if bool((value.cluster >= 0).all()):
            clusters = [int(cluster) for cluster in value.cluster]
        truth = self.fed.groups(replies.ids)
        unseen, unseen_samples, unseen_score = self._unseen(state)
        loss = float(finite.mean()) if len(finite) else None
        losses = value.loss[tested].tolist()
        return Evaluation(
            replies.ids,
            standing.accuracy,
            losses,
            loss,
            clusters,
            truth,
            unseen,
            unseen_samples,
            standing,
            unseen_score,
        )

    @property
    def _examines(self) -> bool:
        """A method of the user's that judges its models in its own way says no more than that."""
        kind = type(self.method)
        return kind.assess is RoundMethod.assess and kind.judge is RoundMethod.judge

    def _some(self, ids: Sequence[ClientId]) -> Sequence[ClientId]:
        """Those to evaluate: all, or a sample that is the same in every round."""
        if len(ids) <= self.clients:
            return ids
        drawn = rng(self.fed.seed, "evaluated clients").choice(len(ids), self.clients, replace=False)
        return [ids[i] for i in sorted(drawn)]

    def _unseen(self, state: Any) -> tuple[float | None, float | None, float | None]:
        """Clients that never train are served as newcomers would be, on trial: accuracy by client and by sample, and
        the score.
        """
        if not self.method.serves_newcomers or not isinstance(self.fed, KeepsSomeBack) or not self.fed.unseen:
            return None, None, None
        ids = self._some(self.fed.unseen)
        with self.fed.trial():
            state = self.method.placed(self.method.admit(state, self.fed, ids), self.fed, ids)
            value = self.method.assess(state, self.fed, ids).value
        if value is None or not bool((value.count > 0).any()):
            return None, None, None
        score = Standing.of(self.fed.task, value).mean_score
        if self.fed.task.kind == "regression":
            return None, None, score
        correct, count = value.correct[value.count > 0], value.count[value.count > 0]
        return float((correct / count).mean()), float(correct.sum() / count.sum()), score

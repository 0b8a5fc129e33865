"""How a run ended."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from coterie.core.states import State

_NOT_WRITTEN = ("models", "state")
_SHOWN = 20


@dataclass(frozen=True)
class Result:
    """How a run ended. `accuracy` is the mean over clients of their own test accuracy with the model they would use."""

    method: str
    scenario: str
    seed: int
    rounds: int
    clients: int
    accuracy: float
    """NaN, and null in result.json, where the task has no right answers (regression)."""
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
    task: str = "classification"
    """What was learnt: classification, binary, multilabel or regression."""
    metric: str = "accuracy"
    """What the run is judged by."""
    lower_is_better: bool = False
    """Whether less of the metric is better."""
    score: float | None = None
    """The metric's mean over clients, each on its own test part with the model it would use."""
    worst_score: float | None = None
    floor: float | None = None
    """The score of always answering the most frequent class, or the mean, of a client's own training part."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Means over clients by name; clients for which one is not defined are left out of its mean."""
    finetuned_accuracy: float | None = None
    finetuned_score: float | None = None
    """The same after every client has trained the model it would use a little more on its own data, or has kept it as
    it is where that does better on the samples it holds out."""
    unseen_score: float | None = None
    per_client_score: list[float | None] = field(default_factory=list)
    per_client_floor: list[float | None] = field(default_factory=list)
    per_client_metrics: Mapping[str, list[float | None]] = field(default_factory=dict)
    per_client_finetuned_score: list[float | None] = field(default_factory=list)
    per_client_finetuned_accuracy: list[float | None] = field(default_factory=list)
    lost: Mapping[str, int] = field(default_factory=dict)
    """Why replies did not count: how many of each kind of failure; together they are `failures`."""
    warnings: list[str] = field(default_factory=list)
    """What went wrong without ending the run, each in one sentence with a remedy."""
    title: str = ""
    """The method's name as its paper spells it: a report may be written where the method itself is not known."""
    models: Mapping[str, State] = field(default_factory=dict, repr=False)
    state: Any = field(default=None, repr=False)

    @classmethod
    def of(cls, written: Mapping[str, Any]) -> Result:
        """The result that result.json holds, of this version or of an earlier one; it has no models."""
        known = {f.name for f in dataclasses.fields(cls)} - set(_NOT_WRITTEN)
        blank: dict[str, Any] = dict.fromkeys(known)
        fixed = {f.name: f.default for f in dataclasses.fields(cls) if f.default is not dataclasses.MISSING}
        lists: dict[str, Any] = {"client_ids": [], "per_client_accuracy": [], "lost": {}, "warnings": []}
        return cls(**{**blank, **fixed, **lists, **{key: value for key, value in written.items() if key in known}})

    def __str__(self) -> str:
        groups = f", {self.n_clusters} {'group' if self.n_clusters == 1 else 'groups'}" if self.n_clusters else ""
        worst = f" (worst {_shown(self.worst_accuracy)})" if self.clients > 1 else ""
        begun = f"{self.method} on {self.scenario}, seed {self.seed}, {self.rounds} rounds"
        reached = f"{self.clients} clients{groups}, mean accuracy {_shown(self.accuracy)}{worst}"
        return f"{begun}: {reached}; {self.bytes_down + self.bytes_up:,} bytes sent, {self.seconds:.1f} s"

    def _repr_html_(self) -> str:
        """The same for a notebook, with the first clients."""
        groups: Sequence[int | None] = self.clusters or [None] * len(self.client_ids)
        rows = [
            f"<tr><td>{escape(client)}</td><td>{'' if group is None else group}</td><td>{_shown(accuracy)}</td></tr>"
            for client, group, accuracy in zip(self.client_ids, groups, self.per_client_accuracy, strict=False)
        ]
        more = f"<p>and {len(rows) - _SHOWN} more</p>" if len(rows) > _SHOWN else ""
        head = "<tr><th>client</th><th>group</th><th>accuracy</th></tr>"
        return f"<p>{escape(str(self))}</p><table>{head}{''.join(rows[:_SHOWN])}</table>{more}"

    def to_json(self) -> str:
        """The text of `result.json`: everything but the models."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in _NOT_WRITTEN}
        for name in ("accuracy", "worst_accuracy"):
            plain[name] = None if math.isnan(plain[name]) else plain[name]
        return json.dumps(plain, indent=1)


def _shown(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"

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
    it is where samples that it holds out do not gain by that."""
    unseen_score: float | None = None
    per_client_score: list[float | None] = field(default_factory=list)
    per_client_floor: list[float | None] = field(default_factory=list)
    per_client_metrics: Mapping[str, list[float | None]] = field(default_factory=dict)
    per_client_finetuned_score: list[float | None] = field(default_factory=list)
    per_client_finetuned_accuracy: list[float | None] = field(default_factory=list)
    inputs: str = ""
    """How raw inputs become those of the model, in a few words; schema.json has the numbers."""
    lost: Mapping[str, int] = field(default_factory=dict)
    """Why replies did not count: how many of each kind of failure; together they are `failures`."""
    warnings: list[str] = field(default_factory=list)
    """What went wrong without ending the run, each in one sentence with a remedy."""
    notes: list[str] = field(default_factory=list)
    """What is to be known about the run, such as how many replies came late."""
    title: str = ""
    """The method's name as its paper spells it: a report may be written where the method itself is not known."""
    models: Mapping[str, State] = field(default_factory=dict, repr=False)
    state: Any = field(default=None, repr=False)

    @classmethod
    def of(cls, written: Mapping[str, Any]) -> Result:
        """The result that result.json holds, of this version or of an earlier one; it has no models."""
        blank: dict[str, Any] = {"client_ids": [], "per_client_accuracy": []}
        for f in dataclasses.fields(cls):
            default = f.default_factory() if f.default_factory is not dataclasses.MISSING else f.default
            blank.setdefault(f.name, None if default is dataclasses.MISSING else default)
        found = {key: value for key, value in written.items() if key in blank and key not in _NOT_WRITTEN}
        for name in ("accuracy", "worst_accuracy"):
            found[name] = math.nan if found.get(name) is None else found[name]
        return cls(**{**blank, **found})

    def __str__(self) -> str:
        groups = f", {self.n_clusters} {'group' if self.n_clusters == 1 else 'groups'}" if self.n_clusters else ""
        score, worst = (self.accuracy, self.worst_accuracy) if self.score is None else (self.score, self.worst_score)
        parts = [f"worst {self._shown(worst)}" if self.clients > 1 else ""]
        parts += [f"fine-tuned {self._shown(self.finetuned_score)}" if self.finetuned_score is not None else ""]
        parts += [f"a constant answer {self._shown(self.floor)}" if self.floor is not None else ""]
        beside = ", ".join(part for part in parts if part)
        begun = f"{self.method} on {self.scenario}, seed {self.seed}, {self.rounds} rounds"
        reached = f"{self.clients} clients{groups}, mean {self.metric} {self._shown(score)}"
        cost = f"{self.bytes_down + self.bytes_up:,} bytes sent, {self.seconds:.1f} s"
        return f"{begun}: {reached}{f' ({beside})' if beside else ''}; {cost}"

    def _repr_html_(self) -> str:
        """The same for a notebook, with the first clients."""
        groups: Sequence[int | None] = self.clusters or [None] * len(self.client_ids)
        scores = self.per_client_score or self.per_client_accuracy
        rows = [
            f"<tr><td>{escape(client)}</td><td>{'' if group is None else group}</td><td>{self._shown(score)}</td></tr>"
            for client, group, score in zip(self.client_ids, groups, scores, strict=False)
        ]
        more = f"<p>and {len(rows) - _SHOWN} more</p>" if len(rows) > _SHOWN else ""
        head = f"<tr><th>client</th><th>group</th><th>{escape(self.metric)}</th></tr>"
        return f"<p>{escape(str(self))}</p><table>{head}{''.join(rows[:_SHOWN])}</table>{more}"

    def _shown(self, score: float | None) -> str:
        """A score for people: shares as per cent, other measures as they are."""
        if score is None or math.isnan(score):
            return "–"
        return f"{100 * score:.1f} %" if "accuracy" in self.metric else f"{score:.4g}"

    def to_json(self) -> str:
        """The text of `result.json`: everything but the models."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in _NOT_WRITTEN}
        for name in ("accuracy", "worst_accuracy"):
            plain[name] = None if math.isnan(plain[name]) else plain[name]
        return json.dumps(plain, indent=1)

"""How a run ended."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coterie.core.states import State

_NOT_WRITTEN = ("models", "state")


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
    lost: Mapping[str, int] = field(default_factory=dict)
    """Why replies did not count: how many of each kind of failure; together they are `failures`."""
    warnings: list[str] = field(default_factory=list)
    """What went wrong without ending the run, each in one sentence with a remedy."""
    title: str = ""
    """The method's name as its paper spells it: a report may be written where the method itself is not known."""
    models: Mapping[str, State] = field(default_factory=dict, repr=False)
    state: Any = field(default=None, repr=False)

    def to_json(self) -> str:
        """The text of `result.json`: everything but the models."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in _NOT_WRITTEN}
        return json.dumps(plain, indent=1)

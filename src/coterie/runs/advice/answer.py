"""The advice itself, as data and in plain words."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coterie.runs.advice.paired import Interval


@dataclass(frozen=True)
class Candidate:
    """Something that could be run, and how it did in the trial."""

    name: str
    method: str
    settings: Mapping[str, Any]
    score: float
    """The mean over clients on held-out data of what `Advice.metric` names."""
    over_local: Interval
    over_fedavg: Interval
    bytes: int
    seconds: float
    per_client: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Advice:
    """Whether there are groups, who gains by what, and what to run."""

    task: str
    metric: str
    lower_is_better: bool
    floor: float | None
    """What a constant answer reaches."""
    groups: int
    evidence: Interval
    """What clients gain on held-out data if each trains with its group instead of with all; where the groups are not
    clear by themselves, if all are fine-tuned."""
    verdict: str
    recommended: Candidate
    command: str
    choices: tuple[Candidate, ...]
    clients: Mapping[str, int]
    apart: str
    """What tells the groups apart; empty where there is one."""
    remarks: tuple[str, ...]
    rounds: int
    looked_at: int
    """Clients that took part in the trial, of `registered`."""
    registered: int

    def __str__(self) -> str:
        lines = [self.verdict, self.apart, *self.remarks, f"Run: {self.command}"]
        return "\n".join(line for line in lines if line)

    def to_json(self) -> str:
        """The text of `advice.json`."""
        best = self.recommended
        scores = {
            choice.name: {
                "score": choice.score,
                "over_local": dataclasses.asdict(choice.over_local),
                "over_fedavg": dataclasses.asdict(choice.over_fedavg),
                "bytes": choice.bytes,
                "seconds": choice.seconds,
                "clients": dict(choice.per_client),
            }
            for choice in self.choices
        }
        plain = {
            "groups": self.groups,
            "evidence": {**dataclasses.asdict(self.evidence), "metric": self.metric, "sentence": self.verdict},
            "recommended": {
                "name": best.name,
                "method": best.method,
                "settings": dict(best.settings),
                "command": self.command,
            },
            "scores": scores,
            "clients": dict(self.clients),
            "task": self.task,
            "metric": self.metric,
            "lower_is_better": self.lower_is_better,
            "floor": self.floor,
            "apart": self.apart,
            "remarks": list(self.remarks),
            "rounds": self.rounds,
            "looked_at": self.looked_at,
            "registered": self.registered,
        }
        return json.dumps(plain, indent=1)

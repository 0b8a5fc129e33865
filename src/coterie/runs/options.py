"""The options of every run, wherever its clients are."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

import torch

from coterie.core.errors import CoterieError, unknown
from coterie.core.quorum import LateRule, Quorum
from coterie.core.targets import TASKS, TaskName
from coterie.methods.p2p.base import PeerMethod

_UNSAID = ("task", "loss", "metric", "quorum", "late")
"""Options that config.toml leaves out as long as they are at their defaults: older runs do not know them."""


@dataclass(frozen=True)
class RunOptions:
    """How long a run lasts, its seed, and how often it is evaluated and saved; named as in config.toml."""

    rounds: int = 20
    seed: int = 0
    dtype: Literal["float32", "float64"] = "float32"
    evaluate_every: int = 1
    """Every so many rounds, and after the last."""
    evaluate_clients: int = 1000
    """With more clients than these a sample of them is evaluated, the same in every round."""
    checkpoint_seconds: float = 10.0
    """At least so much time is between two checkpoints."""
    task: TaskName = "auto"
    """What is learnt: classification, binary, multilabel or regression; auto is what the targets clearly are."""
    loss: str = "auto"
    """What is minimised: cross_entropy, bce, mse, reconstruction, or file.py:function; auto is that of the task."""
    metric: str = "auto"
    """What clients are judged by: a name such as f1 or mae, or file.py:function; auto is that of the task."""
    quorum: float = 1.0
    """A round is closed when this share of the clients that were asked has answered."""
    late: LateRule = "drop"
    """What becomes of replies that come after that: dropped, or used in the next round that asks the client."""

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise CoterieError(f"rounds must be at least 1, not {self.rounds}.")
        if self.evaluate_every < 1 or self.evaluate_clients < 1:
            raise CoterieError("evaluate_every and evaluate_clients must be at least 1.")
        check_seed(self.seed)
        if self.task not in TASKS:
            raise unknown("task", str(self.task), TASKS)
        _ = self.closing

    @property
    def closing(self) -> Quorum:
        """When a round is closed."""
        return Quorum(self.quorum, self.late)

    @property
    def plain(self) -> dict[str, Any]:
        """The options as config.toml has them; what a run need not say is left out as long as it is not set."""
        every = {f.name: (getattr(self, f.name), f.default) for f in fields(RunOptions)}
        return {name: value for name, (value, usual) in every.items() if name not in _UNSAID or value != usual}

    @property
    def torch_dtype(self) -> torch.dtype:
        """The type of the model's numbers."""
        return dtype_named(self.dtype)


def dtype_named(name: str) -> torch.dtype:
    """The type that config.toml names."""
    kind: torch.dtype = getattr(torch, name)
    return kind


def check_quorum(method: object, options: RunOptions) -> None:
    """Refuse a quorum where there is no server whose rounds it could close."""
    if options.closing.closes_early and isinstance(method, PeerMethod):
        raise CoterieError(f"quorum is for methods with a server, and {method.name} has none; leave it out.")


def check_seed(seed: int) -> None:
    """Refuse a negative seed."""
    if seed < 0:
        raise CoterieError(f"A seed must be at least 0, not {seed}.")

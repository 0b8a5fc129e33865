"""The settings of the engine: how a simulation is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from coterie.core.errors import CoterieError

Backend = Literal["local", "ray"]


@dataclass(frozen=True)
class EngineOptions:
    """How the simulator computes; never what it computes."""

    workers: int = 0
    lanes: int = 0
    kernel: bool = True
    backend: Backend = "local"
    """Who does the clients' work: threads or processes of this machine, or a Ray cluster."""
    address: str = ""
    """Of the Ray cluster, as `ray start` prints it; without one, a cluster of this machine is started."""

    def __post_init__(self) -> None:
        if self.workers < 0 or self.lanes < 0:
            raise CoterieError("engine.workers and engine.lanes must be at least 0 (0: chosen by the engine).")
        if self.backend not in ("local", "ray"):
            raise CoterieError(f"engine.backend must be local or ray, not {self.backend}.")
        if self.address and self.backend != "ray":
            raise CoterieError("engine.address is that of a Ray cluster; set engine.backend = ray, too.")

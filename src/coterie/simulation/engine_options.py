"""The settings of the engine: how a simulation is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from coterie.core.errors import CoterieError
from coterie.core.task import Precision

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

    device: str = "cpu"
    """Where networks are computed: cpu, auto, cuda, cuda:1, mps, xpu or any other device of torch."""
    precision: Precision = "full"
    """bfloat16: layers compute in mixed precision, sums and weights in full."""

    def __post_init__(self) -> None:
        if self.workers < 0 or self.lanes < 0:
            raise CoterieError("engine.workers and engine.lanes must be at least 0 (0: chosen by the engine).")
        if self.backend not in ("local", "ray"):
            raise CoterieError(f"engine.backend must be local or ray, not {self.backend}.")
        if self.precision not in ("full", "bfloat16"):
            raise CoterieError(f"engine.precision must be full or bfloat16, not {self.precision}.")
        if self.address and self.backend != "ray":
            raise CoterieError("engine.address is that of a Ray cluster; set engine.backend = ray, too.")

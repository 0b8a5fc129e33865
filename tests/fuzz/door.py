"""Where bytes from elsewhere come in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .mutations import Mutate


@dataclass(frozen=True)
class Door:
    """Where bytes come in: `open` gives a value or a `CoterieError`, and nothing else."""

    name: str
    seeds: tuple[bytes, ...]
    mutate: Mutate
    open: Callable[[bytes], object]

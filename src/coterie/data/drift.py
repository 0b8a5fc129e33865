"""Clients that change group while a run goes on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from coterie.core.errors import CoterieError
from coterie.core.samples import ClientId

DriftTo = Literal["other", "new"]


@dataclass(frozen=True)
class Drift:
    """From `round` on, clients belong to another group and have that group's data.

    Either a fraction of the clients, chosen at random, each of which moves to some other group; or the
    clients that `groups` names, each to the group it gives. `to` says which groups are meant by "other": any, or only
    those that have no member at the start.
    """

    round: int
    fraction: float = 0.0
    groups: Mapping[ClientId, int] = field(default_factory=dict)
    to: DriftTo = "other"

    def __post_init__(self) -> None:
        if self.round < 0:
            raise CoterieError(f"A drift cannot begin in round {self.round}; give 0 or more.")
        if not (math.isfinite(self.fraction) and 0 <= self.fraction <= 1):
            raise CoterieError(f"The fraction of clients that drift is {self.fraction}; give 0 to 1.")
        if self.fraction and self.groups:
            raise CoterieError("A drift has a fraction or a list of clients, not both; leave one out.")

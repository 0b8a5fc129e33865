"""Methods with a number of groups that may be left open: `k = "auto"` (ours, see `how_many`)."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, TypeVar

from coterie.core.federation import Federation
from coterie.core.samples import ClientId
from coterie.core.settings import AUTO
from coterie.core.states import Stack
from coterie.methods.base import ServerMethod

S = TypeVar("S")
OPEN = 0
"""What the setting holds where the number is to be found out."""
_PART = re.compile(r"of_([1-9]\d{0,3})")


def number_of(what: str, symbol: str) -> dict[str, Any]:
    """The metadata of such a setting."""
    return {"help": f"number of {what} ({symbol}); auto (0): asked of the clients in the first rounds", AUTO: OPEN}


class FoundNumber(int):
    """A number of groups that was found out in the run; the user has set none."""


@dataclass(frozen=True)
class Counted(ServerMethod[S]):
    """A method that is told how many groups there are, or finds it out."""

    counts: ClassVar[str] = "k"
    """The setting with the number."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.number >= OPEN, self.counts, "be at least 1, or auto")

    @property
    def number(self) -> int:
        """How many groups there are; `OPEN` where that is to be found out."""
        return int(getattr(self, self.counts))

    def of(self, number: int) -> Self:
        """The method with a number that was found out, which its orders tell the clients."""
        settings: dict[str, Any] = {self.counts: FoundNumber(number)}
        return replace(self, **settings)

    @property
    def part(self) -> str:
        """A number that was found out is in no client's settings, so orders name it."""
        number = getattr(self, self.counts)
        return f"of_{number}" if isinstance(number, FoundNumber) else ""

    def part_of(self, name: str) -> Self | None:
        """The method with the number that its orders name; None where they name none."""
        number = _PART.fullmatch(name)
        return self.of(int(number[1])) if number else None

    @abstractmethod
    def begun(self, fed: Federation, models: Stack, cluster: Mapping[ClientId, int]) -> S:
        """The state in which this method goes on from groups that were found, each with a model of its own."""

"""When a round is closed before all have answered, and what becomes of the replies that come after that.

The federation decides, methods do not know of it. A client that has not answered when the round is closed is not asked
again before it has. Its late reply is dropped, or stands for its reply in the next round that asks it the same: it was
trained from an older model, so it counts less (`weight`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from coterie.core.errors import CoterieError, unknown
from coterie.core.samples import ClientId

LateRule = Literal["drop", "use"]
_SIZE = "size"


@dataclass(frozen=True)
class Quorum:
    """The share of replies with which a round is closed; 1 waits for all."""

    share: float = 1.0
    late: LateRule = "drop"

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise CoterieError(f"quorum must be above 0 and at most 1, not {self.share:g}.")
        if self.late not in ("drop", "use"):
            raise unknown("rule for late replies", str(self.late), ("drop", "use"))

    @property
    def closes_early(self) -> bool:
        """Whether there can be late replies at all."""
        return self.share < 1

    @property
    def uses_late(self) -> bool:
        """Whether late replies are used."""
        return self.closes_early and self.late == "use"

    def enough(self, asked: int) -> int:
        """How many of so many replies close a round."""
        return max(1, math.ceil(self.share * asked - 1e-9))

    def summary(self, late: int, used: int, age: int) -> str:
        """What became of a run's late replies, in one sentence."""
        how = f", {used} of them were used, {age / used:.1f} rounds old on average" if used else ", none was used"
        return f"rounds closed at {self.share:g} of the replies: {late} replies came late{how if late else ''}"


def weight(staleness: int) -> float:
    """How much a reply counts that was asked for so many rounds ago: 1 / sqrt(1 + staleness).

    It is the polynomial weight of FedAsync (Xie et al. 2019) with a = 1/2.
    """
    return float((1 + staleness) ** -0.5)


def discounted(
    tensors: Mapping[str, Tensor], ids: Sequence[ClientId], staleness: Mapping[ClientId, int]
) -> dict[str, Tensor]:
    """Stacked replies in which old ones count less: the number of samples, by which methods weigh, is made smaller."""
    size = tensors.get(_SIZE)
    if not staleness or size is None or not size.is_floating_point():
        return dict(tensors)
    factor = torch.tensor([weight(staleness.get(client, 0)) for client in ids], dtype=size.dtype)
    return {**tensors, _SIZE: size * factor.reshape(-1, *[1] * (size.dim() - 1))}

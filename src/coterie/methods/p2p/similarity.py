"""How similar a peer takes others to be by the loss of their models on its data (PENS; PANM, equation 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from coterie.core.cohort import Cohort
from coterie.core.evaluation import score
from coterie.core.samples import Samples
from coterie.core.states import take
from coterie.methods.p2p.base import Inbox

LossScore = Literal["inverse", "negative"]
_SMALLEST_LOSS = 1e-5


def losses_of(c: Cohort, inbox: Inbox, data: Sequence[Samples]) -> Tensor:
    """F_i(w_j): the loss of every received model on data of the peer's own, [C, m]; infinite where none came."""
    result = torch.full(inbox.index.shape, torch.inf, dtype=torch.float64)
    for row, (own, index, mask) in enumerate(zip(data, inbox.index, inbox.mask, strict=True)):
        if bool(mask.any()):
            result[row][mask] = score(c.task, take(inbox.pool.model, index[mask]), own).loss
    return result


def by_loss(c: Cohort, inbox: Inbox, kind: LossScore, data: Sequence[Samples] | None = None) -> Tensor:
    """Equation 3: 1 / F_i(w_j), or -F_i(w_j), [C, m]; 0 where no model came. A loss that is NaN is the worst.

    The loss is that on the training part unless other `data` are given.
    """
    loss = losses_of(c, inbox, c.part("train") if data is None else data)
    fine = inbox.mask & torch.isfinite(loss)
    similarity = 1 / (loss + _SMALLEST_LOSS) if kind == "inverse" else -loss
    worst = torch.where(fine, similarity, 0.0).amin(1, keepdim=True).clamp_max(0.0) if loss.shape[1] else loss
    return torch.where(fine, similarity, torch.where(inbox.mask, worst, 0.0))

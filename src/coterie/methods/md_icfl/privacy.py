"""What clients tell of their labels: p_i(y) under weak privacy, and answers that depend on it under strong privacy.

Ours: under strong privacy such answers are made from label shares with noise. The noise is drawn once for a client's
data, from what only its device knows. So all answers together, however many, tell those noisy shares and nothing more.
"""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.cohort import Cohort
from coterie.methods.md_icfl.distance import label_shares


def own_shares(c: Cohort) -> Tensor:
    """p_i(y) of each client, [N, classes]."""
    return label_shares([client.train.y for client in c.data], c.task.classes)


def noisy_shares(c: Cohort, deviation: float) -> Tensor:
    """The same with Laplace noise of this standard deviation on every share, or of the device's own if that is more."""
    deviation = max(deviation, c.least_noise)
    exact = own_shares(c)
    if not deviation:
        return exact
    rows = []
    for index, client in enumerate(c.data):
        counts = torch.bincount(client.train.y, minlength=c.task.classes).tolist()
        noise = c.private_rng(index, f"label noise {counts}").laplace(0.0, deviation / 2**0.5, exact.shape[1])
        shares = (exact[index] + torch.from_numpy(noise)).clamp_min(0)
        rows.append(shares / shares.sum() if float(shares.sum()) > 0 else torch.full_like(shares, 1 / len(shares)))
    return torch.stack(rows)

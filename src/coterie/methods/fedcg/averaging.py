"""How FedCG averages: FedAvg of what all share (equation 2), and of every domain's residuals."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from coterie.core.aggregate import combined, combined_one
from coterie.core.states import State
from coterie.methods.fedcg.graph import distance_adjacency
from coterie.methods.fedcg.messages import Report
from coterie.methods.fedcg.settings import FedCGSettings


def averaged(settings: FedCGSettings, replies: Report, previous: State, residuals: Sequence[str]) -> State:
    """FedAvg (equation 2); V of a domain by its samples, or (reach) by those of all domains that borrow from it.

    With `averaging = "clients"` the untouched copies of clients without samples of a domain are averaged in, too. Then
    A is that of the new residuals (equation 6), where it comes from distances.
    """
    model = _averaged(settings, replies, previous, residuals)
    if settings.graph == "distance":
        theta = torch.cat([model[name].double() for name in residuals], dim=1)
        samples = samples_by_domain(replies).sum(0)
        found = distance_adjacency(
            theta, settings.beta, sharpness=settings.sharpness, samples=samples, few=settings.few
        )
        model["adjacency"] = found.to(model["adjacency"].dtype)
    return model


def _averaged(settings: FedCGSettings, replies: Report, previous: State, residuals: Sequence[str]) -> State:
    model = combined_one(settings.aggregate, replies.model, replies.size, previous)
    if settings.averaging == "clients":
        return model
    reached = samples_by_domain(replies)
    if settings.averaging == "reach" and "adjacency" in previous:
        reached = reached @ previous["adjacency"].double()
    for d in range(settings.domains):
        own = {name: replies.model[name][:, d] for name in residuals}
        before = {name: previous[name][d : d + 1] for name in residuals}
        together = torch.zeros(len(reached), dtype=torch.int64)
        new = combined(settings.aggregate, own, reached[:, d], together, before, sizes=replies.size)
        for name, tensor in new.items():
            model[name][d] = tensor[0]
    return model


def samples_by_domain(replies: Report) -> Tensor:
    """Samples [C, D], which are as many as the client has: no client weighs more by claiming more of them."""
    given = replies.counts.double().clamp_min(0)
    return given * (replies.size.double() / given.sum(1).clamp_min(1))[:, None]

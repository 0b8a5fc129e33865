"""Your own method of peers, without a server: each averages with the most similar of some random partners."""

from dataclasses import dataclass

import torch
from torch import Tensor

import coterie
from coterie import Cohort, Gossip, Inbox, Partners, PeerView, Request, flat, take


@dataclass(frozen=True)
class Nearest(Gossip):
    """Ask l random peers for their models; average with the k that are nearest to the peer's own."""

    name = "nearest"
    title = "Nearest models"

    def choose(self, node: Partners, view: PeerView) -> Request:
        """Whom each peer asks in this round."""
        return Request.models(torch.stack([torch.from_numpy(view.draw(i, self.l)) for i in range(len(view))]))

    def select(self, c: Cohort, node: Partners, inbox: Inbox, similarity: Tensor) -> tuple[Partners, Tensor]:
        """What each peer keeps for the next round, and whose models it averages with its own."""
        models, own = flat(inbox.pool.model), flat(take(inbox.pool.model, inbox.own))
        gaps = (models[inbox.index] - own[:, None]).norm(dim=2).masked_fill(~inbox.mask, torch.inf)
        near = inbox.mask & (gaps <= gaps.kthvalue(self.k, dim=1, keepdim=True).values)
        return Partners(torch.where(near, inbox.keys, -1)), near


population = coterie.build("rotated-digits", seed=0)
model = coterie.build_model("digits-mlp", population.shape, population.classes)
print(coterie.run(Nearest(batch=16), population, model, rounds=10).accuracy)

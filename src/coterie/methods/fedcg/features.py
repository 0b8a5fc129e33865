"""Ours, not in the paper: domains from the clients' mean features, and a student fitted from sums (the default)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from coterie.core.cohort import Cohort
from coterie.core.federation import Federation, Nothing
from coterie.core.samples import ClientId, Samples
from coterie.core.states import State, stack
from coterie.methods.base import Models
from coterie.methods.fedcg.domains import UNEVEN, Found, Moments, features_of, find_domains, posterior, square, triangle
from coterie.methods.fedcg.finders import Finder, domain_seed
from coterie.methods.fedcg.messages import Domains, Sent, Sums

AT_ONCE = 32
"""So many clients' second moments are held by the server together."""


def feature_sums(c: Cohort, features: int) -> Sums:
    """On the client: sums of features and of their products."""
    own = [features_of(c.task.inputs(client.train.x), c.seed, features) for client in c.data]
    return Sums(torch.stack([f.sum(0) for f in own]), torch.stack([triangle(f.T @ f) for f in own]), c.size)


class FeatureFinder(Finder):
    """k-means on clients' mean features, and a student fitted from sums."""

    def search(self, state: Domains, fed: Federation) -> Domains:
        """Every client sends sums of its features once, unless the domains are known groups of clients."""
        if state.student or state.cluster:
            return state
        found, _ = self.found(fed)
        return state if found is None else self.taken(state, found)

    def taken(self, state: Domains, found: Found) -> Domains:
        """With these domains and the student that tells them."""
        pooled = found.unevenness <= UNEVEN if self.method.routing == "auto" else state.pooled
        return replace(state, student=found.student, pooled=pooled, history={"unevenness": [found.unevenness]})

    def found(self, fed: Federation) -> tuple[Found | None, list[ClientId]]:
        """The domains of those who answered, in this order."""
        method, moments, ids, came = self.method, None, sorted(fed.ids), list[ClientId]()
        for begin in range(0, len(ids), AT_ONCE):
            replies = fed.ask(method.describe, ids[begin : begin + AT_ONCE], same=Nothing())
            value = replies.value
            if value is not None:
                came += replies.ids
                some = Moments.of(value.total, square(value.products, method.features), value.size)
                moments = some if moments is None else moments.plus(some)
        if moments is None:
            return None, []
        return find_domains(moments, method.domains, domain_seed(fed), method.ridge), came

    def admit(self, state: Domains, fed: Federation, new: Sequence[ClientId]) -> Domains:
        """Where domains are groups of clients that their inputs do not tell apart, newcomers try all of them."""
        if state.student or not state.cluster:
            return state
        replies = fed.ask(
            self.method.choose, [i for i in new if i not in state.cluster], same=Models(stack([state.model]))
        )
        chosen = [] if replies.value is None else replies.value.cluster.tolist()
        return replace(state, cluster={**state.cluster, **dict(zip(replies.ids, chosen, strict=True))})

    def seen(self, c: Cohort, sent: Sent, index: int, samples: Samples) -> Tensor:
        """The domain that the server knows of the client; where it knows none, the student's posterior."""
        if not sent.student or int(sent.domain[index]) >= 0:
            return self._known(int(sent.domain[index]), len(samples))
        return self._posterior(sent.student, c.task.inputs(samples.x), c.seed)

    def told(self, state: Domains, domain: int, seed: int, x: Tensor) -> Tensor:
        """Likewise."""
        known = not state.student or (domain >= 0 and state.looks is not None and state.pooled)
        return self._known(domain, len(x)) if known else self._posterior(state.student, x, seed)

    def _known(self, domain: int, samples: int) -> Tensor:
        every = self.method.domains
        told = torch.full((every,), 1 / every) if domain < 0 else torch.eye(every)[domain]
        return told.expand(samples, -1)

    def _posterior(self, student: State, x: Tensor, seed: int) -> Tensor:
        return posterior(student, features_of(x, seed, self.method.features))

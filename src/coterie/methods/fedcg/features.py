"""Ours, not in the paper: domains from the clients' mean features, and a student fitted from sums (the default)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from coterie.core.cohort import Cohort
from coterie.core.federation import Federation, Nothing
from coterie.core.samples import Samples
from coterie.core.states import State
from coterie.methods.fedcg.domains import UNEVEN, Moments, features_of, find_domains, posterior, square, triangle
from coterie.methods.fedcg.finders import Finder, domain_seed
from coterie.methods.fedcg.messages import Domains, Sent, Sums

_AT_ONCE = 32
"""So many clients' second moments are held by the server together."""


def feature_sums(c: Cohort, features: int) -> Sums:
    """On the client: sums of features and of their products."""
    own = [features_of(c.task.inputs(client.train.x), c.seed, features) for client in c.data]
    return Sums(torch.stack([f.sum(0) for f in own]), torch.stack([triangle(f.T @ f) for f in own]), c.size)


class FeatureFinder(Finder):
    """k-means on clients' mean features, and a student fitted from sums."""

    def search(self, state: Domains, fed: Federation) -> Domains:
        """Every client sends sums of its features once."""
        if state.student:
            return state
        method, moments, ids = self.method, None, sorted(fed.ids)
        for begin in range(0, len(ids), _AT_ONCE):
            value = fed.ask(method.describe, ids[begin : begin + _AT_ONCE], same=Nothing()).value
            if value is not None:
                some = Moments.of(value.total, square(value.products, method.features), value.size)
                moments = some if moments is None else moments.plus(some)
        if moments is None:
            return state
        found = find_domains(moments, method.domains, domain_seed(fed), method.ridge)
        pooled = found.unevenness <= UNEVEN if method.routing == "auto" else state.pooled
        return replace(state, student=found.student, pooled=pooled, history={"unevenness": [found.unevenness]})

    def seen(self, c: Cohort, sent: Sent, index: int, samples: Samples) -> Tensor:
        """The student's posterior."""
        return self._posterior(sent.student, c.task.inputs(samples.x), c.seed)

    def told(self, state: Domains, domain: int, seed: int, x: Tensor) -> Tensor:
        """The student's posterior."""
        return self._posterior(state.student, x, seed)

    def _posterior(self, student: State, x: Tensor, seed: int) -> Tensor:
        if not student:
            return torch.full((len(x), self.method.domains), 1 / self.method.domains)
        return posterior(student, features_of(x, seed, self.method.features))

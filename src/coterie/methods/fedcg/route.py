"""Where the samples of a batch belong, for all layers that have a part for each domain."""

from __future__ import annotations

from itertools import accumulate

import torch
from torch import Tensor

from coterie.core.errors import CoterieError

_EVEN = 1.5  # how many times the samples of a batch may be computed to save calls


class Route:
    """Where the samples of the current batch belong: what a network tells all its domain layers.

    `weights` [n, D], rows that sum to 1, are given where domains are soft. Where they are hard, `present` names the
    domains that the batch has, `sizes` how many samples each has, and `order` brings these together and undoes
    that (None where all samples are of one domain). `adjacency` is None where domains do not interact.
    """

    def __init__(self) -> None:
        self.samples = 0
        self.weights: Tensor | None = None
        self.present = torch.zeros(0, dtype=torch.int64)
        self.sizes: list[int] = []
        self.order: tuple[Tensor, Tensor] | None = None
        self.adjacency: Tensor | None = None
        self._turns: tuple[Tensor, Tensor] | None = None

    def send(self, domains: Tensor, known: int) -> None:
        """Take the domains of a batch: numbers [n] below `known`, or weights [n, D]. Grouped once for all layers."""
        if domains.dim() not in (1, 2) or (domains.dim() == 2 and domains.shape[1] != known):
            raise CoterieError(
                f"Domains must be numbers [n] or weights [n, {known}], not a tensor of {tuple(domains.shape)}."
            )
        self.samples, self.weights, self.order, self._turns = len(domains), None, None, None
        if domains.dim() == 2:
            self.weights = domains
            return
        low, high = (int(end) for end in domains.aminmax()) if len(domains) else (0, 0)
        if not 0 <= low <= high < known:
            raise CoterieError(
                f"Domain {high if low >= 0 else low} was asked for and there are {known}, counted from 0"
                + ("; set domains higher." if low >= 0 else ".")
            )
        if low == high:
            self.present, self.sizes = torch.tensor([low], device=domains.device), [len(domains)]
            return
        ordered, order = domains.sort(stable=True)
        self.present, counts = ordered.unique_consecutive(return_counts=True)
        self.sizes, self.order = counts.tolist(), (order, order.argsort())

    @property
    def is_even(self) -> bool:
        """Whether all domains have about as many samples, so that few are taken twice in `turns`."""
        return max(self.sizes) * len(self.sizes) <= _EVEN * self.samples

    def turns(self) -> tuple[Tensor, Tensor]:
        """Samples of all domains in turn, its last again where one has no more; and where each sample is among them."""
        if self._turns is None:
            assert self.order is not None
            there, back = self.order
            domains = len(self.sizes)
            ends = list(accumulate(self.sizes))
            firsts = [(end - size, end - 1) for end, size in zip(ends, self.sizes, strict=True)]
            turns = [min(first + turn, last) for turn in range(max(self.sizes)) for first, last in firsts]
            places = [place for d, size in enumerate(self.sizes) for place in range(d, size * domains, domains)]
            picked = torch.tensor(turns, device=there.device), torch.tensor(places, device=there.device)
            self._turns = there[picked[0]], picked[1][back]
        return self._turns

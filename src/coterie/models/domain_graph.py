"""The graph that joins the parameters of several domains (FedCG, equations 5 and 6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.errors import CoterieError

WKind = Literal["none", "full", "bottleneck", "per_filter"]
Sigma = Literal["relu", "none", "on_activation"]
FixedAdjacency = Literal["eye", "random", "uniform", "hamming"]

_LARGEST_W = 1 << 30
_TINY = 1e-8
"""Equal domains have distance 0: this keeps 1 / distance finite."""


def fixed_adjacency(
    kind: FixedAdjacency, domains: int, beta: float, generator: torch.Generator | None = None
) -> Tensor:
    """An adjacency matrix that needs no parameters; its rows sum to 1.

    "eye" joins nobody; the others keep `beta` for a domain itself and share the rest out: evenly, at random, or by
    the inverse of how many binary digits two domains' numbers differ in.
    """
    numbers = torch.arange(domains)
    if kind == "eye" or domains == 1:
        return torch.eye(domains)
    if kind == "uniform":
        return _with_self(torch.ones(domains, domains), beta)
    if kind == "random":
        return _with_self(torch.rand(domains, domains, generator=generator) + _TINY, beta)
    differing = numbers[:, None] ^ numbers[None]
    return _with_self(1 / _ones(differing).clamp_min(1), beta)


def distance_adjacency(
    theta: Tensor, beta: float, *, sharpness: float = 1.0, samples: Tensor | None = None, few: float = 0.0
) -> Tensor:
    """The adjacency of equation 6: A_ij ~ 1 / |theta_i - theta_j|, `beta` on the diagonal, rows that sum to 1.

    `theta` [D, q] holds each domain's parameters. A `sharpness` above 1 raises the similarities to that power. With
    `few`, a domain with n of the `samples` keeps at least n / (n + few) for itself, so that only poor ones borrow.
    """
    domains = theta.shape[0]
    if domains == 1:
        return torch.ones(1, 1)
    exact = theta.double()
    # from the Gram matrix: q can be large, and D x D x q differences would not fit
    squares = (exact * exact).sum(1)
    distance = (squares[:, None] + squares[None] - 2 * exact @ exact.T).clamp_min(0).sqrt()
    if not bool(distance.any()):
        return _with_self(torch.ones(domains, domains), beta)
    # relative distances: a power of them neither overflows nor vanishes
    closeness = (distance / distance.max() + _TINY) ** -sharpness
    adjacency = _with_self(closeness, beta)
    if few and samples is not None:
        own = (samples / (samples + few)).clamp_min(beta).float()
        away = adjacency.fill_diagonal_(0) / (1 - beta) if beta < 1 else torch.zeros(domains, domains)
        adjacency = away * (1 - own)[:, None] + torch.diag(own)
    return adjacency


def _with_self(closeness: Tensor, beta: float) -> Tensor:
    others = closeness.double().clone().fill_diagonal_(0)
    shared = (1 - beta) * others / others.sum(1, keepdim=True)
    return (shared + beta * torch.eye(len(closeness), dtype=torch.float64)).float()


def _ones(numbers: Tensor) -> Tensor:
    """How many binary digits are 1."""
    return sum(((numbers >> place) & 1 for place in range(62)), torch.zeros_like(numbers))


class DomainGraph(nn.Module):
    """V -> sigma(A V W) for the parameters of one layer, where row d of V holds all parameters of domain d.

    W is the identity at first. "full" is the paper's q x q matrix, "per_filter" one matrix for the p parameters of
    every output (the same operator, q / p times squared smaller), "bottleneck" two graph layers q -> q / r -> q beside
    a direct path, "none" no W at all.
    """

    def __init__(self, outputs: int, shape: Sequence[int], bias: bool, w: WKind, relu: bool, bottleneck: int) -> None:
        super().__init__()
        self.outputs, self.relu, self.kind = outputs, relu, w
        weights = int(torch.Size(shape).numel())
        self._weights, self._bias = weights, bias
        per_filter = weights // outputs + bias
        q = weights + outputs * bias
        if w == "full":
            _check_size(q * q, f"a full W of {q} x {q} parameters")
            self.weight = nn.Parameter(torch.eye(q))
        elif w == "per_filter":
            self.weight = nn.Parameter(torch.eye(per_filter))
        elif w == "bottleneck":
            hidden = max(1, q // bottleneck)
            _check_size(2 * q * hidden, f"a bottleneck W of {q} x {hidden} x {q} parameters")
            self.narrow = nn.Parameter(torch.randn(q, hidden) / q**0.5)
            # near zero, so that the graph starts as the direct path
            self.widen = nn.Parameter(torch.randn(hidden, q) * (0.01 / hidden**0.5))

    @property
    def is_identity(self) -> bool:
        """Whether the graph does nothing but mix by A."""
        return self.kind == "none" and not self.relu

    def forward(self, values: Tensor, adjacency: Tensor, rows: Tensor) -> Tensor:
        """The new parameters of the domains in `rows`, [len(rows), q]."""
        mixed = adjacency[rows] @ values
        if self.kind == "full":
            mixed = mixed @ self.weight
        elif self.kind == "per_filter":
            mixed = self._per_filter(mixed)
        elif self.kind == "bottleneck":
            hidden = self._sigma(adjacency @ values @ self.narrow)
            mixed = mixed + adjacency[rows] @ hidden @ self.widen
        return self._sigma(mixed)

    def _sigma(self, values: Tensor) -> Tensor:
        return F.relu(values) if self.relu else values

    def _per_filter(self, mixed: Tensor) -> Tensor:
        rows = mixed.shape[0]
        filters = mixed[:, : self._weights].reshape(rows, self.outputs, -1)
        if not self._bias:
            return (filters @ self.weight).reshape(rows, -1)
        whole = torch.cat([filters, mixed[:, self._weights :, None]], dim=2) @ self.weight
        return torch.cat([whole[:, :, :-1].reshape(rows, -1), whole[:, :, -1]], dim=1)


def _check_size(entries: int, what: str) -> None:
    size = 4 * entries
    if size > _LARGEST_W:
        raise CoterieError(
            f"FedCG: {what} would take {size / 1e9:.1f} GB, in every message too; "
            'set w to "per_filter", or to "bottleneck" with a larger factor.'
        )

"""The graph that joins the parameters of several domains (FedCG, equations 5 and 6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.core.errors import CoterieError

WKind = Literal["none", "full", "low_rank", "bottleneck", "per_filter"]
Sigma = Literal["relu", "none", "on_activation"]
FixedAdjacency = Literal["eye", "random", "uniform", "hamming"]

_GIB = 1 << 30
_DEPENDENT = 1e-6
"""A vector of which less than this part is left beside others counts as their sum."""
_TINY = 1e-8
"""Equal domains have distance 0: this keeps 1 / distance finite."""


def fixed_adjacency(
    kind: FixedAdjacency, domains: int, beta: float, generator: torch.Generator | None = None
) -> Tensor:
    """An adjacency matrix that needs no parameters; its rows sum to 1.

    "eye" joins no domains; the others keep `beta` for a domain itself and share the rest out: evenly, at random, or by
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


@dataclass(frozen=True)
class Graph:
    """How domains interact: the first A (None: they never do), W and sigma of equation 5.

    `bottleneck` and `rank` are of the kinds of W with these names; `limit` is the largest W of a layer in GiB.
    """

    adjacency: Tensor | None = None
    w: WKind = "per_filter"
    sigma: Sigma = "relu"
    bottleneck: int = 16
    rank: int = 16
    limit: float = 1.0


class DomainGraph(nn.Module):
    """V -> sigma(A V W) for the parameters of one layer, where row d of V holds all q parameters of domain d.

    - "full" is the paper's q x q matrix, at first the identity.
    - "low_rank" is W = U V^T with U and V of q x rank (`left` and `right`); at first it keeps the first parameters as
      they are (see `begin`).
    - "bottleneck" is two graph layers q -> q / r -> q beside a direct path.
    - "per_filter" is ours: one matrix, at first the identity, that is applied to the p parameters of every output. It
      is not the paper's operator: it cannot mix the parameters of different filters.
    - "none" is no W at all.
    """

    def __init__(self, shape: Sequence[int], bias: bool, graph: Graph) -> None:
        super().__init__()
        w, outputs = graph.w, shape[0]
        self.outputs, self.relu, self.kind = outputs, graph.sigma == "relu", w
        weights = int(torch.Size(shape).numel())
        self._weights, self._bias = weights, bias
        per_filter = weights // outputs + bias
        q = weights + outputs * bias
        if w == "full":
            _check_size(q * q, f"a full W of {q} x {q} parameters", graph.limit)
            self.weight = nn.Parameter(torch.eye(q))
        elif w == "per_filter":
            _check_size(per_filter**2, f"a W per filter of {per_filter} x {per_filter} parameters", graph.limit)
            self.weight = nn.Parameter(torch.eye(per_filter))
        elif w == "low_rank":
            rank = min(graph.rank, q)
            _check_size(2 * q * rank, f"a W of rank {rank} with {q} x {rank} x {q} parameters", graph.limit)
            self.left, self.right = nn.Parameter(torch.randn(q, rank)), nn.Parameter(torch.zeros(q, rank))
        elif w == "bottleneck":
            hidden = max(1, q // graph.bottleneck)
            _check_size(2 * q * hidden, f"a bottleneck W of {q} x {hidden} x {q} parameters", graph.limit)
            self.narrow = nn.Parameter(torch.randn(q, hidden) / q**0.5)
            # near zero, so that the graph starts as the direct path
            self.widen = nn.Parameter(torch.randn(hidden, q) * (0.01 / hidden**0.5))

    @torch.no_grad()
    def begin(self, values: Tensor) -> None:
        """Start a W of low rank as the projection to the rows of V, filled up with random directions.

        So A V W = A V at first, as with the identity, while there are no more domains than the rank.
        """
        if self.kind == "low_rank":
            basis = _orthonormal(torch.cat([values.T, self.left], dim=1), self.left.shape[1])
            self.left.copy_(basis)
            self.right.copy_(basis)

    @property
    def is_identity(self) -> bool:
        """Whether the graph does nothing but mix by A."""
        return self.kind == "none" and not self.relu

    def forward(self, values: Tensor, adjacency: Tensor, rows: Tensor) -> Tensor:
        """The new parameters of the domains in `rows`, [len(rows), q]."""
        mixed = adjacency[rows] @ values
        if self.kind == "full":
            mixed = mixed @ self.weight
        elif self.kind == "low_rank":
            mixed = mixed @ self.left @ self.right.T
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


def _orthonormal(columns: Tensor, rank: int) -> Tensor:
    """An orthonormal basis [q, rank] of the span of the first columns that are independent (Gram and Schmidt, twice).

    By numpy's plain sums: LAPACK's numbers would depend on how many threads there are.
    """
    basis = np.zeros((rank, columns.shape[0]))
    found = 0
    for column in columns.double().T.numpy():
        if found == rank:
            break
        left = column
        for _ in range(2):
            left = left - np.einsum("k,kq->q", np.einsum("kq,q->k", basis[:found], left), basis[:found])
        length = float(np.sqrt((left**2).sum()))
        if length > _DEPENDENT * float(np.sqrt((column**2).sum())):
            basis[found] = left / length
            found += 1
    return torch.from_numpy(np.ascontiguousarray(basis.T)).to(columns.dtype)


def _check_size(entries: int, what: str, limit: float) -> None:
    size = 4 * entries
    if size > limit * _GIB:
        raise CoterieError(
            f"FedCG: {what} would take {size / 1e9:.1f} GB, in every message too, and {limit:g} GiB are allowed; "
            'set w to "low_rank" or "per_filter", bottleneck to a larger factor, or w_limit higher.'
        )

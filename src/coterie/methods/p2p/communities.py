"""Communities of a graph: groups of nodes with more links among themselves than chance would give them.

The modularity of Newman, maximised as Blondel et al. (2008) do: nodes move one by one to the community where they gain
most, then communities become nodes, until nothing moves. The order is fixed: the result depends on the graph alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Ints = npt.NDArray[np.int64]
_SWEEPS = 100


def communities(source: Ints, target: Ints, nodes: int) -> Ints:
    """The community of each node, numbered from 0 in the order of their first nodes.

    Links are directed; one that goes both ways counts twice. A node without links is a community of its own.
    """
    from scipy.sparse import coo_array, csr_array

    weights = np.ones(len(source), dtype=np.float64)
    graph = coo_array((weights, (source, target)), shape=(nodes, nodes)).tocsr()
    graph = csr_array(graph + graph.T)
    labels: Ints = np.arange(nodes, dtype=np.int64)
    while True:
        moved = _moved(graph)
        labels = moved[labels]
        size = int(moved.max(initial=-1)) + 1
        if size == graph.shape[0]:
            return _in_order(labels)
        member = coo_array((np.ones(len(moved)), (moved, np.arange(len(moved)))), shape=(size, len(moved))).tocsr()
        graph = csr_array(member @ graph @ member.T)


def _moved(graph: csr_array) -> Ints:
    """Move nodes one by one, in their order, while that gains modularity; communities numbered without gaps."""
    nodes = graph.shape[0]
    degree = np.asarray(graph.sum(axis=1)).ravel()
    total = float(degree.sum())
    labels: Ints = np.arange(nodes, dtype=np.int64)
    if total == 0:
        return labels
    mass = degree.copy()
    starts, targets, weights = graph.indptr, graph.indices, graph.data
    for _ in range(_SWEEPS):
        changes = 0
        for node in range(nodes):
            span = slice(starts[node], starts[node + 1])
            near, weight = targets[span], weights[span]
            apart = near != node
            if not apart.any():
                continue
            own = labels[node]
            around, inverse = np.unique(labels[near[apart]], return_inverse=True)
            links = np.bincount(inverse, weights=weight[apart])
            mass[own] -= degree[node]
            gain = links - degree[node] * mass[around] / total
            stay = float(gain[around == own][0]) if own in around else 0.0 - degree[node] * mass[own] / total
            best = int(gain.argmax())
            if gain[best] > stay + 1e-9:
                labels[node] = around[best]
                changes += 1
            mass[labels[node]] += degree[node]
        if not changes:
            break
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)


def _in_order(labels: Ints) -> Ints:
    """The same communities, numbered by their first members."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]

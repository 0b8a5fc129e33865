"""Communities of a graph: groups of nodes with more links among themselves than chance would give them.

The modularity of Newman, maximised as Blondel et al. (2008) do, by networkx: nodes move one by one to the community
where they gain most, then communities become nodes, until nothing is gained. Their order is drawn with a fixed seed,
so the result depends on the graph alone.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
_SEED = 0


def communities(source: Ints, target: Ints, nodes: int) -> Ints:
    """The community of each node, numbered from 0 in the order of their first nodes.

    Links are directed; one that goes both ways counts twice. A node without links is a community of its own.
    """
    import networkx  # type: ignore[import-untyped]

    # every pair once, in order: the result must not depend on the order in which links are given
    ends = np.sort(np.stack([source, target], axis=1), axis=1)
    pairs, weights = np.unique(ends, axis=0, return_counts=True)
    graph = networkx.Graph()
    graph.add_nodes_from(range(nodes))
    graph.add_weighted_edges_from((a, b, w) for (a, b), w in zip(pairs.tolist(), weights.tolist(), strict=True))
    found = networkx.community.louvain_communities(graph, seed=_SEED)
    labels = np.empty(nodes, dtype=np.int64)
    for label, members in enumerate(sorted(found, key=min)):
        labels[list(members)] = label
    return labels

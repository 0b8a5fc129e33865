"""Communities of the neighbour graph."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

from coterie.core.rng import rng
from coterie.methods.p2p.communities import communities


def found(edges: list[tuple[int, int]], nodes: int) -> list[int]:
    pairs = np.array(edges, dtype=np.int64).reshape(-1, 2)
    return [int(c) for c in communities(pairs[:, 0], pairs[:, 1], nodes)]


def clique(*nodes: int) -> list[tuple[int, int]]:
    return [(a, b) for a in nodes for b in nodes if a != b]


def test_two_cliques_with_a_bridge() -> None:
    assert found([*clique(0, 2, 4), *clique(1, 3, 5), (0, 1)], 6) == [0, 1, 0, 1, 0, 1]


def test_a_node_without_links_is_alone() -> None:
    assert found(clique(0, 1, 2), 4) == [0, 0, 0, 1]
    assert found([], 3) == [0, 1, 2]
    assert found([], 0) == []


def test_wrong_links_do_not_melt_groups_together() -> None:
    """100 peers in four groups, ten links each, a tenth of them to anyone: connected components would be one."""
    generator = rng(0, "links")
    truth = np.arange(100) % 4
    edges = []
    for node in range(100):
        mates = [other for other in range(100) if truth[other] == truth[node] and other != node]
        edges += [(node, int(generator.choice(mates if generator.random() > 0.1 else 100))) for _ in range(10)]
    labels = found(edges, 100)
    assert adjusted_rand_score(truth, labels) == 1.0
    assert len(set(labels)) == 4


@given(st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.tuples(*[st.integers(0, n - 1)] * 2)))))
def test_every_node_has_one_community_numbered_in_order(graph: tuple[int, list[tuple[int, int]]]) -> None:
    nodes, edges = graph
    labels = found(edges, nodes)
    assert len(labels) == nodes
    assert list(dict.fromkeys(labels)) == list(range(len(set(labels))))
    assert labels == found(edges[::-1], nodes)

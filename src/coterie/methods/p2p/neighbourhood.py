"""How well peers find their like, measured and drawn; for reports only, peers never see any of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.federation import Federation
from coterie.core.panels import Edge, Heatmap, Histogram, Lines, Node, NodeGraph, Panel
from coterie.core.samples import ClientId
from coterie.methods.p2p.topology import NO_PEER, peer_keys

Moment = dict[str, float | None]
"""One round: mean size of the neighbour lists, precision, recall, share of pure lists, models received so far."""
Ints = npt.NDArray[np.int64]


def quality(groups: Sequence[int], keys: Ints, neighbours: Tensor) -> tuple[float | None, float | None, float | None]:
    """Means over peers: precision (same group among the neighbours), recall (neighbours among the same group), and the
    share of peers whose neighbours are all of their group. Row i of `neighbours` is peer i's list, `keys` its key."""
    order = np.argsort(keys)
    lists = neighbours.numpy()
    listed = lists != NO_PEER
    place = np.searchsorted(keys[order], lists).clip(max=len(keys) - 1)
    group = np.asarray(groups)
    same = (group[order[place]] == group[:, None]) & listed & (keys[order[place]] == lists)
    size, right = listed.sum(1), same.sum(1)
    others = np.bincount(group)[group] - 1
    having, social = size > 0, others > 0
    precision = float((right[having] / size[having]).mean()) if having.any() else None
    recall = float((right[social] / others[social]).mean()) if social.any() else None
    pure = float((right[having] == size[having]).mean()) if having.any() else None
    return precision, recall, pure


def found(fed: Federation, ids: Sequence[ClientId], neighbours: Tensor, received: float) -> Moment:
    """The record of a round; without known groups, sizes alone."""
    size = float((neighbours != NO_PEER).sum(1).double().mean())
    moment: Moment = {"round": float(fed.round + 1), "neighbours": size, "received": received}
    try:
        groups = fed.truth(ids).tolist()
    except CoterieError:
        return moment
    precision, recall, pure = quality(groups, peer_keys(ids), neighbours)
    return {**moment, "precision": precision, "recall": recall, "pure": pure}


def panels_of(
    ids: Sequence[ClientId],
    group: Mapping[ClientId, int],
    history: Sequence[Moment],
    aggregated: Tensor | None,
    node: Mapping[str, Tensor],
    links: tuple[Ints, Ints],
) -> list[Panel]:
    """The pictures of a network of peers; `links` are the edges from peers to their neighbours."""
    panels: list[Panel] = []
    measured = [name for name in ("precision", "recall", "pure") if any(name in moment for moment in history)]
    if measured:
        rounds = [moment["round"] or 0.0 for moment in history]
        series = {name: [moment.get(name) for moment in history] for name in measured}
        panels.append(Lines("Neighbours of the same group (means over peers)", rounds, series, y_label="share"))
    if aggregated is not None:
        order = sorted(range(len(ids)), key=lambda index: (group.get(ids[index], 0), ids[index]))
        labels = [ids[index] for index in order]
        table = aggregated[order][:, order]
        panels.append(
            Heatmap(
                "Who aggregated whose model", table.tolist(), labels, labels, "rows: who; columns: whose; by true group"
            )
        )
    if "similarity" in node and node["similarity"].shape[1]:
        panels.append(_similarities(ids, group, node["scored"], node["similarity"]))
    if aggregated is not None and len(links[0]):
        nodes = [Node(client, group.get(client, 0)) for client in ids]
        edges = [Edge(int(a), int(b)) for a, b in zip(*links, strict=True)]
        panels.append(NodeGraph("Neighbours, by true group", nodes, edges))
    return panels


def _similarities(
    ids: Sequence[ClientId], group: Mapping[ClientId, int], scored: Tensor, similarity: Tensor
) -> Histogram:
    by_key = dict(zip(peer_keys(ids).tolist(), ids, strict=True))
    parts: dict[str, list[float]] = {}
    for client, keys, values in zip(ids, scored.tolist(), similarity.tolist(), strict=True):
        for key, value in zip(keys, values, strict=False):
            if key in by_key:
                known = client in group and by_key[key] in group
                alike = known and group[client] == group[by_key[key]]
                name = ("same group" if alike else "other group") if known else "all"
                parts.setdefault(name, []).append(value)
    return Histogram("Similarities when last measured", dict(sorted(parts.items())))

"""Clients whose data have changed: who moves to which cluster, and when a new cluster is founded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coterie.clustering.centroids import Centroids
from coterie.clustering.embed import Bits
from coterie.clustering.halves import joined
from coterie.clustering.rules import choose
from coterie.clustering.ward import Ints


@dataclass(frozen=True)
class Followed:
    """Every client's cluster now, the centres, and for each new cluster the old one that is nearest to it."""

    labels: Ints
    centroids: Centroids
    parents: list[int]


def follow(centroids: Centroids, labels: Ints, before: Bits, after: Bits, classes: int) -> Followed:
    """Move the clients whose embeddings have changed to the nearest centre, or to new ones.

    A client that is farther from all centres than members are from theirs founds a cluster, together with others like
    it. At usual flip probabilities a single embedding is too noisy for that; so each cluster that changed clients have
    joined is then looked at again, and if the default rule finds several groups in it, they part.
    """
    labels = labels.copy()
    changed = np.flatnonzero((before != after).any(1))
    strange = np.zeros(len(labels), bool)
    strange[changed] = centroids.strangers(after[changed], before, labels)
    for client in changed:
        centroids = centroids.without_member(int(labels[client]), before[client])
        if not strange[client]:
            labels[client] = centroids.nearest(after[client][None])[0]
            centroids = centroids.with_member(int(labels[client]), after[client])
    newcomers: list[Ints] = []
    strangers = np.flatnonzero(strange)
    labels[strangers] = -1
    if len(strangers):
        groups = choose(after[strangers], classes).labels
        newcomers += [strangers[groups == group] for group in range(int(groups.max()) + 1)]
    for cluster in sorted({int(labels[client]) for client in changed if not strange[client]}):
        leaving = _leaving(np.flatnonzero(labels == cluster), before, after, classes)
        for client in np.concatenate(leaving) if leaving else ():
            centroids = centroids.without_member(cluster, after[client])
        newcomers += leaving
    # clients of one new group may have gone to different clusters first
    founders = joined(after, classes, newcomers)
    parents = [int(centroids.nearest(after[members].mean(0)[None])[0]) for members in founders]
    for members in founders:
        labels[members] = len(centroids)
        centroids = centroids.with_cluster(after[members])
    return Followed(labels, centroids, parents)


def _leaving(members: Ints, before: Bits, after: Bits, classes: int) -> list[Ints]:
    """The groups found in a cluster, but for the one with most unchanged members, which keeps its number."""
    groups = choose(after[members], classes).labels
    unchanged = (before[members] == after[members]).all(1)
    stays = int(np.bincount(groups, weights=unchanged).argmax())
    return [members[groups == group] for group in range(int(groups.max()) + 1) if group != stays]

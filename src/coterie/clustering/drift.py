"""Clients whose data have changed: who moves to which cluster, and when a new cluster is founded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coterie.clustering.centroids import Centroids
from coterie.clustering.embed import Bits
from coterie.clustering.rules import choose
from coterie.clustering.ward import Ints


@dataclass(frozen=True)
class Followed:
    """Every client's cluster now, the centres, and for each new cluster the old one that it came from."""

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
    parents: list[int] = []
    strangers = np.flatnonzero(strange)
    if len(strangers):
        groups = choose(after[strangers], classes).labels
        for group in range(int(groups.max()) + 1):
            members = strangers[groups == group]
            parents.append(int(centroids.nearest(after[members].mean(0)[None])[0]))
            labels[members] = len(centroids)
            centroids = centroids.with_cluster(after[members])
    for cluster in sorted({int(labels[client]) for client in changed if not strange[client]}):
        centroids = _parted(cluster, centroids, labels, before, after, classes, parents)
    return Followed(labels, centroids, parents)


def _parted(
    cluster: int, centroids: Centroids, labels: Ints, before: Bits, after: Bits, classes: int, parents: list[int]
) -> Centroids:
    """Split a cluster into the groups found in it; the one with most unchanged members keeps its number."""
    members = np.flatnonzero(labels == cluster)
    groups = choose(after[members], classes).labels
    unchanged = (before[members] == after[members]).all(1)
    stays = int(np.bincount(groups, weights=unchanged).argmax())
    for group in range(int(groups.max()) + 1):
        if group == stays:
            continue
        leaving = members[groups == group]
        for client in leaving:
            centroids = centroids.without_member(cluster, after[client])
        labels[leaving] = len(centroids)
        centroids = centroids.with_cluster(after[leaving])
        parents.append(cluster)
    return centroids

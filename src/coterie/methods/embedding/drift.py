"""Newcomers, and clients whose data have changed: who goes to which cluster, and when a new cluster is founded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coterie.methods.embedding.bits import Bits
from coterie.methods.embedding.centroids import Centroids
from coterie.methods.embedding.rules import choose
from coterie.methods.embedding.split_half import joined
from coterie.methods.embedding.ward import Ints

_FOUNDER = -2
"""The label of a client that will have a new cluster."""


@dataclass(frozen=True)
class Followed:
    """Every client's cluster now, the centres, and for each new cluster the old one that is nearest to it."""

    labels: Ints
    centroids: Centroids
    parents: list[int]


def follow(centroids: Centroids, labels: Ints, before: Bits, after: Bits, classes: int) -> Followed:
    """Put newcomers (label -1) and clients whose embeddings have changed with the nearest centre, or with new ones.

    Clients that are farther from all centres than members are from theirs found a cluster, together with others like
    them; a newcomer that is alone in this goes to the nearest centre. At usual flip probabilities a single embedding is
    too noisy for that; so each cluster that somebody has joined is then looked at again, and if the default rule finds
    several groups in it, they part. What a newcomer sent `before` does not count.
    """
    labels, newcomer = labels.copy(), labels < 0
    unchanged = ~newcomer & (before == after).all(1)
    changed = np.flatnonzero(~unchanged)
    strangers = changed[centroids.strangers(after[changed], before[~newcomer], labels[~newcomer])]
    for client in changed[~newcomer[changed]]:
        centroids = centroids.without_member(int(labels[client]), before[client])
    labels[changed] = -1
    founding = [group for group in _grouped(strangers, after, classes) if len(group) > 1 or not newcomer[group[0]]]
    labels[np.concatenate([*founding, np.zeros(0, np.int64)])] = _FOUNDER
    for client in changed[labels[changed] != _FOUNDER]:
        labels[client] = centroids.nearest(after[client][None])[0]
        centroids = centroids.with_member(int(labels[client]), after[client])
    for cluster in np.unique(labels[changed][labels[changed] != _FOUNDER]).tolist():
        leaving = _leaving(np.flatnonzero(labels == cluster), unchanged, after, classes)
        for client in np.concatenate(leaving) if leaving else ():
            centroids = centroids.without_member(cluster, after[client])
        founding += leaving
    # clients of one new group may have gone to different clusters first
    founders = joined(after, classes, founding)
    parents = [int(centroids.nearest(after[members].mean(0)[None])[0]) for members in founders]
    old = len(centroids)
    for members in founders:
        labels[members] = len(centroids)
        centroids = centroids.with_cluster(after[members])
    # too few of them in one cluster to be seen there
    for client in np.flatnonzero((labels < old) & (centroids.nearest(after) >= old)):
        centroids = centroids.without_member(int(labels[client]), after[client])
        labels[client] = centroids.nearest(after[client][None])[0]
        centroids = centroids.with_member(int(labels[client]), after[client])
    return Followed(labels, centroids, parents)


def nearest(centroids: Centroids, labels: Ints, bits: Bits) -> Followed:
    """Put newcomers (label -1) with the nearest centre, one after the other; the others stay where they are."""
    labels = labels.copy()
    for client in np.flatnonzero(labels < 0):
        labels[client] = centroids.nearest(bits[client][None])[0]
        centroids = centroids.with_member(int(labels[client]), bits[client])
    return Followed(labels, centroids, [])


def _grouped(members: Ints, bits: Bits, classes: int) -> list[Ints]:
    """The groups that the default rule finds among some clients, who may be none."""
    groups = choose(bits[members], classes).labels if len(members) else np.zeros(0, np.int64)
    return [members[groups == group] for group in np.unique(groups)]


def _leaving(members: Ints, unchanged: NDArray[np.bool_], bits: Bits, classes: int) -> list[Ints]:
    """The groups found in a cluster, but for the one with most unchanged members, which keeps its number."""
    groups = _grouped(members, bits, classes)
    stays = int(np.argmax([unchanged[group].sum() for group in groups]))
    return [group for number, group in enumerate(groups) if number != stays]

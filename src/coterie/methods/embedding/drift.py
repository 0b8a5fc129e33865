"""Ours, not in the paper: clients whose data have changed, and newcomers unlike all others, may found a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.core.samples import ClientId
from coterie.core.states import concat, row, spread
from coterie.methods.base import Log
from coterie.methods.embedding.bits import Bits, pack_bits, unpack_bits
from coterie.methods.embedding.clustering.centroids import Centroids, Followed, nearest
from coterie.methods.embedding.clustering.rules import choose
from coterie.methods.embedding.clustering.split_half import joined
from coterie.methods.embedding.clustering.ward import Ints
from coterie.methods.embedding.messages import EmbeddedClusters

_FOUNDER = -2
"""The label of a client that will have a new cluster."""


def with_embeddings(
    state: EmbeddedClusters, ids: Sequence[ClientId], bits: Bits, classes: int, *, found: bool = True
) -> tuple[EmbeddedClusters, Log]:
    """The state after these clients, newcomers or not, have sent these bits; the others are as they were.

    With `found` clients that are unlike all others may found clusters; without, newcomers go to the nearest centre.
    """
    assert state.centroids is not None
    known = sorted(state.cluster)
    sent = dict(zip(ids, bits, strict=True))
    had = unpack_bits(torch.stack([state.bits[client] for client in known]), bits.shape[1])
    newcomers = [client for client in ids if client not in state.cluster]
    after = np.stack([sent.get(client, own) for client, own in zip(known, had, strict=True)])
    fresh = np.stack([sent[client] for client in newcomers]) if newcomers else after[:0]
    before, after = np.concatenate([had, fresh]), np.concatenate([after, fresh])
    labels = np.array(state.of([*known, *newcomers]), np.int64)
    if newcomers and not found:
        now = nearest(state.centroids, labels, after)
    else:
        now = follow(state.centroids, labels, before, after, classes)
    models = state.models
    for parent in now.parents:
        models = concat([models, spread(row(models, parent), 1)])
    state = replace(
        state,
        models=models,
        centroids=now.centroids,
        cluster=dict(zip([*known, *newcomers], now.labels.tolist(), strict=True)),
        bits={**state.bits, **{client: pack_bits(own) for client, own in sent.items()}},
    )
    moved = int((now.labels != labels)[: len(known)].sum())
    return state, {"moved": moved, "founded": len(now.parents)}


def follow(centroids: Centroids, labels: Ints, before: Bits, after: Bits, classes: int) -> Followed:
    """Put newcomers (label -1) and clients whose embeddings have changed with the nearest centre, or with new ones.

    Clients that are farther from all centres than members are from theirs found a cluster, together with others like
    them; a newcomer that is alone in this goes to the nearest centre. At usual flip probabilities a single embedding is
    too noisy for that; so each cluster that a client has joined is then looked at again, and if `halves` finds
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


def _grouped(members: Ints, bits: Bits, classes: int) -> list[Ints]:
    """The groups that the rule "halves" finds among some clients, who may be none."""
    groups = choose(bits[members], classes, "halves").labels if len(members) else np.zeros(0, np.int64)
    return [members[groups == group] for group in np.unique(groups)]


def _leaving(members: Ints, unchanged: NDArray[np.bool_], bits: Bits, classes: int) -> list[Ints]:
    """The groups found in a cluster, but for the one with most unchanged members, which keeps its number."""
    groups = _grouped(members, bits, classes)
    stays = int(np.argmax([unchanged[group].sum() for group in groups]))
    return [group for number, group in enumerate(groups) if number != stays]

"""Cluster centres that follow their members one by one; newcomers go to the nearest, as in the paper (section IV)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.methods.embedding.bits import Bits
from coterie.methods.embedding.clustering.ward import Floats, Ints

_FAR = 6.0
"""Standard deviations beyond the usual distance of members to their centre, from which a client is a stranger."""


@dataclass(frozen=True)
class Centroids:
    """The mean embedding of every cluster and how many members it has."""

    means: Tensor
    sizes: Tensor

    @classmethod
    def of(cls, bits: Bits, labels: Ints) -> Centroids:
        """The centres of given clusters, numbered from 0."""
        groups = int(labels.max()) + 1
        shares = np.eye(groups)[labels]
        sizes = shares.sum(0)
        return cls(torch.from_numpy((shares.T @ bits) / sizes[:, None]), torch.from_numpy(sizes))

    def __len__(self) -> int:
        return len(self.means)

    def distances(self, bits: NDArray[np.generic]) -> Floats:
        """Squared distances of embeddings to all centres, [clients, clusters]."""
        x, means = bits.astype(np.float64), self.means.numpy()
        squared = (x**2).sum(1)[:, None] - 2 * x @ means.T + (means**2).sum(1)[None]
        return np.asarray(np.maximum(squared, 0))

    def nearest(self, bits: NDArray[np.generic]) -> Ints:
        """The nearest centre of each embedding; the first one among equals."""
        return np.asarray(self.distances(bits).argmin(1), np.int64)

    def with_member(self, cluster: int, bits: Bits) -> Centroids:
        """After a client has joined: mean + (x - mean) / (n + 1)."""
        means, sizes = self.means.clone(), self.sizes.clone()
        sizes[cluster] += 1
        means[cluster] += (torch.from_numpy(bits.astype(np.float64)) - means[cluster]) / sizes[cluster]
        return Centroids(means, sizes)

    def without_member(self, cluster: int, bits: Bits) -> Centroids:
        """After a client has left: mean - (x - mean) / (n - 1); the last one leaves its centre behind."""
        means, sizes = self.means.clone(), self.sizes.clone()
        sizes[cluster] -= 1
        if sizes[cluster] > 0:
            means[cluster] -= (torch.from_numpy(bits.astype(np.float64)) - means[cluster]) / sizes[cluster]
        return Centroids(means, sizes)

    def with_cluster(self, bits: Bits) -> Centroids:
        """With one more cluster, of these members, [members, bits]."""
        mean = torch.from_numpy(bits.astype(np.float64).mean(0))
        size = torch.tensor([len(bits)], dtype=self.sizes.dtype)
        return Centroids(torch.cat([self.means, mean[None]]), torch.cat([self.sizes, size]))

    def strangers(self, bits: Bits, members: Bits, labels: Ints) -> NDArray[np.bool_]:
        """Which embeddings are farther from all centres than members (their bits and clusters are given) ever are.

        Members are measured against the centre of the others of their cluster, which is n / (n - 1) times as far.
        """
        sizes = self.sizes.numpy()[labels]
        own = self.distances(members)[np.arange(len(labels)), labels]
        usual = (own * (sizes / np.maximum(sizes - 1, 1)) ** 2)[sizes > 1]
        if len(usual) < 2:
            return np.zeros(len(bits), bool)
        limit = usual.mean() + _FAR * usual.std()
        return np.asarray(self.distances(bits).min(1) > limit)


@dataclass(frozen=True)
class Followed:
    """Every client's cluster now, the centres, and for each new cluster the old one that is nearest to it."""

    labels: Ints
    centroids: Centroids
    parents: list[int]


def nearest(centroids: Centroids, labels: Ints, bits: Bits) -> Followed:
    """Put newcomers (label -1) with the nearest centre, one after the other; the others stay where they are."""
    labels = labels.copy()
    for client in np.flatnonzero(labels < 0):
        labels[client] = centroids.nearest(bits[client][None])[0]
        centroids = centroids.with_member(int(labels[client]), bits[client])
    return Followed(labels, centroids, [])

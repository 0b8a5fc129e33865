"""What embedding clustering keeps between rounds, and what passes between its server and its clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from coterie.core.samples import ClientId
from coterie.core.states import Stack
from coterie.methods.base import Models
from coterie.methods.embedding.autoencoder import Encoder
from coterie.methods.embedding.clustering.centroids import Centroids


@dataclass(frozen=True)
class Compression:
    """One round of federated pre-training: the autoencoder, and which round it is."""

    autoencoder: Encoder
    turn: int


@dataclass(frozen=True)
class Compressed:
    """A client's autoencoder after local training and its number of samples."""

    autoencoder: Models
    size: Tensor


@dataclass(frozen=True)
class Embedded:
    """A client's embedding, with or without the classes it holds: eight bits a byte."""

    bits: Tensor


@dataclass(frozen=True)
class EmbeddedClusters:
    """The autoencoder, one model and one centre per cluster, and every client's cluster and embedding as last read."""

    autoencoder: Encoder
    models: Stack
    cluster: dict[str, int]
    bits: dict[str, Tensor]
    centroids: Centroids | None = None
    heights: Tensor | None = None
    usual: Tensor | None = None
    """What answers are read by (`copies.usual_bits`)."""

    def of(self, ids: Sequence[ClientId]) -> list[int]:
        """The clusters of the given clients, -1 for one that has none yet."""
        return [self.cluster.get(client, -1) for client in ids]

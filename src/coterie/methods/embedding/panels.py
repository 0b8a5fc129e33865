"""What a report shows of embeddings."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from coterie.core.panels import Heatmap, Lines, Panel, Table, Text, image_grid
from coterie.core.samples import ClientId
from coterie.methods.embedding.autoencoder import Encoder
from coterie.methods.embedding.bits import Bits, unpack_bits
from coterie.methods.embedding.clustering.ward import squared_distances
from coterie.methods.embedding.messages import EmbeddedClusters
from coterie.methods.embedding.privacy import epsilon_per_bit, epsilon_total
from coterie.methods.embedding.settings import EmbeddingSettings

_MOST_MERGES = 20
_MOST_CLIENTS = 100
_MOST_CLASSES = 10


def embedding_panels(
    settings: EmbeddingSettings, state: EmbeddedClusters, ids: Sequence[ClientId], truth: Sequence[int] | None
) -> list[Panel]:
    """The tree's heights, distances between clients, the clusters, what the decoder makes of them, the privacy."""
    known = [i for i, client in enumerate(ids) if client in state.bits]
    if not known or state.centroids is None:
        return []
    some, autoencoder, heights = [ids[i] for i in known], state.autoencoder, state.heights
    bits = unpack_bits(torch.stack([state.bits[client] for client in some]), state.centroids.means.shape[1])
    clusters = state.of(some)
    panels: list[Panel] = [_clusters(clusters, None if truth is None else [truth[i] for i in known])]
    if heights is not None and len(heights):
        last = heights.flip(0)[:_MOST_MERGES]
        panels.append(
            Lines(
                "Heights of the last merges of the Ward tree",
                list(range(1, len(last) + 1)),
                {"height": last.tolist()},
                x_label="clusters left after the merge",
                y_label="height",
            )
        )
    panels.append(_distances(bits, clusters))
    if len(autoencoder.shape) == 3 and autoencoder.shape[0] in (1, 3):
        panels.append(_decoded(autoencoder, bits, clusters))
    flips = [settings.flip_of(client) for client in some]
    panels.append(_privacy(flips, bits.shape[1], 2 if settings.reembed else 1))
    if state.usual is not None:
        panels.append(
            Text(
                "Classes that clients lack",
                [
                    f"Clients also say which classes they hold, {len(state.usual)} bits flipped in the same way, and "
                    f"send a code up to {settings.copies} times where classes are missing: read such codes as flipped "
                    "less, and the classes held as told (docs/privacy.md)."
                ],
            )
        )
    return panels


def _clusters(clusters: Sequence[int], truth: Sequence[int] | None) -> Table:
    rows: list[list[str | float | bool | None]] = []
    for cluster in sorted(set(clusters)):
        members = [i for i, own in enumerate(clusters) if own == cluster]
        groups = (
            ""
            if truth is None
            else ", ".join(
                f"{[truth[i] for i in members].count(group)} of group {group}"
                for group in sorted({truth[i] for i in members})
            )
        )
        rows.append([cluster, len(members), groups])
    return Table("Clusters", ["cluster", "clients", "true groups"], rows)


def _distances(bits: Bits, clusters: Sequence[int]) -> Heatmap:
    order = np.argsort(clusters, kind="stable")[:_MOST_CLIENTS]
    share = squared_distances(bits[order]) / bits.shape[1]
    labels = [f"cluster {clusters[i]}" for i in order]
    return Heatmap("Share of bits in which clients differ, by cluster", share.round(3).tolist(), labels, labels)


def _decoded(autoencoder: Encoder, bits: Bits, clusters: Sequence[int]) -> Panel:
    """The server's best look at the data: the decoder applied to each cluster's mean bits, class by class."""
    classes = min(bits.shape[1] // autoencoder.code, _MOST_CLASSES)
    kinds = sorted(set(clusters))
    means = np.stack([bits[np.asarray(clusters) == kind].mean(0) for kind in kinds])
    codes = torch.from_numpy(means.reshape(len(kinds), -1, autoencoder.code)[:, :classes]).float()
    images = torch.stack([autoencoder.decode(own) for own in codes])
    return image_grid(
        "What the server can draw from the clusters' mean embeddings",
        images,
        [f"cluster {kind}" for kind in kinds],
        [f"class {k}" for k in range(classes)],
    )


def _privacy(flips: Sequence[float], length: int, reports: int) -> Text:
    """What the flips of the clients, each with its own probability, give; `reports` as in `epsilon_total`."""
    often = "once" if reports == 1 else "whenever its data are embedded again (of a bit at most two answers)"
    kinds = sorted(set(flips))
    chance = f"{kinds[0]:g}" if len(kinds) == 1 else f"{kinds[0]:g} to {kinds[-1]:g}, as each client chose"
    given = [_epsilon(kind, length, reports) for kind in ([kinds[0]] if len(kinds) == 1 else [kinds[0], kinds[-1]])]
    return Text(
        "Privacy",
        [
            f"Every client sends {length} bits ({-(-length // 8)} bytes) {often}; each is flipped with probability "
            f"{chance}. As local differential privacy that is epsilon = {' to '.join(given)}. A guarantee worth the "
            "name needs a total near 1: the flips hinder reconstruction, they do not make the embedding private "
            "(docs/privacy.md)."
        ],
    )


def _epsilon(probability: float, length: int, reports: int) -> str:
    bit = epsilon_per_bit(probability)
    if math.isinf(bit):
        return "infinite (the bits are sent as they are)"
    return f"{bit:.2f} per bit, {epsilon_total(probability, length, reports):.0f} in total"

"""Choosing the clusters of 3,550 clients with 1,240 bits each, against refitting scikit-learn for every threshold."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import AgglomerativeClustering
from sklearn.metrics import calinski_harabasz_score

from coterie.core.rng import rng
from coterie.methods.embedding.clustering.rules import choose
from coterie.methods.embedding.clustering.ward import ward

CLIENTS, CLASSES, CODE, GROUPS = 3_550, 62, 20, 4
THRESHOLDS = 43
_REFITTED = 2
"""Thresholds at which scikit-learn is really refitted; each takes as long as any other, and 43 take minutes."""


def measure() -> list[dict[str, object]]:
    """Seconds of each rule's whole choice and how many times faster than 43 refits it is."""
    bits = _embeddings()
    heights = ward(bits).heights
    levels = np.linspace(heights[-10] * 0.5, heights[-1], _REFITTED)
    each = _seconds(lambda: [_refit(bits, float(level)) for level in levels]) / _REFITTED
    rows: list[dict[str, object]] = [
        {
            "choice of the clusters": f"scikit-learn refitted for {THRESHOLDS} thresholds",
            "seconds": round(each * THRESHOLDS, 1),
            "times faster": 1.0,
            "clusters": "",
        }
    ]
    for rule in ("halves", "paper", "height_ratio", "calinski_harabasz"):
        found: list[int] = []
        taken = _seconds(partial(_note_choice, bits, rule, found))
        rows.append(
            {
                "choice of the clusters": f"coterie, rule {rule}",
                "seconds": round(taken, 2),
                "times faster": round(each * THRESHOLDS / taken, 0),
                "clusters": found[0],
            }
        )
    return rows


def _note_choice(bits: NDArray[np.uint8], rule: str, found: list[int]) -> None:
    found.append(choose(bits, CLASSES, rule).clusters)


def _refit(bits: NDArray[np.uint8], threshold: float) -> float:
    """What the authors' objective does at one threshold."""
    labels = AgglomerativeClustering(n_clusters=None, distance_threshold=threshold).fit_predict(bits)
    return float(calinski_harabasz_score(bits, labels)) if 1 < labels.max() + 1 < len(bits) else 0.0


def _embeddings() -> NDArray[np.uint8]:
    """Clients in four groups, a fifth of all bits a coin toss, a tenth flipped."""
    generator = rng(0, "benchmark")
    length = CLASSES * CODE
    patterns = generator.random((GROUPS, length)) < 0.5
    chance = np.where(generator.random((GROUPS, length)) < 0.2, 0.5, patterns)
    groups = np.arange(CLIENTS) % GROUPS
    bits = generator.random((CLIENTS, length)) < chance[groups]
    return (bits ^ (generator.random(bits.shape) < 0.1)).astype(np.uint8)


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began

"""Clients in groups: k-means, and how far two ways to group them agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from math import comb

import numpy as np
import torch
from torch import Tensor

from coterie.core.threads import one_thread_everywhere

_ALIKE = 0.9
_STARTS, _STEPS = 10, 5


def k_means(points: Tensor, k: int, seed: int, start: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The group of every point [N] and the groups' centres [k, D]: by ten fresh starts, or by five steps from `start`.

    There must be at least k points.
    """
    from sklearn.cluster import KMeans

    if start is None:
        search = KMeans(k, n_init=_STARTS, random_state=seed % 2**32)
    else:
        search = KMeans(k, init=start.numpy(), n_init=1, max_iter=_STEPS)
    with one_thread_everywhere():  # more threads add in an order that changes from call to call
        found = search.fit(points.double().numpy())
    return torch.from_numpy(found.labels_).long(), torch.from_numpy(found.cluster_centers_.copy())


def different(points: Tensor) -> int:
    """How many different points there are: more groups than these k-means cannot find."""
    return len(np.unique(points.double().numpy(), axis=0))


def adjusted_rand(one: Sequence[Hashable], other: Sequence[Hashable]) -> float:
    """The adjusted Rand index of Hubert and Arabie (1985): 1 for the same groups, 0 for what chance gives.

    It counts pairs of clients: together in both, in one alone, in the other alone, in neither. (scikit-learn has this
    number too, but a process needs 1.8 s to import it, and every run computes the number.)
    """
    both = _pairs(list(zip(one, other, strict=True)))
    one_alone, other_alone = _pairs(one) - both, _pairs(other) - both
    if not one_alone and not other_alone:
        return 1.0
    neither = comb(len(one), 2) - both - one_alone - other_alone
    expected = (both + one_alone) * (one_alone + neither) + (both + other_alone) * (other_alone + neither)
    return 2 * (both * neither - one_alone * other_alone) / expected


def _pairs(labels: Sequence[Hashable]) -> int:
    """How many pairs have the same label."""
    return sum(comb(size, 2) for size in Counter(labels).values())


def alike(one: Mapping[str, int], other: Mapping[str, int]) -> bool:
    """Whether both group the clients that they share in nearly the same way: one of 40 may be elsewhere, of 24 none."""
    shared = sorted(set(one) & set(other))
    first, second = ([groups[name] for name in shared] for groups in (one, other))
    return bool(shared) and adjusted_rand(first, second) >= _ALIKE

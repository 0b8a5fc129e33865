"""Groups of clients from the directions of their first updates (ours; no part of the MD-ICFL paper).

Clients that trained from one common model pull it in directions that differ by group. Of every client a running sum of
these directions is kept, so that rounds add up and clients that were absent count with what they showed before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from coterie.core.states import (
    Stack,
    State,
    cosine,
    count,
)
from coterie.core.task import Task


def seeding_layer(task: Task) -> str:
    """The first fully connected layer that is not the classifier; else the last layer before the classifier.

    The classifier is the layer with weights that the network uses last. Its updates follow the labels rather than the
    groups, so it is taken only where a network has no other layer.
    """
    weights = _in_order_of_use(task)
    inner = weights[:-1] or weights
    linear = [name for name in inner if task.template[name].dim() == 2]
    return linear[0] if linear else inner[-1]


def _in_order_of_use(task: Task) -> list[str]:
    """The names of the matrices of weights, in the order in which a forward pass is done with their layers.

    The order in which a network lists its parameters says less: a head may be written down before the body.
    """
    names = [name for name in task.parameters if task.template[name].dim() > 1]
    module, calls = task.module.eval(), []
    hooks = [
        layer.register_forward_hook(lambda *_, name=name: calls.append(name)) for name, layer in module.named_modules()
    ]
    try:
        with torch.no_grad():
            module(task.inputs(torch.zeros(1, *task.shape)))
    finally:
        for hook in hooks:
            hook.remove()
    last = {layer: place for place, layer in enumerate(calls)}
    used = [name for name in names if name.rpartition(".")[0] in last]
    return sorted(used, key=lambda name: last[name.rpartition(".")[0]])


def directions(models: Stack, common: State, layer: str, shares: Tensor | None = None, ridge: float = 1.0) -> Tensor:
    """The direction in which each client pulled the layer, less what all pulled alike: unit rows [N, D].

    With the clients' label shares, less what their labels explain by a ridge regression.
    """
    updates = (models[layer] - common[layer]).reshape(count(models), -1).float()
    if shares is None:
        rest = updates - updates.mean(0)
    else:
        p = shares.float()
        gram = p.T @ p + ridge * torch.eye(p.shape[1])
        rest = updates - p @ torch.linalg.solve(gram, p.T @ updates)
    return torch.nn.functional.normalize(rest, dim=1)


def cosine_groups(vectors: Mapping[str, Tensor], k: int) -> dict[str, int]:
    """K groups by average linkage of 1 - cosine, numbered by the first client of each in the order of names."""
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    names = sorted(vectors)
    if len(names) <= k:
        return {name: number for number, name in enumerate(names)}
    gaps = (1 - cosine(torch.stack([vectors[name] for name in names]))).clamp_min(0).double()
    gaps = (gaps + gaps.T) / 2
    tree = linkage(squareform(gaps.fill_diagonal_(0).numpy(), checks=False), "average")
    return numbered(names, fcluster(tree, k, "maxclust").tolist())


def numbered(names: Sequence[str], labels: Sequence[int]) -> dict[str, int]:
    """Labels renamed 0, 1, ... in the order in which they first occur."""
    order: dict[int, int] = {}
    return {name: order.setdefault(label, len(order)) for name, label in zip(names, labels, strict=True)}


def same_partition(one: Mapping[str, int], other: Mapping[str, int]) -> bool:
    """Whether both group the clients that they share in the same way, whatever the numbers."""
    shared = sorted(set(one) & set(other))
    first, second = (numbered(shared, [groups[name] for name in shared]) for groups in (one, other))
    return bool(shared) and first == second


def steady(groups: Mapping[str, int], before: Mapping[str, int]) -> bool:
    """Whether groups came out twice alike and are to be believed.

    A client all by itself is rather an outlier of the first rounds than a group (on digits of four sources: one client
    alone and two sources in one, twice, before the four came out), unless there are too few clients for more.
    """
    sizes = Counter(groups.values())
    crowded = len(groups) >= 2 * len(sizes)
    return same_partition(groups, before) and not (crowded and min(sizes.values()) == 1)

"""Ours, not in the paper: the first clusters from the directions of the clients' first updates.

Clients that trained from one common model pull it in directions that differ by group. Of every client a running sum of
these directions is kept, so that rounds add up and clients that were absent count with what they showed before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from coterie.core.aggregate import combined
from coterie.core.federation import Federation
from coterie.core.samples import ClientId
from coterie.core.states import (
    Stack,
    State,
    cosine,
    count,
    row,
    spread,
    stack,
)
from coterie.core.task import Task
from coterie.methods.base import Log, Models
from coterie.methods.clustered import cluster_sizes
from coterie.methods.md_icfl.distance import known_shares
from coterie.methods.md_icfl.messages import Distanced, Seeds
from coterie.methods.md_icfl.settings import Settings

_MEMORY = 0.5  # what a client's earlier directions still count


def seeding_round(
    method: Settings, state: Distanced, fed: Federation, ids: Sequence[ClientId]
) -> tuple[Distanced, Log]:
    """One round of plain FedAvg; the clusters, once directions give the same K groups in successive rounds."""
    assert state.seeds is not None
    common = row(state.models, 0)
    replies = fed.ask(method.train, ids, each=Models(state.models), rows=[0] * len(ids))
    replies = method.usable(fed, replies, spread(common, len(replies.ids)))
    if replies.value is None:
        return state, {}
    trained, weights = replies.value.model, method.weights(replies.value)
    labels = method.seeding == "cosine-labels"
    shares = known_shares(state.labels, replies.ids, fed.task.classes) if labels else None
    vectors = dict(state.seeds.vectors)
    turned = directions(trained, common, seeding_layer(fed.task), shares)
    for client, vector in zip(replies.ids, turned, strict=True):
        vectors[client] = _MEMORY * vectors[client] + vector if client in vectors else vector.clone()
    enough = len(vectors) >= max(method.k, len(fed.ids) / 2)
    groups = cosine_groups(vectors, method.k) if enough else {}
    # the one model as FedAvg computes it, bit for bit
    everyone = torch.zeros(len(replies.ids), dtype=torch.int64)
    models = spread(row(combined(method.aggregate, trained, weights, everyone, stack([common])), 0), method.k)
    alike = state.seeds.alike + 1 if steady(groups, state.seeds.groups) else 1
    if not groups or (alike < method.agree and fed.round + 1 < method.patience):
        alone = dict.fromkeys(vectors, 0)
        return replace(state, models=models, cluster=alone, seeds=Seeds(vectors, groups, alike)), {"seeded": 0}
    mine = torch.tensor([groups[client] for client in replies.ids])
    models = combined(method.aggregate, trained, weights, mine, models, spread(common, len(replies.ids)))
    log: Log = {"seeded": 1, "sizes": cluster_sizes(mine, method.k)}
    return replace(state, models=models, cluster=groups, seeds=None, held=fed.round + 1 + method.hold), log


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

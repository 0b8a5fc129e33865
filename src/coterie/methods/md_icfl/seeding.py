"""Ours, not in the paper: the first clusters from the directions of the clients' first updates.

Clients that trained from one common model pull it in directions that differ by group. Of every client a running mean of
these directions is kept (`looks`), so that rounds add up and clients that were absent count with what they showed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from coterie.core.aggregate import combined
from coterie.core.federation import Federation
from coterie.core.groupings import alike
from coterie.core.layers import in_order_of_use, telling_matrix, weight_matrices
from coterie.core.samples import ClientId
from coterie.core.states import Stack, State, count, row, spread, stack
from coterie.core.task import Task
from coterie.methods.base import Log, Models
from coterie.methods.clustered import cluster_sizes
from coterie.methods.md_icfl.distance import known_shares
from coterie.methods.md_icfl.looks import believed, compared, enough_looks, judgement_due, seen_again, with_looks
from coterie.methods.md_icfl.messages import Distanced, Doubts, Seeds
from coterie.methods.md_icfl.second_look import NEVER_MEASURED
from coterie.methods.md_icfl.settings import MDICFLSettings

_LARGE = 0.5
"""A group is large against the others from this part of the way on between an equal share of the clients and all."""
_REST = 1 / 3
"""... if the others together have at least this part of an equal share."""


def seeding_round(
    method: MDICFLSettings, state: Distanced, fed: Federation, ids: Sequence[ClientId]
) -> tuple[Distanced, Log]:
    """One round of plain FedAvg; the clusters, once directions give the same K groups in successive judgements.

    A judgement is due when there are as many new directions as clients: every round if all take part.
    """
    assert state.seeds is not None
    common = row(state.models, 0)
    replies = fed.ask(method.train, ids, each=Models(state.models), rows=[0] * len(ids))
    replies = method.usable(fed, replies, spread(common, len(replies.ids)))
    if replies.value is None:
        return state, {}
    trained, weights = replies.value.model, method.weights(replies.value)
    labels = method.seeding == "cosine-labels"
    shares = known_shares(state.labels, replies.ids, fed.task.classes) if labels else None
    seeds = with_looks(state.seeds, replies.ids, pulls(trained, common, seeding_layer(fed.task)), shares, len(fed.ids))
    # the one model as FedAvg computes it, bit for bit
    everyone = torch.zeros(len(replies.ids), dtype=torch.int64)
    models = spread(row(combined(method.aggregate, trained, weights, everyone, stack([common])), 0), method.k)
    due = judgement_due(seeds, len(fed.ids))
    vectors = compared(seeds, len(replies.ids), len(fed.ids))
    if due:
        seeds = judged(seeds, vectors, method.k)
    enough = due and len(seeds.groups) >= max(method.k, len(fed.ids) / 2)
    sure = seeds.alike >= method.agree and enough_looks(seeds, method.agree, len(fed.ids))
    if not enough or (not sure and seeds.turns < method.patience):
        return replace(state, models=models, cluster=dict.fromkeys(seeds.vectors, 0), seeds=seeds), {"seeded": 0}
    groups = placed(seeds, vectors)
    mine = torch.tensor([groups[client] for client in replies.ids])
    models = combined(method.aggregate, trained, weights, mine, models, spread(common, len(replies.ids)))
    log: Log = {"seeded": 1, "sizes": cluster_sizes(mine, method.k)}
    held = method.held_until(fed, len(ids))
    doubts = Doubts(doubted=dict.fromkeys(sorted(set(groups) - set(seeds.groups)), NEVER_MEASURED))
    return replace(state, models=models, cluster=groups, seeds=None, held=held, doubts=doubts), log


def judged(seeds: Seeds, vectors: Mapping[ClientId, Tensor], k: int) -> Seeds:
    """The groups of those who were looked at often enough; agreement counts on fresh looks alone."""
    groups = direction_groups({client: vectors[client] for client in believed(seeds)}, k)
    fresh = {client: seeds.groups[client] for client in seen_again(seeds) if client in seeds.groups}
    agreed = seeds.alike + 1 if steady(groups, fresh) else 1
    return replace(seeds, groups=groups, alike=agreed, turns=seeds.turns + 1, judged=dict(seeds.looks))


def placed(seeds: Seeds, vectors: Mapping[ClientId, Tensor]) -> dict[str, int]:
    """Everybody's group: as judged, or that whose mean is nearest."""
    rest = [client for client in vectors if client not in seeds.groups]
    if not rest:
        return seeds.groups
    numbers = range(max(seeds.groups.values()) + 1)
    members = [[vectors[c] for c, group in seeds.groups.items() if group == number] for number in numbers]
    centres = torch.stack([torch.stack(own).mean(0) for own in members])
    unplaced = torch.stack([vectors[client] for client in rest])
    nearest = (unplaced[:, None] - centres[None]).square().sum(2).argmin(1).tolist()
    return {**seeds.groups, **dict(zip(rest, nearest, strict=True))}


def seeding_layer(task: Task) -> str:
    """The first fully connected layer that is not the classifier; else the last layer before the classifier.

    The classifier is the layer with weights that the network uses last. Its updates follow the labels rather than the
    groups, so it is taken only where a network has no other layer.
    """
    weights = in_order_of_use(task, weight_matrices(task))
    return telling_matrix(task, weights[:-1] or weights)


def pulls(models: Stack, common: State, layer: str) -> Tensor:
    """The direction in which each client pulled the layer: unit rows [N, D]."""
    updates = (models[layer] - common[layer]).reshape(count(models), -1).float()
    return torch.nn.functional.normalize(updates, dim=1)


def direction_groups(vectors: Mapping[str, Tensor], k: int) -> dict[str, int]:
    """K groups by average linkage, numbered by the first client of each in the order of names.

    By the vectors' distances, if that gives a large group; else by their directions alone. What is left of a large
    group's pulls is short and points anywhere (`looks`), which directions take for many groups. Where no group is
    large, lengths tell of uneven labels rather than of groups; where nearly all are one group, of single odd clients.
    """
    names = sorted(vectors)
    if len(names) <= k:
        return {name: number for number, name in enumerate(names)}
    rows = torch.stack([vectors[name] for name in names]).double()
    by_distance = _linked(rows, k)
    share = max(Counter(by_distance).values()) / len(names)
    if (1 - _LARGE) / k + _LARGE <= share <= 1 - _REST / k:
        return numbered(names, by_distance)
    return numbered(names, _linked(torch.nn.functional.normalize(rows, dim=1), k))


def _linked(rows: Tensor, k: int) -> list[int]:
    """Average linkage of the squared distances; of unit rows these are twice 1 - cosine."""
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import pdist

    found: list[int] = fcluster(linkage(pdist(rows.numpy(), "sqeuclidean"), "average"), k, "maxclust").tolist()
    return found


def numbered(names: Sequence[str], labels: Sequence[int]) -> dict[str, int]:
    """Labels renamed 0, 1, ... in the order in which they first occur."""
    order: dict[int, int] = {}
    return {name: order.setdefault(label, len(order)) for name, label in zip(names, labels, strict=True)}


def steady(groups: Mapping[str, int], before: Mapping[str, int]) -> bool:
    """Whether groups came out twice alike and are to be believed.

    A client all by itself is rather an outlier of the first rounds than a group (on digits of four sources: one client
    alone and two sources in one, twice, before the four came out), unless there are too few clients for more.
    """
    sizes = Counter(groups.values())
    crowded = len(groups) >= 2 * len(sizes)
    return alike(groups, before) and not (crowded and min(sizes.values()) == 1)

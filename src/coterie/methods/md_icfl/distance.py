"""The federated model distance of MD-ICFL: how differently two models read samples of a cluster (equations 3 to 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.evaluation import probabilities
from coterie.core.states import Stack, count, split
from coterie.core.task import Task
from coterie.core.threads import on_all_cores, portion

_FARTHEST = 2.0  # the L1 distance of two class distributions that share no class
_BLOCK = 1 << 24  # probabilities that are in memory at a time


@dataclass(frozen=True)
class Readings:
    """What client models make of the cluster models' samples.

    `distances` [N, K, C] is d_ij^k, `outputs` [N, K, C, classes] the mean class probabilities of client model i on the
    samples of cluster j and class k.
    """

    distances: Tensor
    outputs: Tensor


def label_shares(labels: Sequence[Tensor], classes: int) -> Tensor:
    """p_i(y), the share of every class in each client's labels, [N, classes]; uniform for a client without labels."""
    counts = torch.stack([torch.bincount(y, minlength=classes) for y in labels]).double()
    total = counts.sum(1, keepdim=True)
    return torch.where(total > 0, counts / total.clamp_min(1), 1 / classes)


def known_shares(said: Mapping[str, Tensor], ids: Sequence[str], classes: int) -> Tensor:
    """p_i(y) of some clients as they said it, [N, classes]; uniform where a client's introduction was lost."""
    uniform = torch.full((classes,), 1 / classes, dtype=torch.float64)
    return torch.stack([said.get(client, uniform) for client in ids])


def read_samples(task: Task, clients: Stack, clusters: Stack, samples: Tensor) -> Readings:
    """All client models on all clusters' samples [K, C, M, ...], by stacked forward passes.

    d_ij^k is the mean over the M samples (the paper's sum: the same argmin). It lies in [0, 2] whatever the models are:
    a model whose outputs overflow is as far away as can be.
    """
    k, classes, per_class = samples.shape[:3]
    inputs = samples.reshape(k * classes * per_class, *samples.shape[3:])
    own = _cluster_outputs(task, clusters, inputs, k)

    def read(part: Stack) -> Readings:
        outputs = probabilities(task, part, inputs)
        gaps = (outputs - own).abs().sum(-1).nan_to_num(_FARTHEST).clamp(0.0, _FARTHEST)
        shape = (count(part), k, classes, per_class)
        return Readings(gaps.view(shape).mean(-1), outputs.view(*shape, -1).mean(3).nan_to_num(0.0))

    rows = portion(count(clients), _BLOCK // max(own.numel(), 1))
    parts = on_all_cores(read, split(clients, rows))
    return Readings(torch.cat([part.distances for part in parts]), torch.cat([part.outputs for part in parts]))


def weighted(distances: Tensor, shares: Tensor) -> Tensor:
    """d_ij = sum_k p_i(k) d_ij^k (equation 4): [N, K, C] and [N, C] -> [N, K]."""
    return (distances.double() * shares.double()[:, None]).sum(-1)


def nearest(distances: Tensor, shares: Tensor) -> Tensor:
    """s_i = argmin_j d_ij: [N, K, C] and [N, C] -> [N]; ties go to the lowest number."""
    return weighted(distances, shares).argmin(1)


def own_outputs(outputs: Tensor, cluster: Sequence[int], k: int) -> Tensor:
    """[N, K, C, classes] -> [K, C, classes]: each cluster's samples as its own clients read them, 0 without any."""
    mine = [[i for i, number in enumerate(cluster) if number == j] for j in range(k)]
    return torch.stack(
        [outputs[rows, j].mean(0) if rows else torch.zeros_like(outputs[0, j]) for j, rows in enumerate(mine)]
    )


def _cluster_outputs(task: Task, clusters: Stack, inputs: Tensor, k: int) -> Tensor:
    """Each cluster model on its own samples: [K * C * M, classes]."""
    parts = inputs.chunk(k)
    models = [{name: tensor[j : j + 1] for name, tensor in clusters.items()} for j in range(k)]
    return torch.cat([probabilities(task, model, part)[0] for model, part in zip(models, parts, strict=True)])

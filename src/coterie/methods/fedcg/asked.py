"""Ours, not in the paper: domains that were found by asking the clients (`domains = "auto"`, see `how_many`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from coterie.core.cohort import Cohort
from coterie.core.evaluation import score
from coterie.core.federation import Federation
from coterie.core.groupings import alike
from coterie.core.samples import ClientId
from coterie.core.states import Stack, State, count, mean
from coterie.methods.fedcg.features import FeatureFinder
from coterie.methods.fedcg.messages import Domains
from coterie.methods.fedcg.wrapping import domain_net

if TYPE_CHECKING:
    from coterie.methods.fedcg.method import FedCG

_PREFIX = "network."


def begun(method: FedCG, fed: Federation, models: Stack, cluster: Mapping[ClientId, int]) -> Domains:
    """The state that goes on from groups with a model each.

    Who is in which domain is then found as the setting `find` says. By their features (the default) clients are put
    into as many domains as there are groups; if these are others, the groups differ in what the inputs do not show
    (labels that are swapped or cycled). Then the groups are the domains.
    """
    state = method.blank(mean_network(fed, models, cluster))
    if method.domains == 1:
        return replace(state, cluster=dict(cluster), pooled=True)
    if method.find != "features":
        return method.finder.begin(state, fed)
    finder = method.finder
    assert isinstance(finder, FeatureFinder)
    found, came = finder.found(fed)
    if found is not None and alike(cluster, dict(zip(came, found.labels.tolist(), strict=True))):
        return finder.taken(state, found)
    return replace(state, cluster=dict(cluster), pooled=True)


def mean_network(fed: Federation, models: Stack, cluster: Mapping[ClientId, int]) -> State:
    """The network that begins with the mean of the groups' models, and with residuals as usual.

    What a group's last layer differs by was tried as its first residuals: not better, since the layers before it have
    the mean alone.
    """
    members = torch.bincount(torch.tensor(list(cluster.values())), minlength=count(models)).double()
    state = fed.task.init(fed.seed)
    middle = {_PREFIX + name: tensor for name, tensor in mean(models, members).items()}
    return {name: middle.get(name, tensor) for name, tensor in state.items()}


def least_loss_domain(c: Cohort, models: Stack) -> Tensor:
    """The domain in which the one network fits each client's training part best, [C]."""
    net = domain_net(c.task)
    losses = []
    for d in range(net.domains):
        there = c.with_extra([torch.full((len(client.train),), d) for client in c.data])
        losses.append(torch.cat([score(c.task, models, client.train).loss for client in there.data]))
    return torch.stack(losses).argmin(0)

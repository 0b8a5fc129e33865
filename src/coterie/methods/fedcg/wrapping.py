"""From the user's network to the one with domain layers, and back."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from torch import nn

from coterie.core.task import Task
from coterie.methods.fedcg.network import DomainNet


@dataclass(frozen=True, eq=False)
class Wrapping:
    """Builds the network with domain layers; `plain` is the user's own, or what builds it."""

    wrap: Callable[[nn.Module], DomainNet]
    plain: nn.Module | Callable[[], nn.Module]

    def __call__(self) -> DomainNet:
        """A fresh network."""
        return self.wrap(copy.deepcopy(self.plain) if isinstance(self.plain, nn.Module) else self.plain())


@lru_cache(maxsize=8)
def plain(task: Task) -> Task:
    """The task without domain layers; made once, because its scratch network is."""
    assert isinstance(task.model, Wrapping)
    return task.with_model(task.model.plain)


def domain_net(task: Task) -> DomainNet:
    """The network with domain layers that a task trains."""
    net = task.module
    assert isinstance(net, DomainNet)
    return net

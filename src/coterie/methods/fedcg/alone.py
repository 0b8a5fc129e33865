"""The trained network by itself: it finds the domains of its inputs and answers, without a federation around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.methods.fedcg.network import DomainNet

Told = Callable[[Tensor], Tensor]
"""Inputs of the network -> how probable each domain is for each of them, [n, D]."""


class RoutedNet(nn.Module):
    """A network with domain layers that routes its own inputs; all inputs of a call count as one client's."""

    looks_at_all: ClassVar[bool] = True

    def __init__(self, network: DomainNet, told: Told, soft: bool) -> None:
        super().__init__()
        self.network, self.soft = network, soft
        self._told = told

    def forward(self, x: Tensor) -> Tensor:
        """Every sample by its own domains, or all by what they look like together."""
        weights = self._told(x)
        if not self.soft:
            # numbers group the batch by its contents, which no recorded network can do; weights of 1 are the same
            recorded = torch._C._is_tracing()
            weights = F.one_hot(weights.argmax(1), self.network.domains).to(x.dtype) if recorded else weights.argmax(1)
        answer: Tensor = self.network(x, weights)
        return answer

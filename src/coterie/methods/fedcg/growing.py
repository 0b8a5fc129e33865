"""Ours, not in the paper: a network that gets residuals for one more domain in mid-run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from coterie.core.federation import Federation
from coterie.core.states import State
from coterie.methods.fedcg.messages import Domains

if TYPE_CHECKING:
    from coterie.methods.fedcg.method import FedCG


def grown(method: FedCG, state: Domains) -> FedCG:
    """The method with as many domains as the state has; its orders tell the clients how many."""
    number = method.domains if state.looks is None else len(state.looks.members)
    return method if number == method.domains else method.of(number)


@contextmanager
def during(method: FedCG, state: Domains, fed: Federation) -> Iterator[FedCG]:
    """The same, with a federation that trains such a network meanwhile."""
    before, fed.task = fed.task, method.task_in(state, fed.task)
    try:
        yield grown(method, state)
    finally:
        fed.task = before


def with_domain(model: State, residuals: Sequence[str], domain: int, parent: int) -> State:
    """The network with a domain, new or free until now, that begins with the residuals of another."""
    new = dict(model)
    for name in residuals:
        old = model[name]
        new[name] = torch.cat([old[:domain], old[parent : parent + 1], old[domain + 1 :]])
    return new

"""Ours, not in the paper: how clients that join later find their cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from coterie.core.federation import Federation
from coterie.core.samples import ClientId
from coterie.core.states import stack
from coterie.methods.base import Models
from coterie.methods.md_icfl.distance import read_samples
from coterie.methods.md_icfl.introductions import introduced
from coterie.methods.md_icfl.messages import Distanced
from coterie.methods.md_icfl.second_look import neutral_start

if TYPE_CHECKING:
    from coterie.methods.md_icfl.method import MDICFL


def with_newcomers(method: MDICFL, state: Distanced, fed: Federation, new: Sequence[ClientId]) -> Distanced:
    """Newcomers train one model, and go to the cluster whose samples the result reads as its model does.

    From a cluster's own model a client stays near that cluster, so where all clusters have one origin, newcomers begin
    with a neutral model (`second_look`). While seeded clusters are held, newcomers wait.
    """
    new = [client for client in new if client not in state.cluster]
    if method.k == 1 or state.seeds or not state.cluster or not new or fed.round < state.held:
        return state  # there is one model, or there are no clusters yet
    state = introduced(method, state, fed, new)
    samples = method.pseudo_data(state, fed).samples if state.samples is None else state.samples
    models, rows = state.models, [method.present_cluster(state, fed, client) for client in new]
    if method.start == "shared":
        start = neutral_start(fed.task, fed.task.init(fed.seed), models, state.cluster, samples)
        models, rows = stack([start]), [0] * len(new)
    replies = fed.ask(method.train, new, each=Models(models), rows=rows)
    if replies.value is None:
        return state
    readings = read_samples(fed.task, replies.value.model, state.models, samples)
    found = method.nearest_clusters(state, fed, replies.ids, readings.distances)
    return replace(state, cluster={**state.cluster, **found})

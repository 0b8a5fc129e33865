"""Ours, not in the paper: clients that do not fit their cluster (any more) are looked at again, without prejudice.

A client begins with the model of its cluster, so after local training it is near that cluster even where it does not
belong: the distances to the other clusters hardly ever say so. What does tell is its distance to its own cluster, which
is far greater than its fellows'. Such a client begins its next round with a model that knows no cluster better than
another, as newcomers do, and goes to the cluster that is nearest then. Wrong first clusters and clients whose data have
changed are found alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log
from statistics import median
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from coterie.core.federation import Federation
from coterie.core.samples import ClientId
from coterie.core.states import Stack, State, concat, count, mean, stack
from coterie.core.task import Task
from coterie.methods.md_icfl.distance import Readings, known_shares, read_samples, weighted
from coterie.methods.md_icfl.messages import Distanced, Doubts

if TYPE_CHECKING:
    from coterie.methods.md_icfl.method import MDICFL

NEVER_MEASURED = -99.0
"""The logarithm of a distance that is below any real one: a client that was doubted without a measurement."""
_FEWEST = 5
"""From so many known distances one can tell what is usual in a cluster; else those of all clusters are taken."""
_LEAST_SPREAD = 0.1
_LEAST_TIMES = log(2.0)
"""A distance is never strange that is less than twice the usual one, however alike the others are."""
_TINY = 1e-12
_SHARES = (1.0, 0.8, 0.6, 0.4, 0.2)
"""How much of the clusters' mean is in a neutral start; the first that knows little is taken."""
_KNOWS_LITTLE = 1.0
"""Half of the largest distance of two models, which is 2."""


def neutral_start(task: Task, initial: State, models: Stack, cluster: Mapping[str, int], samples: Tensor) -> State:
    """Where somebody begins whose cluster is open: the mean of the clusters' models in use, unless it knows too much.

    A mean that reads every cluster's samples as that cluster does (it can, where clusters parted late) changes little
    in local training, and is near to all of them for every client. So it is drawn towards the initial model until it
    is half as far from the clusters as can be. Clusters count alike: a mean by members is near the largest one.
    """
    used = torch.tensor([number in set(cluster.values()) for number in range(count(models))])
    both = stack([mean(models, used.double()), initial])
    for share in _SHARES:
        start = mean(both, torch.tensor([share, 1.0 - share]))
        distances = read_samples(task, stack([start]), models, samples).distances[:, used]
        if float(distances.mean()) >= _KNOWS_LITTLE:
            return start
    return start


def doubts_after(
    state: Distanced, ids: Sequence[ClientId], distances: Tensor, deviations: float, margin: float
) -> Doubts:
    """Who of these clients, which began with their clusters' models, does not fit: distances are [N, K].

    Strange is a distance to its cluster that is many standard deviations beyond the usual (by median and median
    deviation of logarithms), or a cluster that is nearer than the client's by the margin.
    """
    doubts, home = state.doubts, [state.cluster[client] for client in ids]
    own = [max(float(row[place]), _TINY) for row, place in zip(distances, home, strict=True)]
    logs = dict(zip(ids, map(log, own), strict=True))
    known = doubts.usual if len(doubts.usual) >= _FEWEST else {**logs, **doubts.usual}
    strange: dict[ClientId, float] = {}
    for client, place, row in zip(ids, home, distances, strict=True):
        limit = max(_usual_limit(known, state.cluster, place, deviations), _again(doubts, client))
        nearer = float(row.min()) < (1 - margin) * float(row[place])
        if logs[client] > limit or (nearer and logs[client] > _again(doubts, client)):
            strange[client] = logs[client]
    fine = {client: value for client, value in logs.items() if client not in strange}
    return replace(doubts, usual={**doubts.usual, **fine}, doubted={**doubts.doubted, **strange})


def looked_again(
    state: Distanced, found: Mapping[ClientId, int], distances: Mapping[ClientId, Tensor], margin: float
) -> tuple[dict[ClientId, int], Doubts]:
    """The clusters of clients that were looked at again, which found these nearest, and what is left of the doubts.

    A client leaves its cluster at once for one that is nearer by the margin, and for any other once two looks in
    succession name it. The distances [K] are empty under strong privacy, where two looks are always needed. Who stays
    is not doubted again for so little; who moves is a stranger to its new cluster.
    """
    moves: dict[ClientId, int] = {}
    doubted, named, cleared = dict(state.doubts.doubted), dict(state.doubts.named), dict(state.doubts.cleared)
    usual = {client: value for client, value in state.doubts.usual.items() if client not in found}
    for client, place in found.items():
        home, far = state.cluster.get(client), distances.get(client)
        sure = home is None or (far is not None and float(far[place]) < (1 - margin) * float(far[home]))
        if place != home and not sure and named.get(client) != place:
            named[client] = place
            continue
        moves[client] = place
        value = doubted.pop(client, None)
        named.pop(client, None)
        cleared.pop(client, None)
        if place == home and value is not None:
            cleared[client] = value
    return moves, Doubts(usual, doubted, named, cleared)


def _usual_limit(known: Mapping[str, float], cluster: Mapping[str, int], place: int, deviations: float) -> float:
    fellows = [value for client, value in known.items() if cluster.get(client) == place]
    values = fellows if len(fellows) >= _FEWEST else list(known.values())
    middle = median(values)
    spread = 1.4826 * median(abs(value - middle) for value in values)  # a normal distribution's standard deviation
    return middle + max(deviations * max(spread, _LEAST_SPREAD), _LEAST_TIMES)


def _again(doubts: Doubts, client: ClientId) -> float:
    """What a client that was cleared once must be beyond to be doubted again."""
    return doubts.cleared.get(client, NEVER_MEASURED) + _LEAST_TIMES


def open_clients(method: MDICFL, state: Distanced, fed: Federation, ids: Sequence[ClientId]) -> list[ClientId]:
    """Ours: whose cluster is open once there are clusters: who was never met, and who does not fit (any more)."""
    if not method.seeded or state.samples is None or fed.round < state.held:
        return []
    return [client for client in ids if client not in state.cluster or client in state.doubts.doubted]


def with_neutral(state: Distanced, fed: Federation) -> Stack:
    """The cluster models and, as row K, the model that clients begin with who are looked at again."""
    assert state.samples is not None
    start = neutral_start(fed.task, fed.task.init(fed.seed), state.models, state.cluster, state.samples)
    return concat([state.models, stack([start])])


def second_look(
    method: MDICFL,
    state: Distanced,
    fed: Federation,
    found: Mapping[ClientId, int],
    ids: Sequence[ClientId],
    readings: Readings,
    trusted: bool,
) -> tuple[dict[ClientId, int], Distanced]:
    """Ours: what those who were looked at again do now, and whom the distances of the others cast doubt on."""
    shares = known_shares(state.labels, ids, fed.task.classes)  # under strong privacy all classes count alike
    far = dict(zip(ids, weighted(readings.distances, shares), strict=True))
    moves, doubts = looked_again(state, found, far if method.privacy == "weak" else {}, method.margin)
    state = replace(state, doubts=doubts)
    at_home = [
        client for client in ids if client in state.cluster and client not in doubts.doubted and client not in found
    ]
    if not trusted or not at_home or fed.round < state.held:
        return moves, state
    own = torch.stack([far[client] for client in at_home])
    return moves, replace(state, doubts=doubts_after(state, at_home, own, method.doubt, method.margin))

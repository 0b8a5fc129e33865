"""Ours: what the seeding remembers of every client's directions, however few clients take part in a round.

A direction tells something only against what all clients pull alike. The mean of a round's participants does not tell
that: two clients are always opposite to each other, and one is nothing. So the centre is a running mean over about as
many directions as there are clients; with the clients' label shares it is a running regression on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from coterie.core.samples import ClientId
from coterie.methods.md_icfl.messages import Seeds

_FORGETTING = 0.5
"""What a client's earlier directions lose at each new one if everybody takes part; less, the fewer do.

The directions of the first rounds tell little where the network has not begun to learn, so they must fade. With few
clients a round each direction is noisier, since the common model follows the last participants, and more must add up.
"""
_RIDGE = 1.0
"""Holds the regression on label shares where few clients have been seen."""
_MOST = 0.8
"""The share of the clients that must have been looked at often enough before groups are believed."""
_TURN = 0.75
"""New looks a client after which groups are judged again; below 1, since some replies are always missing."""
_NOTHING = 1e-6
"""A direction shorter than this after centring does not count as a look: that of the first client, seen alone."""
_FEW = 1 / 12
"""With a smaller share of the clients in a round only the directions of vectors are compared, not their lengths.

Lengths tell a large group apart: the centre is near to it, and what is left of its members' pulls is short and points
anywhere. But with few clients a round the centre lags behind the model, and lengths tell chance alone.
"""


def with_looks(seeds: Seeds, ids: Sequence[ClientId], pulls: Tensor, shares: Tensor | None, registered: int) -> Seeds:
    """One more look at these clients, whose unit updates are given, [N, D]; `shares` is p_i(y), [N, classes].

    A client whose model did not move has shown nothing.

    Earlier looks at the federation fade so that about `registered` of them count: with full participation, those of
    this round alone.
    """
    features = torch.ones(len(pulls), 1) if shares is None else shares.float()
    fading = max(0.0, 1.0 - len(pulls) / max(registered, 1))
    gram, cross = features.T @ features, features.T @ pulls
    if seeds.gram is not None and seeds.cross is not None:
        gram, cross = fading * seeds.gram + gram, fading * seeds.cross + cross
    ridge = 0.0 if shares is None else _RIDGE
    rest = pulls - features @ torch.linalg.solve(gram + ridge * torch.eye(len(gram)), cross)
    vectors, looks = dict(seeds.vectors), dict(seeds.looks)
    memory = 1.0 - _FORGETTING * (1.0 - fading)
    still = {client for client, pull in zip(ids, pulls, strict=True) if float(pull.norm()) <= _NOTHING}
    lengths = rest.norm(dim=1)
    unit = lengths if few(len(pulls), registered) else lengths.mean().expand_as(lengths)
    for client, vector, length in zip(ids, rest / unit.clamp_min(_NOTHING)[:, None], lengths.tolist(), strict=True):
        if length > _NOTHING and client not in still:
            met = looks.get(client, 0)
            earlier = sum(memory ** (turn + 1) for turn in range(met))
            vectors[client] = (earlier * vectors[client] + vector) / (earlier + 1) if met else vector
            looks[client] = met + 1
    return replace(seeds, vectors=vectors, looks=looks, gram=gram, cross=cross)


def few(participants: int, registered: int) -> bool:
    """Whether so few clients take part in a round that the lengths of vectors tell nothing."""
    return participants < _FEW * registered


def compared(seeds: Seeds, participants: int, registered: int) -> dict[ClientId, Tensor]:
    """What tells two clients apart: the distance of these vectors."""
    if not few(participants, registered):
        return seeds.vectors
    return {client: torch.nn.functional.normalize(vector, dim=0) for client, vector in seeds.vectors.items()}


def judgement_due(seeds: Seeds, registered: int) -> bool:
    """Whether there were nearly as many looks since the last judgement as there are clients."""
    return sum(seeds.looks.values()) - sum(seeds.judged.values()) >= _TURN * registered


def seen_again(seeds: Seeds) -> list[ClientId]:
    """Clients of whom there are looks since the last judgement."""
    return [client for client, looks in seeds.looks.items() if looks > seeds.judged.get(client, 0)]


def believed(seeds: Seeds) -> list[ClientId]:
    """Clients with at least half as many looks as the mean: the directions of the others are mostly chance."""
    least = sum(seeds.looks.values()) / max(len(seeds.looks), 1) / 2
    return [client for client, looks in seeds.looks.items() if looks >= least]


def enough_looks(seeds: Seeds, least: int, registered: int) -> bool:
    """Whether most of the clients have been looked at so often."""
    return sum(looks >= least for looks in seeds.looks.values()) >= _MOST * registered

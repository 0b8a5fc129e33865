"""Do groups pay? The loss of every client under the mean of its fellow members' models, its own left out (ours).

No validation part is needed, since a client's own update is not in what it judges. Losses are taken under the client's
own label prior: with logits + log p_i(y) - log q(y), where p_i are its label shares and q those of the model's makers.
Otherwise clients with like labels would look like a group: they fit each other's prior.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.core.cohort import Cohort
from coterie.core.evaluation import probabilities, score
from coterie.core.lengths import believable, capped
from coterie.core.samples import ClientId, Samples
from coterie.core.states import Stack, State, count, row, stack, unflat
from coterie.core.task import Task
from coterie.methods.auto.messages import GroupModels, Groups, Pair, SplitQuestion

_LEAST_SHARE = 1e-2  # a class that a client has not met may still come
PSEUDO = 10.0
SURE = 2.5
"""The t that a gain must have, over the clients that have answered."""
_UNEVEN_SURE = 4.0  # where labels are uneven, of which a prior takes out most and not all
_WORTH = 0.01
"""... and the share of the loss that it must be."""
_BOTH = 4.0
_FEWEST = 4


def losses_under_prior(
    task: Task, models: Stack, makers: Tensor, samples: Samples, own: Samples, pseudo: float = PSEUDO
) -> Tensor:
    """The loss of some models [K] on a client's samples, with the label shares of `own` samples in place of `makers`.

    Few samples say little of their client's shares, so these begin at the makers' [K, classes], as if of `pseudo` more.
    """
    if not task.has_classes or not len(samples) or samples.extra is not None:
        return score(task, models, samples).loss
    counts = torch.bincount(own.y.flatten(), minlength=task.classes).double()
    shares = (counts + pseudo * makers.double()) / max(len(own) + pseudo, 1.0)
    shift = torch.log(shares + _LEAST_SHARE) - torch.log(makers.double() + _LEAST_SHARE)
    found = probabilities(task, models, task.inputs(samples.x)).double()
    if found.dim() != 3 or found.shape[-1] != task.classes:  # more outputs than classes, or an output per pixel
        return score(task, models, samples).loss
    logits = torch.log(found.clamp_min(1e-12)) + shift[:, None]
    return torch.stack([F.cross_entropy(each, samples.y.flatten()) for each in logits])


def losses_of_pair(c: Cohort, sent: Pair) -> Tensor:
    """On the clients: the loss of either of two models, each client's own pair, under its own label prior, [C, 2]."""
    pair = {name: torch.stack([tensor, sent.part[name]], 1) for name, tensor in sent.whole.items()}
    own = [client.train for client in c.data]
    return torch.stack(
        [losses_under_prior(c.task, row(pair, i), sent.shares[i], each, each) for i, each in enumerate(own)]
    )


def losses_of_all(c: Cohort, sent: GroupModels) -> Tensor:
    """On the clients: the losses of all groups' models under their own label prior, [C, K]."""
    own = [client.train for client in c.data]
    return torch.stack([losses_under_prior(c.task, sent.models, sent.shares, each, each) for each in own])


def shares_of(state: Groups, clients: Sequence[ClientId], classes: int) -> Tensor:
    """q(y) of what these clients make together: their label shares, weighed by their samples."""
    told = [(state.looks[i].shares, state.known[i].size) for i in clients if i in state.looks]
    if not told or not classes:
        return torch.full((classes,), 1 / max(classes, 1))
    weight = _weights([size for _, size in told]).float()
    return (torch.stack([share for share, _ in told]) * weight[:, None]).sum(0) / weight.sum()


def without(state: Groups, group: int, fellows: Sequence[ClientId]) -> State:
    """The model that these clients would have made of the group's last one: by their latest updates, however old."""
    base = row(state.before, group)
    known = [client for client in fellows if client in state.latest]
    if not known:
        return row(state.models, group)
    weight = _weights([state.known[client].size for client in known])
    change = (torch.stack([state.latest[i] for i in known]).double() * (weight / weight.sum())[:, None]).sum(0)
    origin = stack([base])
    moved = {name: tensor for name, tensor in origin.items() if tensor.is_floating_point()}
    wide = unflat(change[None], moved)
    return {name: (t + wide[name].to(t.dtype) if name in wide else t)[0] for name, t in origin.items()}


def _weights(sizes: Sequence[float]) -> Tensor:
    """What clients weigh by the samples they claim, [n]; as in a mean of their models, none much more than most."""
    claimed = torch.tensor(sizes, dtype=torch.float64).clamp_min(1e-9)
    return capped(claimed, torch.zeros(len(claimed), dtype=torch.int64))


def believed(question: SplitQuestion) -> SplitQuestion:
    """The question with answers that one liar cannot decide."""
    if len(question.gain) < _FEWEST:
        return question
    names = sorted(question.gain)
    told = torch.tensor([[question.gain[name], question.before[name]] for name in names], dtype=torch.float64)
    gain, before = believable(told).T.tolist()
    return replace(question, gain=dict(zip(names, gain, strict=True)), before=dict(zip(names, before, strict=True)))


def flat_updates(trained: Stack, sent: Stack) -> Tensor:
    """What clients changed, [C, D]: all floating-point entries, running means of BatchNorm too."""
    rows = count(trained)
    parts = [(t - sent[name]).reshape(rows, -1) for name, t in trained.items() if t.is_floating_point()]
    return torch.cat(parts, dim=1)


def verdict(question: SplitQuestion, members: int, even: bool = False) -> tuple[float, bool | None]:
    """The t of the clients' gains so far, and the decision: None while too few have answered.

    Where few take part, the updates of fellows are old and the gains small. There the directions, if they are clear,
    count too, unless labels are uneven (`even` is false): these move directions as well.
    """
    gains = np.array([question.gain[client] for client in sorted(question.gain)])
    if len(gains) < _FEWEST:
        return 0.0, None
    before = float(np.mean([question.before[client] for client in sorted(question.gain)]))
    t = float(gains.mean()) / max(float(gains.std(ddof=1)) / math.sqrt(len(gains)), 1e-12)
    pays = t > (SURE if even else _UNEVEN_SURE) and float(gains.mean()) > _WORTH * before
    if len(gains) >= 0.6 * members or (len(gains) >= 8 and pays and t > 2 * SURE):
        return t, pays or (even and min(question.evidence, t + 2.0) > 2.0 and question.evidence + t > _BOTH)
    return t, None


def parts_that_pay(question: SplitQuestion) -> dict[str, int]:
    """The accepted partition: parts whose own members do not gain stay together as the rest, part 0."""
    gains: dict[int, list[float]] = {}
    for client, part in question.part.items():
        gains.setdefault(part, []).extend([question.gain[client]] if client in question.gain else [])
    paying = [part for part in sorted(gains) if not gains[part] or float(np.mean(gains[part])) > 0]
    number = {part: place for place, part in enumerate(paying, start=0 if len(paying) == len(gains) else 1)}
    return {client: number.get(part, 0) for client, part in question.part.items()}

"""Which personal model a client ends with: its group's as it is, or fine-tuned gently or fully (ours).

In every fourth visit a model trained on one half of a client's data is judged on the other half, beside the
model that the client was sent. That one is judged under the client's own label prior, since what fine-tuning gains
by learning the client's label shares alone it loses where other labels come. One client's halves say little, so the
gains of all are put together: each client's own is shrunk towards the mean of all by as much as it is noise.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from coterie.core.cohort import Cohort
from coterie.core.evaluation import score
from coterie.core.optimiser import Optimiser
from coterie.core.samples import ClientId
from coterie.core.states import Stack
from coterie.core.training import local_sgd
from coterie.methods.auto.judgement import PSEUDO, believable, losses_under_prior

CHOICES = ("as it is", "fine-tuned gently", "fine-tuned")
TRIED = 2 * len(CHOICES)
"""Numbers that a look tells: the loss of every choice on either half."""
_GENTLY = 0.2  # the share of the rate
_MEMORY = 0.5  # what earlier looks still count


def gently(opt: Optimiser, round: int) -> Optimiser:
    """The same training at a fifth of the rate."""
    return replace(opt, lr=_GENTLY * opt.rate(round), lr_decay=1.0)


def tried(c: Cohort, sent: Stack, makers: Tensor, half: Cohort, other: Cohort, opt: Optimiser) -> Tensor:
    """The losses on the other half, [C, 3]: the model as sent, trained gently on this half, trained on this half."""
    soft = local_sgd(half, sent, gently(opt, c.round), purpose="try gently")
    trained = local_sgd(half, sent, opt, purpose="try")
    found = []
    for index, client in enumerate(other.data):
        as_sent, *tuned = ({name: t[index : index + 1] for name, t in m.items()} for m in (sent, soft, trained))
        told = (c.task, as_sent, makers[index][None], client.train, half.data[index].train)
        plain, *others = (score(c.task, each, client.train).loss for each in (as_sent, *tuned))
        best = torch.cat([plain, *(losses_under_prior(*told, pseudo) for pseudo in (0.0, PSEUDO))]).amin()
        found.append(torch.cat([best[None], *others]))
    return torch.stack(found)


def remembered(choices: Mapping[str, Tensor], client: ClientId, new: Tensor) -> Tensor:
    """What a client's halves say after one more look, [2, 3]."""
    losses = new.reshape(2, len(CHOICES)).double()
    return _MEMORY * choices[client] + (1 - _MEMORY) * losses if client in choices else losses


def chosen(choices: Mapping[str, Tensor], ids: Sequence[ClientId], skewed: Collection[ClientId] = ()) -> list[int]:
    """The personal model of each client, a place in `CHOICES`; of a client that has shown nothing, what most need.

    Those whose labels are `skewed` keep their group's model: their data cannot say what happens to labels they lack.
    """
    names = sorted(client for client in choices if client not in skewed)
    if len(names) < 2:
        return [0] * len(ids)
    place = {name: number for number, name in enumerate(names)}
    losses = torch.stack([choices[name] for name in names])
    gains = believable(losses[:, :, :1] - losses)  # [n, 2, 3]
    own, noise = gains.mean(1), (gains[:, 0] - gains[:, 1]).square() / 4
    mean, noise = own.mean(0), noise.mean(0)
    spread = (own.var(0) - noise).clamp_min(0)
    trust = spread / (spread + noise).clamp_min(1e-12)
    error = own.std(0) / len(names) ** 0.5
    kept = (trust * noise + (1 - trust).square() * error.square()).sqrt()
    sure = mean + trust * (own - mean) - kept
    usual = mean - error
    sure[:, 0], usual[0] = 0.0, 0.0
    none = torch.zeros_like(usual)
    return [int((sure[place[i]] if i in place else none if i in skewed else usual).argmax()) for i in ids]


def made(c: Cohort, models: Stack, choice: Tensor, opt: Optimiser) -> Stack:
    """On the client: the model it would use now, by the choice of each."""
    result = {name: tensor.clone() for name, tensor in models.items()}
    for number, how in ((1, gently(opt, c.round)), (2, opt)):
        rows = torch.nonzero(choice == number)[:, 0].tolist()
        if rows:
            some = replace(c, ids=tuple(c.ids[i] for i in rows), data=tuple(c.data[i] for i in rows), memory=())
            tuned = local_sgd(some, {name: t[rows] for name, t in models.items()}, how, purpose="personal")
            for name, tensor in tuned.items():
                result[name][rows] = tensor
    return result

"""Which personal model a client ends with: its group's as it is, fine-tuned gently or fully, or its own alone (ours).

In every fourth visit each of these is trained on one half of the client's data and judged on the other, or on its
validation part where it has one. One client's samples say little, so the gains of all are put together: each client's
own is shrunk towards the mean of all by as much as it is noise. The model that a client trains by itself, from the
common first one, never leaves it; a client goes on with it only while it is not clearly worse than the others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from coterie.core.cohort import Cohort
from coterie.core.evaluation import sample_losses
from coterie.core.optimiser import Optimiser
from coterie.core.samples import ClientId, Samples
from coterie.core.states import Stack, spread, take
from coterie.core.training import local_sgd
from coterie.methods.auto.judgement import believable
from coterie.methods.auto.looks import halves, has_classes
from coterie.methods.auto.visits import TRY_EVERY

CHOICES = ("as it is", "fine-tuned gently", "fine-tuned", "its own alone")
_ALONE = 3
_GENTLY = 0.2  # the share of the rate
_MEMORY = 0.5  # what earlier trials still count
_MOST_LOSS = 2.0  # of one sample: how sure a wrong answer was matters less than that it is wrong
_HOPELESS = 1.5


def gently(opt: Optimiser, round: int) -> Optimiser:
    """The same training at a fifth of the rate."""
    return replace(opt, lr=_GENTLY * opt.rate(round), lr_decay=1.0)


def tried(c: Cohort, sent: Stack, opt: Optimiser) -> Tensor:
    """On the clients: the losses of all choices on either half, [C, 2 * choices]; they go on with their own models."""
    hopeful = c.recall_tensor("hopeful", torch.ones(len(c)))
    first, pair = spread(c.task.init(c.seed), len(c)), halves(c)
    found = []
    for number, (half, other) in enumerate((pair, pair[::-1])):
        alone = _on(half, c.recall(f"alone on half {number}", first), opt, hopeful)
        c.keep(f"alone on half {number}", alone)
        soft = local_sgd(half, sent, gently(opt, c.round), purpose="try gently")
        models = (sent, soft, local_sgd(half, sent, opt, purpose="try"), alone)
        judges = [_judged_on(c, index, number, client.train) for index, client in enumerate(other.data)]
        found.append(torch.stack([_losses(c, models, index, judge) for index, judge in enumerate(judges)]))
    losses = torch.stack(found, 1)
    mean = losses.mean(1)
    hopeful = hopeful * (mean[:, _ALONE] <= _HOPELESS * mean[:, :_ALONE].amin(1) + 1e-3)
    c.keep("hopeful", hopeful)
    c.keep("alone", _on(c, c.recall("alone", first), opt, hopeful))
    return losses.flatten(1)


def _on(c: Cohort, models: Stack, opt: Optimiser, hopeful: Tensor) -> Stack:
    """The clients' own models, trained for as long as those of the groups since the last trial, where there is hope."""
    longer = replace(opt, epochs=TRY_EVERY * opt.epochs)
    return _some(c, models, torch.nonzero(hopeful)[:, 0], longer, "alone")


def _some(c: Cohort, models: Stack, rows: Tensor, opt: Optimiser, purpose: str) -> Stack:
    """The models, some of which their clients have trained."""
    result = {name: tensor.clone() for name, tensor in models.items()}
    if len(rows):
        places = rows.tolist()
        some = replace(c, ids=tuple(c.ids[i] for i in places), data=tuple(c.data[i] for i in places), memory=())
        for name, tensor in local_sgd(some, take(models, rows), opt, purpose=purpose).items():
            result[name][rows] = tensor
    return result


def _judged_on(c: Cohort, index: int, number: int, other: Samples) -> Samples:
    """What a trial is judged on: the other half, or every second sample of the validation part."""
    valid = c.data[index].valid
    return other if valid is None or len(valid) < 2 else valid.take(torch.arange(number, len(valid), 2))


def _losses(c: Cohort, models: Sequence[Stack], index: int, samples: Samples) -> Tensor:
    """The mean loss of every model on a client's samples; none of these says nothing."""
    if not len(samples):
        return torch.zeros(len(models), dtype=torch.float64)
    rows = {name: torch.stack([m[name][index] for m in models]) for name in models[0]}
    losses = sample_losses(c.task, rows, samples)
    return (losses.clamp_max(_MOST_LOSS) if has_classes(c.task) else losses).mean(1).nan_to_num(1e9, 1e9, 1e9)


def remembered(choices: Mapping[str, Tensor], client: ClientId, new: Tensor) -> Tensor:
    """What a client's halves say after one more trial, [2, choices]."""
    losses = new.reshape(2, len(CHOICES)).double()
    return _MEMORY * choices[client] + (1 - _MEMORY) * losses if client in choices else losses


def chosen(choices: Mapping[str, Tensor], ids: Sequence[ClientId], lacking: Collection[ClientId] = ()) -> list[int]:
    """The personal model of each client, a place in `CHOICES`; of a client that has shown nothing, what most need.

    Those that lack classes keep their group's model: their data cannot say what happens to labels they lack.
    """
    names = sorted(client for client in choices if client not in lacking)
    if len(names) < 2:
        return [0] * len(ids)
    place = {name: number for number, name in enumerate(names)}
    losses = torch.stack([choices[name] for name in names])
    gains = believable(losses[:, :, :1] - losses)  # [n, 2, choices]
    own, noise = gains.mean(1), (gains[:, 0] - gains[:, 1]).square() / 4
    mean, noise = own.mean(0), noise.mean(0)
    spread = (own.var(0) - noise).clamp_min(0)
    trust = spread / (spread + noise).clamp_min(1e-12)
    error = own.std(0) / len(names) ** 0.5
    kept = (trust * noise + (1 - trust).square() * error.square()).sqrt()
    sure = mean + trust * (own - mean) - kept
    usual = mean - error
    sure[:, 0], usual[0], usual[_ALONE] = 0.0, 0.0, -torch.inf  # nobody has a model of its own yet who has not tried
    none = torch.zeros_like(usual)
    return [int((sure[place[i]] if i in place else none if i in lacking else usual).argmax()) for i in ids]


def made(c: Cohort, models: Stack, choice: Tensor, opt: Optimiser) -> Stack:
    """On the client: the model it would use now, by the choice of each."""
    own, alone = c.recall("alone", models), choice == _ALONE
    result = {name: torch.where(alone.view(-1, *[1] * (t.dim() - 1)), own[name], t) for name, t in models.items()}
    for number, how in ((1, gently(opt, c.round)), (2, opt)):
        result = _some(c, result, torch.nonzero(choice == number)[:, 0], how, "personal")
    return result

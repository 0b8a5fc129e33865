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
from coterie.core.lengths import believable
from coterie.core.optimiser import Optimiser
from coterie.core.samples import ClientId, Samples
from coterie.core.states import Stack, spread
from coterie.methods.auto.looks import halves
from coterie.methods.auto.pace import trained
from coterie.methods.auto.visits import TRY_EVERY

CHOICES = ("as it is", "fine-tuned gently", "fine-tuned", "its own alone")
_GENTLY, _FULLY, _ALONE = 1, 2, 3
_MEMORY = 0.5  # what earlier trials still count
_MOST_LOSS = 2.0  # of one sample: how sure a wrong answer was matters less than that it is wrong
_HOPELESS = 1.5


def tried(c: Cohort, sent: Stack, opt: Optimiser, tuning: Optimiser, pace: Tensor) -> Tensor:
    """On the clients: the losses of all choices on either half, [C, 2 * choices]; they go on with their own models.

    `tuning` is the gentle fine-tuning, the same as beside every method; `opt` is a round's training.
    """
    hopeful = c.recall_tensor("hopeful", torch.ones(len(c)))
    first, pair = spread(c.task.init(c.seed), len(c)), halves(c)
    found = []
    for number, (half, other) in enumerate((pair, pair[::-1])):
        alone = _on(half, c.recall(f"alone on half {number}", first), opt, pace * hopeful)
        c.keep(f"alone on half {number}", alone)
        soft = trained(half, sent, tuning, pace, "try gently")
        models = (sent, soft, trained(half, sent, opt, pace, "try"), alone)
        judges = [_judged_on(c, index, number, client.train) for index, client in enumerate(other.data)]
        found.append(torch.stack([_losses(c, models, index, judge) for index, judge in enumerate(judges)]))
    losses = torch.stack(found, 1)
    mean = losses.mean(1)
    hopeful = hopeful * (mean[:, _ALONE] <= _HOPELESS * mean[:, :_ALONE].amin(1) + 1e-3)
    c.keep("hopeful", hopeful)
    c.keep("alone", _on(c, c.recall("alone", first), opt, pace * hopeful))
    return losses.flatten(1)


def _on(c: Cohort, models: Stack, opt: Optimiser, pace: Tensor) -> Stack:
    """The clients' own models, trained for as long as those of the groups since the last trial, where there is hope."""
    return trained(c, models, replace(opt, epochs=TRY_EVERY * opt.epochs), pace, "alone")


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
    return (losses.clamp_max(_MOST_LOSS) if c.task.has_classes else losses).mean(1).nan_to_num(1e9, 1e9, 1e9)


def remembered(choices: Mapping[str, Tensor], client: ClientId, new: Tensor) -> Tensor:
    """What a client's halves say after one more trial, [2, choices]."""
    losses = new.reshape(2, len(CHOICES)).double()
    return _MEMORY * choices[client] + (1 - _MEMORY) * losses if client in choices else losses


def chosen(
    choices: Mapping[str, Tensor],
    ids: Sequence[ClientId],
    lacking: Collection[ClientId] = (),
    alike: Collection[ClientId] = (),
) -> list[int]:
    """The personal model of each client, a place in `CHOICES`; of a client that has shown nothing, what most need.

    Those that lack classes keep their group's model: their data cannot say what happens to labels they lack. Those that
    are `alike` have nothing to adapt to; that training further lowers the loss of samples which the group's model has
    seen before is no evidence. A client leaves what is best for most where its own data are sure of it.
    """
    names = sorted(client for client in choices if client not in lacking)
    if len(names) < 2:
        return [0] * len(ids)
    place = {name: number for number, name in enumerate(names)}
    losses = torch.stack([choices[name] for name in names])
    usual = _sure(believable(losses[:, :, :1] - losses))[1]
    usual[0], usual[_ALONE] = 0.0, -torch.inf  # nobody has a model of its own yet who has not tried
    best = int(usual.argmax())
    sure = _sure(believable(losses[:, :, best : best + 1] - losses))[0]
    sure[:, best] = 0.0
    none = torch.zeros_like(usual)
    found = []
    for client in ids:
        gain = (sure[place[client]] if client in place else none if client in lacking else usual).clone()
        if client in alike:
            gain[[_GENTLY, _FULLY]] = -torch.inf
        found.append(int(gain.argmax()))
    return found


def _sure(gains: Tensor) -> tuple[Tensor, Tensor]:
    """What each client gains surely by every choice [n, choices], and what most gain [choices], of [n, 2, choices].

    The gains of a client on its halves are shrunk to the mean of all by as much as they are noise; less the errors.
    """
    own, noise = gains.mean(1), (gains[:, 0] - gains[:, 1]).square() / 4
    mean, noise = own.mean(0), noise.mean(0)
    spread = (own.var(0) - noise).clamp_min(0)
    trust = spread / (spread + noise).clamp_min(1e-12)
    error = own.std(0) / len(own) ** 0.5
    kept = (trust * noise + (1 - trust).square() * error.square()).sqrt()
    return mean + trust * (own - mean) - kept, mean - error


def made(c: Cohort, models: Stack, choice: Tensor, opt: Optimiser, tuning: Optimiser, pace: Tensor) -> Stack:
    """On the client: the model it would use now, by the choice of each."""
    own, alone = c.recall("alone", models), choice == _ALONE
    result = {name: torch.where(alone.view(-1, *[1] * (t.dim() - 1)), own[name], t) for name, t in models.items()}
    gently = trained(c, result, tuning, pace * (choice == _GENTLY), "personal")
    return trained(c, gently, opt, pace * (choice == _FULLY), "personal")

"""A model for one client alone: the best of some candidates, each as it is and after a little training on its own data.

All of it happens on the client, and its own held-out samples decide; nothing of it leaves the client but the scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from coterie.core.cohort import Cohort
from coterie.core.evaluation import own_losses
from coterie.core.optimiser import Optimiser
from coterie.core.samples import ClientData
from coterie.core.states import Stack, concat, take
from coterie.core.training import local_sgd

_HELD_OUT = 0.2
_FEWEST = 2
"""With fewer training samples nothing can be held out: such a client keeps the first candidate as it is."""


@dataclass(frozen=True)
class Personal:
    """What each client of a cohort takes, [C] each: the model, which candidate it began as, and whether it is tuned."""

    models: Stack
    candidate: Tensor
    tuned: Tensor


def personal_models(c: Cohort, candidates: Sequence[Stack], opt: Optimiser) -> Personal:
    """Every client's best of the candidates and of their fine-tuned forms, by its own validation loss.

    Each candidate is a stack with one model a client. A client without a validation part holds out a fifth of its
    training part for the choice, and trains the tuned model that it chose once more, on all of it. Of equal losses the
    earlier candidate is taken, and the untuned form of it. With `opt.epochs = 0` nothing is tuned.
    """
    trial = held_out(c)
    forms: list[Stack] = []
    for models in candidates:
        forms += [models, local_sgd(trial, models, opt, purpose="finetune")] if opt.epochs else [models]
    losses = torch.stack([own_losses(trial, form, "valid") for form in forms])
    losses = losses.nan_to_num(torch.inf, torch.inf, torch.inf)
    losses[1:, torch.tensor([client.valid is None and len(client.train) < _FEWEST for client in c.data])] = torch.inf
    best = losses.argmin(0)
    step = 2 if opt.epochs else 1
    candidate, tuned = best // step, best % step == 1
    chosen = [_own_row(forms, int(form), index) for index, form in enumerate(best)]
    again = [i for i, client in enumerate(c.data) if bool(tuned[i]) and client.valid is None]
    if again:
        start = concat([_own_row(candidates, int(candidate[i]), i) for i in again])
        whole = local_sgd(_some(c, again), start, opt, purpose="finetune")
        for place, index in enumerate(again):
            chosen[index] = take(whole, torch.tensor([place]))
    return Personal(concat(chosen), candidate, tuned)


def held_out(c: Cohort) -> Cohort:
    """The same clients, each with a validation part: its own, or a fifth of its training part."""

    def parted(index: int, client: ClientData) -> ClientData:
        if client.valid is not None or len(client.train) < _FEWEST:
            return client
        order = c.rng(index, "held out").permutation(len(client.train))
        cut = max(1, round(_HELD_OUT * len(client.train)))
        kept, held = (torch.from_numpy(np.sort(part)) for part in (order[cut:], order[:cut]))
        return ClientData(client.train.take(kept), lambda: client.test, client.train.take(held))

    return replace(c, data=tuple(parted(index, client) for index, client in enumerate(c.data)))


def _some(c: Cohort, places: Sequence[int]) -> Cohort:
    """Some clients of a cohort."""
    memory = tuple(c.memory[i] for i in places) if c.memory else ()
    return replace(c, ids=tuple(c.ids[i] for i in places), data=tuple(c.data[i] for i in places), memory=memory)


def _own_row(stacks: Sequence[Stack], which: int, index: int) -> Stack:
    return {name: tensor[index : index + 1] for name, tensor in stacks[which].items()}

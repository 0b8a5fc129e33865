"""Ours, not in the paper: the weight of the residuals (lambda) is learnt only while held-out loss does not object.

A layer with residuals learns 1 + lambda^2 times as fast as it would without: a step on V moves the output by lambda^2
times what the same step on the common part does. That is good where a mean of many clients takes out the noise, and
bad where a domain has one client a round or none (docs/results/fedcg.md has the numbers). So clients judge: before
they train, they take the loss with the weight as it is and with smaller ones, on samples that they do not train on,
or, where there is no such part, on those that they have not trained on in this visit. If a smaller weight does better,
for sure, it is taken, and from then on

- the weight is held: what clients learn of it is not taken over any more, it only becomes smaller if they say so again;
- domains that are absent in a round hold what all share: it moves by the share of all samples that those present have.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.core.cohort import Cohort
from coterie.core.evaluation import score
from coterie.core.federation import Federation, Nothing
from coterie.core.lengths import believable
from coterie.core.samples import ClientId
from coterie.core.states import State, stack
from coterie.methods.fedcg.messages import TIMES, Domains, Judged, Sent, Weight
from coterie.methods.fedcg.wrapping import domain_net

if TYPE_CHECKING:
    from coterie.methods.fedcg.method import FedCG

SURE = 2.0
"""The t that the gain by a smaller weight must have. With two clients a round it comes within 50 visits (seeds 700 to
702); 2.5 takes more, and was no better."""
FEWEST, NEWEST = 8, 80
"""Visits before anything is decided, and those that are looked at (or all of the last round, if these are more)."""
_LARGEST = 1e4  # a loss that is told: diverged clients, too, have an opinion, and replies must be finite
_KEPT = "losses by weight"


def judge(method: FedCG, c: Cohort, sent: Sent, labels: Sequence[Tensor]) -> None:
    """On the client, before it trains: its losses by weight, which it keeps until it is asked for them.

    `labels` are the domains of its training samples.
    """
    scales = domain_net(c.task).scales
    if method.weight == "learnt" or not scales:
        return
    models = stack([weighing(sent.model, scales, times) for times in TIMES])
    losses = []
    for index, (client, samples) in enumerate(zip(c.data, c.part("valid"), strict=True)):
        domains = labels[index] if samples is client.train else _domains(method, c, sent, index)
        losses.append(score(c.task, models, replace(samples, extra=domains)).loss)
    c.keep(_KEPT, torch.stack(losses).double().nan_to_num(nan=_LARGEST).clamp(max=_LARGEST))


def _domains(method: FedCG, c: Cohort, sent: Sent, index: int) -> Tensor:
    samples = c.part("valid")[index]
    return method.finder.taught(c, sent, samples, method.finder.seen(c, sent, index, samples))


def judged(c: Cohort) -> Judged:
    """On the client: the losses that it has kept."""
    return Judged(c.recall_tensor(_KEPT, torch.zeros(len(c), len(TIMES), dtype=torch.float64)))


def weighing(model: State, scales: Sequence[str], times: float) -> State:
    """The network with so many times the weight of its residuals."""
    return {name: tensor * times if name in scales else tensor for name, tensor in model.items()}


def settled(
    method: FedCG, state: Domains, fed: Federation, ids: Sequence[ClientId], model: State, counts: Tensor
) -> tuple[State, Weight]:
    """The network that these clients have made, as far as it is to be taken over, and what is known of its weight.

    `counts` [D] are the samples of each domain that they have trained on.
    """
    net = domain_net(fed.task)
    if method.weight == "learnt" or not net.scales:
        return model, state.weight
    seen = counts + F.pad(state.weight.seen, (0, len(counts) - len(state.weight.seen)))
    weight = replace(state.weight, seen=seen)
    if weight.held:
        kept = {*net.residuals, "adjacency"}
        moved = 1 - float(seen[counts == 0].sum() / seen.sum().clamp_min(1))
        model = {
            name: tensor if name in kept else _between(state.model[name], tensor, 0 if name in net.scales else moved)
            for name, tensor in model.items()
        }
    told = fed.ask(method.tell_losses, ids, same=Nothing()).value
    if told is None:
        return model, weight
    heard = torch.cat([weight.heard, told.losses.double()])[-max(NEWEST, len(told.losses)) :]
    times = better(heard)
    if times == 1:
        return model, replace(weight, heard=heard)
    if not weight.held:
        fed.note(f"fedcg, round {fed.round + 1}: the residuals do better with less weight; it is not learnt any more")
    return weighing(model, net.scales, times), replace(weight, heard=heard[:0], held=True)


def _between(one: Tensor, other: Tensor, share: float) -> Tensor:
    """That share of the way from one to the other; whole numbers are the other's."""
    return one + share * (other - one) if share < 1 and one.is_floating_point() else other


def better(heard: Tensor) -> float:
    """How many times its weight the residuals should have by the losses [n, len(TIMES)] of n visits; 1 unless sure."""
    if len(heard) < FEWEST:
        return 1.0
    gains = believable(heard[:, -1:] - heard[:, :-1])
    mean, spread = gains.mean(0), gains.std(0).clamp_min(1e-12) / math.sqrt(len(gains))
    sure = mean / spread > SURE
    return TIMES[int(torch.where(sure, mean, 0.0).argmax())] if bool(sure.any()) else 1.0

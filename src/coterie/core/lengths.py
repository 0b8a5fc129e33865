"""Which updates of a round are odd: too heavy, too long, or long and against all the others; which numbers told are.

Shortening what is long is others' (see `aggregate`); the limits, and all the rest, are ours.
"""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.devices import there
from coterie.core.spill import column_blocks, row_blocks
from coterie.core.states import Picked, Seen, Stack, columns_of, count, part

LONGEST = 6.0
"""`clipped` shortens updates to this many median lengths. Honest updates reached 4.4 on multi-source-digits."""
LONG = 1.5
AGAINST = -0.6
"""An update longer than `LONG` medians is shortened to one median where its cosine with the sum of the directions of
those that are neither long nor heavy is below `AGAINST`. Attackers that pull the model back come to -0.9; honest ones
were seen at -0.47, where groups that disagree about labels share one model."""
APART = -0.1
"""Below this cosine a long update, and one that weighs more than `HEAVIEST` medians, weighs no more than the median.
Attackers have -0.14 and less from the first round on, before the limit of `AGAINST` can find them."""
JUDGES, FEW_AGAINST = 8, -0.8
"""Among fewer replies than `JUDGES` the limit is `FEW_AGAINST`: of four honest ones, one was at -0.62."""
HEAVIEST, HEAVY = 1.25, 1.5
"""No reply weighs more than `HEAVIEST` upper quartiles of the weights, nor more than `HEAVY` medians. They are above 1
so that sizes which differ little, as honest ones mostly do, stay as they are. Where sizes are alike the quartile is the
narrower limit; the median still holds when three of ten claim 10^9 (with 2 medians these cost embedding 16 points)."""
FAR = 10.0
"""An update this many times as long as the median is not an honest one."""
_BELIEVED = 10.0
"""Robust deviations from the median beyond which what a client tells is not believed."""
MARKED = 1.0
"""... if it is also longer than so many times the model that was sent."""
FEWEST = 4
"""Among fewer replies than this none can be called the odd one."""
_TINY = torch.finfo(torch.float64).tiny


def too_long(models: Stack, sent: Stack | Picked) -> dict[int, float]:
    """Replies whose updates no honest client makes: their rows, and how many median lengths they have.

    Late in training most clients hardly move any more, and an honest one that still learns is many medians long. So an
    update must also be long beside the model that was sent (`MARKED`).
    """
    if count(models) < FEWEST:
        return {}
    lengths = distances(models, sent)
    median = middle(lengths)
    if not median:
        return {}
    found = {}
    for place in torch.nonzero(lengths > FAR * median)[:, 0].tolist():
        first = {name: part(sent, name, slice(place, place + 1)) for name in models}
        origin = {name: torch.zeros_like(tensor) for name, tensor in first.items()}
        if float(lengths[place]) > MARKED * float(distances(first, origin)[0]):
            found[place] = float(lengths[place] / median)
    return found


def capped(weights: Tensor, groups: Tensor) -> Tensor:
    """Weights of which none is below 0, above `HEAVIEST` upper quartiles of its group or above `HEAVY` medians.

    Sizes are what clients say. Where fewer than half of a group are false, the (upper) median is at most the weight of
    its largest honest member, whatever the false ones claim; so is the quartile where fewer than a quarter are.
    """
    result = weights.double().clamp_min(0)
    for _, members in _judged(result, groups):
        ordered = result[members].sort().values
        quartile, median = ordered[-(-3 * len(members) // 4) - 1], ordered[len(members) // 2]
        result[members] = result[members].clamp_max(float(min(HEAVIEST * quartile, HEAVY * median)))
    return result


def clip_factors(models: Stack, start: Stack | Picked, weights: Tensor, groups: Tensor) -> Tensor:
    """By what each update is multiplied, [C]: 1, or less where it is too long for its group.

    `LONGEST` medians are too long for all, and more than one for what is against the others (`AGAINST`).
    """
    return held_back(models, start, weights, groups)[0]


def held_back(
    models: Stack, start: Stack | Picked, weights: Tensor, groups: Tensor, sizes: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The same factors, and the weights: long or heavy replies that go against the others weigh as the median does.

    So who claims many samples and pulls elsewhere gains nothing by the claim. Large honest clients, whose updates are
    long because they make more steps, go with the others. Heavy is what has a large size; these are the weights, but
    where a weight is a part of a size.
    """
    lengths = distances(models, start)
    factors, weights = torch.ones(len(groups), dtype=torch.float64), weights.double().clone()
    for _, members in _judged(weights, groups):
        own, size = lengths[members].clamp_min(_TINY), (weights if sizes is None else sizes.double())[members]
        median, usual = middle(lengths[members]), middle(size)
        long, heavy = own > LONG * median, size > HEAVIEST * usual
        if not median or not bool((long | heavy).any()):
            continue
        against = AGAINST if len(members) >= JUDGES else FEW_AGAINST
        cosines = _agreement(models, start, own, members, ~(long | heavy))
        factors[members] = (torch.where(long & (cosines < against), 1.0, LONGEST) * median / own).clamp_max(1.0)
        apart = (long | heavy) & (cosines < APART) & (size > usual)
        weights[members] *= torch.where(apart, usual / size, 1.0)
    return factors, weights


def _agreement(models: Stack, start: Stack | Picked, lengths: Tensor, members: Tensor, judges: Tensor) -> Tensor:
    """The cosine of each of these updates with the sum of the judges' directions, [m].

    What is long or heavy is no judge: four attackers of a cluster of ten would speak for each other.
    """
    ends, begins = columns_of(models, members), _columns(start, members)
    along, square = torch.zeros(len(members), dtype=torch.float64), 0.0
    for name, tensor in models.items():
        if not tensor.is_floating_point():
            continue
        for columns in column_blocks(len(members), tensor[:1].numel()):
            unit = (ends(name, columns).double() - begins(name, columns).double()) / lengths[:, None]
            total = unit[judges].sum(0)
            along += (unit * total).sum(1)
            square += float(total.square().sum())
    return along / float(max(square, _TINY) ** 0.5)


def _columns(models: Stack | Picked, rows: Tensor) -> Seen:
    return columns_of(models, rows) if isinstance(models, dict) else columns_of(models.models, models.index[rows])


def _judged(weights: Tensor, groups: Tensor) -> list[tuple[int, Tensor]]:
    """The groups with enough members to say what is usual among them."""
    return [(group, members) for group, members in members_of(weights, groups) if len(members) >= FEWEST]


def distances(models: Stack | Picked, others: Stack | Picked) -> Tensor:
    """Euclidean distance of each model to the other in the same row, [C], floating-point entries alone."""
    entries = models if isinstance(models, dict) else models.models
    total = torch.zeros(count(models) if isinstance(models, dict) else len(models.index), dtype=torch.float64)
    for name, tensor in entries.items():
        if not tensor.is_floating_point():
            continue
        for rows in row_blocks(total.shape[0], tensor[:1].numel()):
            apart = there(part(models, name, rows), double=True).to(torch.float64, copy=True)
            squares = apart.sub_(part(others, name, rows).to(apart.device).double()).square_()
            total[rows] += (squares.flatten(1).sum(1) if squares.dim() > 1 else squares).cpu()
    return total.sqrt()


def middle(amounts: Tensor) -> float:
    """The median of those above 0, the lower of two; 0 where there is none."""
    positive = amounts[amounts > 0]
    return float(positive.median()) if len(positive) else 0.0


def members_of(weights: Tensor, groups: Tensor) -> list[tuple[int, Tensor]]:
    """Each group that has members, with the places of those that weigh something."""
    used = weights > 0
    return [(group, torch.nonzero(used & (groups == group))[:, 0]) for group in groups[used].unique().tolist()]


def believable(numbers: Tensor) -> Tensor:
    """What clients told, [n, ...], with single ones that are far from most (`_BELIEVED`) brought to that border.

    They steer what all get, and one false number must not outweigh all others.
    """
    middle = numbers.median(0).values
    spread = 1.4826 * (numbers - middle).abs().median(0).values
    wide = torch.where(spread > 0, _BELIEVED * spread, torch.inf)
    return numbers.clamp(middle - wide, middle + wide)

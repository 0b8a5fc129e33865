"""How the replies of a cluster become its next model: the plain mean, or a rule that a few false replies cannot ruin.

Every method that averages models does it here; which rule it uses is the setting `aggregate`:

- `mean`: the weighted mean, as the papers have it (McMahan et al. 2017). One false reply moves it as far as it likes.
- `clipped`: the weighted mean after updates that are long beside the cluster's median are shortened (`lengths`; norm
  clipping: Sun et al. 2019, "Can you really backdoor federated learning?"; around the model that was sent: Karimireddy
  et al. 2021, "Learning from history for Byzantine robust optimization"; between peers, around the peer's own model:
  He et al. 2022, "Byzantine-robust decentralized learning via ClippedGossip").
- `median`: number by number, the median of the replies (Yin et al. 2018, "Byzantine-robust distributed learning").
- `trimmed`: number by number, the mean without the highest and the lowest fifth (the same paper).
- `krum`: the mean of the replies that are nearest to the others (multi-Krum; Blanchard et al. 2017, "Machine learning
  with adversaries: Byzantine tolerant gradient descent").
- `geometric`: the point with the least weighted sum of distances to the replies, by smoothed Weiszfeld steps (RFA;
  Pillutla et al. 2022, "Robust aggregation for federated learning").

What is around the rules is ours. With any rule but `mean`, no reply weighs more than `HEAVIEST` upper quartiles or
`HEAVY` medians of its cluster, so that fewer than half gain little by claiming many samples (`capped`); and an update
more than `FAR` times as long as the median of all replies of a round, and as long as the model itself, is not used at
all, neither for the mean nor for finding clusters (`too_long`). Both are in `lengths`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

from coterie.core.devices import there
from coterie.core.lengths import FAR, capped, distances, held_back, members_of, middle
from coterie.core.rows import RowMath
from coterie.core.spill import column_blocks
from coterie.core.states import (
    Picked,
    Seen,
    Stack,
    State,
    bag_means,
    columns_of,
    concat,
    count,
    group_means,
    mix,
    part,
    row,
    spread,
    stack,
    take,
)

Rule = Literal["mean", "clipped", "median", "trimmed", "krum", "geometric"]
RULES: tuple[Rule, ...] = get_args(Rule)
REACH = 2.0
"""Between peers `clipped` goes no farther than this many median distances."""
_TRIM = 0.2
_WEISZFELD_STEPS = 32
_NEAR = 1e-6  # nu of the smoothed Weiszfeld algorithm


def combined(
    rule: Rule,
    models: Stack,
    weights: Tensor,
    groups: Tensor,
    previous: Stack,
    sent: Stack | Picked | None = None,
    sizes: Tensor | None = None,
) -> Stack:
    """The next model of every group from the replies of its members; a group without members keeps its previous one.

    `groups` [C] is the group of each reply, 0 .. K-1; `previous` holds the K models. `sent` holds what each reply began
    with, where that is not its group's model (clients that have just been moved). Replies that weigh nothing are left
    out.

    Where a reply belongs to several models, its weight is a part of its size, and most replies have a small part of
    most models. So it is the `sizes` [C] that are capped, and weights become less as these do.
    """
    if rule == "mean":
        return group_means(models, weights, groups, previous)
    if sizes is None:
        weights = fair = capped(weights, groups)
    else:
        fair = capped(sizes, groups)
        weights = weights.double() * (fair / sizes.double().clamp_min(torch.finfo(torch.float64).tiny))
    if rule == "clipped":
        start = Picked(previous, groups) if sent is None else sent
        factors, weights = held_back(models, start, weights, groups, fair)
        shorter = _shortened_columns(models, start, factors)
        return group_means(models, weights, groups, previous, shorter)
    result = {name: tensor.clone() for name, tensor in previous.items()}
    for group, members in members_of(weights, groups):
        one = _RULES[rule](models, members, weights[members])
        for name, tensor in one.items():
            result[name][group] = tensor
    return result


def combined_one(rule: Rule, models: Stack, weights: Tensor, sent: State) -> State:
    """The same where all replies are of one group."""
    if not bool((weights > 0).any()):  # no client has a sample: all weigh the same
        weights = torch.ones(count(models), dtype=torch.float64)
    return row(combined(rule, models, weights, torch.zeros(count(models), dtype=torch.int64), stack([sent])), 0)


def _shortened_columns(models: Stack, start: Stack | Picked, factors: Tensor) -> Seen:
    """start + factor (model - start); a reply with factor 1 is not touched, counters of a shortened one stay."""
    touched = torch.nonzero(factors < 1)[:, 0]
    seen, by = columns_of(models), factors[touched][:, None]

    def shorter(name: str, columns: slice) -> Tensor:
        numbers = seen(name, columns)
        if not len(touched):
            return numbers
        rows = [part(start, name, slice(place, place + 1)).reshape(1, -1)[:, columns] for place in touched.tolist()]
        first = torch.cat(rows)
        exact = first.double() + by * (numbers[touched].double() - first.double())
        whole = numbers.is_floating_point()
        return numbers.index_copy(0, touched, exact.to(numbers.dtype) if whole else first)

    return shorter


# --- between peers ----------------------------------------------------------------------------------------------------


def combined_bags(rule: Rule, models: Stack, own: Tensor, others: Tensor, math: RowMath | None = None) -> Stack:
    """For each of P peers, its own model (row `own` [P]) and others (rows `others` [P, m], -1: none) become one.

    All weigh the same. `clipped` shortens what lies between the peer's model and another's: a peer trusts itself.
    """
    taken = others >= 0
    everyone = torch.cat([own[:, None], others], dim=1)
    sizes = taken.sum(1) + 1
    if rule in ("mean", "clipped"):
        bags = everyone[everyone >= 0]
        if rule == "clipped":
            models, bags = _clipped_bags(models, own, others, taken, bags, math)
        return bag_means(models, bags, sizes, math)
    each = []
    for bag in everyone:
        members = bag[bag >= 0]
        each.append(_RULES[rule](models, members, torch.ones(len(members), dtype=torch.float64)))
    return stack(each)


def _clipped_bags(
    models: Stack, own: Tensor, others: Tensor, taken: Tensor, bags: Tensor, math: RowMath | None
) -> tuple[Stack, Tensor]:
    """The models with shortened ones added, and the bags with those in place of the long ones."""
    asker, column = torch.nonzero(taken, as_tuple=True)
    if not len(asker):
        return models, bags
    first, second = own[asker], others[asker, column]
    lengths = torch.zeros(others.shape, dtype=torch.float64)
    lengths[taken] = _pair_distances(models, first, second, math)
    limit = torch.tensor([_reach(row_[mask]) for row_, mask in zip(lengths, taken, strict=True)]).double()[asker]
    long = torch.nonzero((lengths[taken] > limit) & (limit > 0))[:, 0]
    if not len(long):
        return models, bags
    far = lengths[taken][long]
    # what no honest peer sends is not used at all: the asker's own model stands in its place
    factors = torch.where(far > FAR * limit[long], 0.0, limit[long] / far)
    far_off, near = take(models, second[long]), take(models, first[long])
    shorter = _shortened_columns(far_off, near, factors)
    new = {name: shorter(name, slice(None)).reshape(tensor.shape) for name, tensor in far_off.items()}
    places = torch.cat([torch.zeros(len(own), 1, dtype=torch.bool), taken], dim=1)
    filled = torch.cat([own[:, None], others], dim=1)
    filled[asker[long], column[long] + 1] = count(models) + torch.arange(len(long))
    places[:, 0] = True
    return concat([models, new]), filled[places]


def _reach(lengths: Tensor) -> float:
    """How far a peer goes towards another: `REACH` median distances.

    Of few partners most may be false, so (ours) the nearest one counts too: no farther than `REACH` squared times it.
    """
    apart = lengths[lengths > 0]
    return REACH * min(middle(apart), REACH * float(apart.min())) if len(apart) else 0.0


def _pair_distances(models: Stack, first: Tensor, second: Tensor, math: RowMath | None) -> Tensor:
    """Distances between pairs of rows, each by the same sums however many pairs there are."""
    parts = [t.reshape(len(t), -1) for t in models.values() if t.is_floating_point()]
    if math is None or not all(math.takes(part) and part.is_contiguous() for part in parts) or not len(first):
        return distances(take(models, first), take(models, second))
    rows, place = torch.unique(torch.cat([first, second]), return_inverse=True)
    left, right = place[: len(first)], place[len(first) :]
    zero = [[torch.zeros(1, part.shape[1], dtype=part.dtype) for part in parts]]
    pairs = torch.cat([first, rows]), torch.cat([second, rows])
    product = math.products(parts, zero, *pairs)[0]
    squares = product[len(first) :]
    return (squares[left] + squares[right] - 2 * product[: len(first)]).clamp_min(0).sqrt()


# --- the rules --------------------------------------------------------------------------------------------------------


def _of_numbers(rule: Callable[[Tensor], Tensor], models: Stack, members: Tensor) -> State:
    """A rule on sorted numbers [m, ...], entry by entry."""
    seen, result = columns_of(models, members), {}
    for name, tensor in models.items():
        blocks = column_blocks(len(members), tensor[:1].numel())
        sorted_ = (there(seen(name, columns), double=True).double().sort(0).values for columns in blocks)
        found = torch.cat([rule(numbers).cpu() for numbers in sorted_])
        exact = found if tensor.is_floating_point() else found.round()
        result[name] = exact.to(tensor.dtype).reshape(tensor.shape[1:])
    return result


def _median(models: Stack, members: Tensor, _: Tensor) -> State:
    last = len(members) - 1
    return _of_numbers(lambda numbers: (numbers[last // 2] + numbers[(last + 1) // 2]) / 2, models, members)


def _left_out(members: int) -> int:
    """How many of so many replies may be false: a fifth, at least one, always less than half."""
    return min(max(int(_TRIM * members), 1), (members - 1) // 2)


def _trimmed(models: Stack, members: Tensor, _: Tensor) -> State:
    cut = _left_out(len(members))
    return _of_numbers(lambda numbers: numbers[cut : len(numbers) - cut].mean(0), models, members)


def _krum(models: Stack, members: Tensor, weights: Tensor) -> State:
    """A reply's score is the sum of its squared distances to the m - f - 2 nearest others; the best m - f count."""
    number, seen = len(members), columns_of(models, members)
    false = _left_out(number)
    apart = torch.zeros(number, number, dtype=torch.float64)
    for name, tensor in models.items():
        if tensor.is_floating_point():
            for columns in column_blocks(number, tensor[:1].numel()):
                numbers = there(seen(name, columns), double=True).double()
                apart += torch.stack([(numbers - own).square().sum(1) for own in numbers]).cpu()
    nearest = apart.sort(1).values[:, 1 : max(number - false - 1, 2)].sum(1)
    best = nearest.argsort(stable=True)[: number - false].sort().values
    return _weighted(models, members[best], weights[best])


def _geometric(models: Stack, members: Tensor, weights: Tensor) -> State:
    """z <- sum_i b_i x_i / sum_i b_i with b_i = a_i / max(nu, |x_i - z|), from the mean."""
    point = _weighted(models, members, weights)
    for _ in range(_WEISZFELD_STEPS):
        away = distances(Picked(models, members), spread(point, len(members)))
        point = _weighted(models, members, weights / away.clamp_min(_NEAR))
    return point


def _weighted(models: Stack, members: Tensor, weights: Tensor) -> State:
    """The weighted mean of some of the models; each of them weighs something."""
    shares = weights.double()[None]
    return row(mix(shares / shares.sum(1, keepdim=True), models, columns_of(models, members)), 0)


_RULES: dict[Rule, Callable[[Stack, Tensor, Tensor], State]] = {
    "median": _median,
    "trimmed": _trimmed,
    "krum": _krum,
    "geometric": _geometric,
}

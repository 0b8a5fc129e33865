"""How fast a group trains: rounds that its members lose by are taken back, and they go on at half the rate (ours).

What each client tells anyway, the loss of the model it is sent, shows a round later what the last one did. A rate that
is right for most clients may be too high for one group, whose network then dies in a few rounds and cannot be revived;
its last good model can. This is the "bold driver" (Vogl et al. 1988, Battiti 1989), with clients for witnesses.

One bad round may be chance, and most are made good by the next one. So a group that has had a good one goes on once
more; only if its members still lose more than they did with the good model are both rounds taken back. A network that
has hardly learnt has little to lose, and at a high rate its loss often rises before it falls: it goes on twice.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from coterie.core.cohort import Cohort
from coterie.core.optimiser import Optimiser
from coterie.core.samples import ClientId
from coterie.core.states import Stack, count, row, stack, take
from coterie.core.training import MAIN, local_sgd
from coterie.methods.auto.messages import Groups, Pace, Weighed
from coterie.methods.auto.renamings import in_own_names
from coterie.methods.auto.visits import Came

SLOWER, SLOWEST = 0.5, 1 / 64
"""What the rate becomes after a loss, and at the least; it does not rise again."""
_MOST, _MOST_UNEVEN, _RISEN = 2 / 3, 0.85, 0.01
"""The share of the members whose loss must have risen, and by how much at their median.

Where labels are uneven, a round is good for some and bad for others by who came to it: there it takes nearly all.
"""
_WAITS, _WAITS_EARLY = 1, 2
"""Bad rounds that are waited out after a good one, and while a group has not learnt."""
_LEARNT = 0.5  # the share of the first loss to which its clients' losses have fallen when a network has learnt
_FEWEST, _SHARE = 4, 0.5  # members, and the share of them, that must have come before a group is judged
_LEAST = 1e-6


def paced(opt: Optimiser, pace: float, round: int) -> Optimiser:
    """The same training at this share of the rate."""
    return opt if pace == 1 else replace(opt, lr=pace * opt.rate(round), lr_decay=1.0)


def trained(c: Cohort, start: Stack, opt: Optimiser, pace: Tensor, purpose: str = MAIN) -> Stack:
    """On the clients: local training, each at its own share of the rate [C]; at 0 a model stays as it is."""
    values = sorted(set(pace.tolist()))
    if len(values) == 1 and values[0]:
        return local_sgd(c, start, paced(opt, values[0], c.round), purpose=purpose)
    result = {name: tensor.clone() for name, tensor in start.items()}
    for value in values:
        rows = torch.nonzero(pace == value)[:, 0]
        if value:
            places = rows.tolist()
            some = replace(c, ids=tuple(c.ids[i] for i in places), data=tuple(c.data[i] for i in places), memory=())
            for name, tensor in local_sgd(some, take(start, rows), paced(opt, value, c.round), purpose=purpose).items():
                result[name][rows] = tensor
    return result


class JudgedPaces(NamedTuple):
    """What those who came say of the last rounds."""

    state: Groups
    back: set[int]
    """Groups that go back to their good model."""
    held: set[int]
    """These, and groups that are in doubt: what their members are known to lose stays that of the good model."""
    afresh: set[ClientId]
    """Clients whose losses of before say nothing any more.

    They are new in their group, or their group does worse with its good model, too: there the data have changed, and
    not the training.
    """


def judged(state: Groups, came: Sequence[Came], uneven: bool) -> JudgedPaces:
    """The groups' paces after what those who came have told.

    Groups that train one network (`renamings`) have one pace.
    """
    rises: dict[int, list[float]] = {}
    there: dict[int, list[ClientId]] = {}
    for part in came:
        if not isinstance(part.value, Weighed):
            for client, group, loss in zip(part.ids, part.group, part.loss, strict=True):
                root = state.root(group)
                there.setdefault(root, []).append(client)
                if client in state.known and state.cluster.get(client) == group and client not in state.arrived:
                    rises.setdefault(root, []).append(_rise(state.known[client].loss, loss))
    seen = {client for some in there.values() for client in some}
    paces, back, afresh = dict(state.paces), set(), seen & set(state.arrived)
    members = Counter(state.root(group) for group in state.cluster.values())
    for group, new in rises.items():
        old = paces.get(str(group), Pace(1.0, [], {}))
        told = [*old.rises, *new]
        if len(told) < max(_FEWEST, _SHARE * members[group]):
            paces[str(group)] = replace(old, rises=told)
        elif not lost(told, uneven):
            paces[str(group)] = Pace(old.share, [], row(state.models, group))
        elif old.restored:
            afresh |= set(there[group])
            paces[str(group)] = Pace(min(old.share / SLOWER, 1.0), [], row(state.models, group))
        elif old.good and old.waited < _waits(state, group):
            paces[str(group)] = Pace(old.share, [], old.good, doubted=True, waited=old.waited + 1)
        else:
            back.add(group)
            slower = max(SLOWER * old.share, SLOWEST)
            paces[str(group)] = Pace(slower, [], old.good or row(state.before, group), restored=True)
    held = back | {int(group) for group, pace in paces.items() if pace.doubted}
    # what those who are new lost before was not by the good model: they are compared from when the group has one
    here = {client for group in held for client in there.get(group, ())}
    early = {client for client in here if client in state.arrived or client not in state.known}
    arrived = sorted({*state.arrived} - seen | early)
    back, held = ({group for group in range(count(state.models)) if state.root(group) in some} for some in (back, held))
    return JudgedPaces(replace(state, paces=paces, arrived=arrived), back, held, afresh)


def learnt(state: Groups, clients: Collection[ClientId]) -> bool:
    """Whether most of these clients, which have been met, lose much less than they did by the first model."""
    return median(state.known[client].loss for client in clients) <= _LEARNT * state.first_loss


def _waits(state: Groups, group: int) -> int:
    there = [client for client, own in state.cluster.items() if state.root(own) == group and client in state.known]
    return _WAITS if learnt(state, there) else _WAITS_EARLY


def taken_back(state: Groups, models: Stack, back: Collection[int], heads: Sequence[str] = ()) -> Stack:
    """The models, of some groups the last good one; `heads` are the weights whose rows are the classes."""
    if not back:
        return models
    good = {group: in_own_names(state, state.paces[str(state.root(group))].good, group, heads) for group in back}
    return stack([good.get(group) or row(models, group) for group in range(count(models))])


def kept(state: Groups, moved: Collection[ClientId]) -> Groups:
    """The paces, without what was of other groups: models and losses of before these clients moved."""
    if not moved:
        return state
    paces = {group: Pace(pace.share, [], {}) for group, pace in state.paces.items()}
    return replace(state, paces=paces, arrived=sorted({*state.arrived, *moved}))


def _rise(before: float, now: float) -> float:
    return math.log(max(now, _LEAST) / max(before, _LEAST)) if math.isfinite(now) else math.inf


def lost(rises: Sequence[float], uneven: bool) -> bool:
    """Whether most members lose more than before."""
    up = sum(rise > 0 for rise in rises)
    return up >= (_MOST_UNEVEN if uneven else _MOST) * len(rises) and sorted(rises)[(len(rises) - 1) // 2] > _RISEN

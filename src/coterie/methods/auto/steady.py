"""The models that clients use: where few members of a group come, a mean over the last rounds (ours).

Where one member comes to a round, the group's model is that member's, and what clients use would depend on who came
last. Training goes on from it; in use is a running mean over as many members as make a good average (Polyak and
Juditsky 1992 average the iterates of SGD for the same reason). Nothing is sent for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import torch

from coterie.core.samples import ClientId
from coterie.core.states import count
from coterie.methods.auto.messages import Groups
from coterie.methods.auto.visits import Came

MEMBERS = 8
"""So many members make an average that needs no other; with 4 or 16 two a round are as good (docs/results/auto.md)."""


def followed(old: Groups, new: Groups, came: Sequence[Came], moved: Sequence[ClientId]) -> Groups:
    """The running means after a round: each moves to its group's model by the share of a good average that has come.

    A group that a client has left or joined, or that was taken back, begins again with its present model.
    """
    trained: Counter[int] = Counter()
    for part in came:
        stays = part.stays or (True,) * len(part.ids)
        trained.update(new.root(group) for group, stay in zip(part.group, stays, strict=True) if stay)
    members, groups = Counter(new.root(group) for group in new.cluster.values()), count(new.models)
    changed = {state.cluster[client] for client in moved for state in (old, new) if client in state.cluster}
    groups_before = range(count(old.models))
    changed |= {group for group in groups_before if old.renamed.get(str(group)) != new.renamed.get(str(group))}
    changed = {new.root(group) for group in changed}
    share = [1.0] * groups
    for group in groups_before:
        root = new.root(group)
        if root not in changed and not (_restored(new, group) and not _restored(old, group)):
            share[group] = min(1.0, trained[root] / max(min(MEMBERS, members[root]), 1))
    if min(share) == 1:
        return replace(new, steady={})
    before, weight = old.steady or old.models, torch.tensor(share, dtype=torch.float64)
    added = groups - count(before)
    steady = {}
    for name, now in new.models.items():
        past = torch.cat([before[name], now[groups - added :]])
        by = weight.to(now.dtype).view(-1, *[1] * (now.dim() - 1)) if now.is_floating_point() else None
        steady[name] = now if by is None else torch.lerp(past, now, by)
    return replace(new, steady=steady)


def _restored(state: Groups, group: int) -> bool:
    """Whether the group goes on from its last good model; it says so until its members have told how that does."""
    pace = state.paces.get(str(state.root(group)))
    return pace is not None and pace.restored

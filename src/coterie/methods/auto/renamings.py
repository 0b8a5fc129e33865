"""Groups that see the same and call it otherwise: they train one network, whose answers are renamed for each (ours).

Where every class of a group looks as some class of another does, the two differ in names alone. A network for both is
the same network with the rows of its last layer in another order, so their updates are averaged in one order and
handed back in each group's own: all learn from all, which groups that train apart do not.

What classes look like, clients tell in their first visit: the mean answers of some networks that nobody has trained to
their samples of each class, from either half of their data (`looks.appearances`). A renaming counts if both halves find
the same one, and if classes that it joins differ by little beside what classes differ by.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.core.federation import Federation
from coterie.core.layers import rows_of_classes
from coterie.core.samples import ClientId
from coterie.core.states import Stack, count, row
from coterie.methods.auto.messages import Groups, Pace, Renaming, told
from coterie.methods.auto.visits import members

_UNLIKE = 0.2
"""How much classes that a renaming joins may differ, beside what the classes of a group differ by.

With swapped and cycled labels it is -0.04 to 0.04 (digits, Fashion-MNIST, MNIST), with images rotated by 90 degrees
0.95 and more, with blurred ones 0.15 to 0.3.
"""
_UNLIKE_CLASS = 0.5
"""The same of one class, beside what a class of the group differs by in the mean.

On digits it is -0.3 to 0.3 for the same class under another name, 0.65 and more where one group mirrors or rotates it.
"""
_MAYBE, _SURELY = 1.0, 2.0
"""... and beside what the halves differ by: below the first that is chance, from the second on it is not.

On digits of 16 clients, seeds that were not used to set it: of 888 classes that are alike none is called unlike, and of
72 that one group mirrors none the same; of these 24, 20 and 8 of 24 are found (100, 50, 30 samples), the rest unclear.
"""
_SEEN, _HOLDERS = 3, 3
"""A group knows what a class looks like if so many samples of it are in either half, of so many members (or of all)."""
_UNKNOWN = 0.1  # the share of a group's samples that may be of other classes: their names would be guessed
_FEWEST, _SHARE = 2, 0.5  # classes that both groups must know, and the share of all that they must
_STAYS = 2.0
"""The group whose network goes on is the largest; the one that has been it counts so many times."""

Means = NDArray[np.float64]


def appearance(state: Groups, some: Sequence[ClientId]) -> Means | None:
    """What each class of a group looks like, [2, classes, answers]: the median of its members; NaN if it is not known.

    None where the group has many samples of such classes.
    """
    looks = [state.looks[client] for client in some if client in state.looks]
    looks = [look for look in looks if look.appearance.numel()]  # those of an older version's checkpoint have none
    if not looks:
        return None
    counts = torch.stack([look.counts for look in looks])
    known = (counts.sum(0) >= _SEEN).all(0) & ((counts > 0).sum(0) >= min(_HOLDERS, len(looks))).all(0)
    if float(torch.stack([look.shares for look in looks]).mean(0)[~known].sum()) > _UNKNOWN:
        return None
    each = torch.stack([look.appearance for look in looks]).double()
    told_of = torch.where((counts > 0)[..., None] & known[None, None, :, None], each, torch.nan)
    found: Means = torch.nanquantile(told_of, 0.5, dim=0).numpy()
    return found


def renaming(own: Means, other: Means) -> list[int] | None:
    """For each class of a group that of the other which looks as it does; None if they differ in more than names.

    Either half of the data joins the classes that are nearest; both must join the same, and have a class that is
    renamed nearer to its new name than to its own. How much joined classes differ is what they differ by in one half
    times what they do in the other: 0 in the mean where that is chance alone. Classes that are not known to either
    have the names that are left. Groups without any other name are not joined, for something else told them apart.
    """
    from scipy.optimize import linear_sum_assignment

    classes = own.shape[1]
    here, there = (np.flatnonzero(np.isfinite(each).all((0, 2))) for each in (own, other))
    if min(len(here), len(there)) < max(_FEWEST, _SHARE * classes):
        return None
    one, two = own[:, here], other[:, there]
    apart = [_distances(one[half], two[half]) for half in (0, 1)]
    (rows, columns), second = (linear_sum_assignment(each) for each in apart)
    if not (np.array_equal(rows, second[0]) and np.array_equal(columns, second[1])):
        return None
    joined = one[:, rows] - two[:, columns]
    spread = [each - each.mean(1, keepdims=True) for each in (one[:, rows], two[:, columns])]
    between = float(np.mean([_common(each).sum() for each in spread]))
    if not between > 0 or float(_common(joined).sum()) > _UNLIKE * between:
        return None
    place = {int(label): at for at, label in enumerate(there)}
    for row_, column in zip(rows, columns, strict=True):
        same = place.get(int(here[row_]), int(column))
        if same != column and any(each[row_, column] >= each[row_, same] for each in apart):
            return None
    named = {int(here[a]): int(there[b]) for a, b in zip(rows, columns, strict=True)}
    free = [label for label in range(classes) if label not in named.values()]
    for label in (each for each in range(classes) if each not in named):
        named[label] = free.pop(free.index(label) if label in free else 0)
    labels = [named[label] for label in range(classes)]
    return labels if labels != list(range(classes)) else None


@dataclass(frozen=True)
class Match:
    """What each class of a group is in another, by its looks."""

    same: dict[int, int]
    """For each class that looks as one of the other group does, which that is."""
    unlike: list[int]
    """Classes that surely look as none of the other group's; of classes that are in neither field it is not clear."""

    @property
    def renamed(self) -> dict[int, int]:
        """The classes that have another name there."""
        return {own: there for own, there in self.same.items() if own != there}


def match(own: Means, other: Means) -> Match:
    """Class by class, what `renaming` judges as a whole: there a few classes may differ by more than their names.

    Two classes are the same if both halves join them, in an assignment of all classes that makes the differences least,
    and if nothing but chance tells them apart.
    """
    from scipy.optimize import linear_sum_assignment

    here, there = (np.flatnonzero(np.isfinite(each).all((0, 2))) for each in (own, other))
    one, two = own[:, here], other[:, there]
    if not len(here) or not len(there):
        return Match({}, [])
    unit = float(np.mean([_common(each - each.mean(1, keepdims=True)).mean() for each in (one, two)]))
    apart = one[:, :, None] - two[:, None]  # [2, classes here, classes there, answers]
    chance = ((apart[0] - apart[1]) ** 2).sum(-1) / 2
    joined = [zip(*linear_sum_assignment((half**2).sum(-1)), strict=True) for half in apart]
    differ = np.where(_common(apart) > _UNLIKE_CLASS * unit, _common(apart) / np.maximum(chance, 1e-12), 0.0)
    same = {
        int(here[at]): int(there[to])
        for at, to in sorted(set.intersection(*map(set, joined)))
        if differ[at, to] <= _MAYBE
    }
    unlike = [int(label) for label, row_ in zip(here, differ, strict=True) if row_.min() > _SURELY]
    return Match(same, unlike if len(there) == other.shape[1] else [])  # else it may be a class that is not known there


def _common(values: Means) -> Means:
    """The squared length that both halves agree on, [2, ..., answers] to [...]: 0 in the mean of what is chance."""
    found: Means = (values[0] * values[1]).sum(-1)
    return found


def _distances(one: Means, two: Means) -> Means:
    """Squared distances of all pairs of rows."""
    middle = one.mean(0)
    one, two = one - middle, two - middle
    found: Means = (one**2).sum(1)[:, None] + (two**2).sum(1)[None] - 2 * one @ two.T
    return found


def found(state: Groups, fed: Federation) -> dict[str, Renaming]:
    """Which groups differ from a larger one in names alone; none unless the groups are clear."""
    if not state.clear or count(state.models) == 1 or not fed.task.has_classes or not rows_of_classes(fed.task):
        return {}
    seen = {group: appearance(state, members(state, group)) for group in range(count(state.models))}
    known = {group: each for group, each in seen.items() if each is not None}
    leading = {each.root for each in state.renamed.values()}
    weight = {group: len(members(state, group)) * (_STAYS if group in leading else 1.0) for group in known}
    told_of: dict[str, Renaming] = {}
    roots: dict[int, Means] = {}
    for group in sorted(known, key=lambda each: (-weight[each], each)):
        for root, other in roots.items():
            labels = renaming(known[group], other)
            if labels is not None:
                told_of[str(group)] = Renaming(root, labels)
                break
        else:
            roots[group] = known[group]
    return told_of


def settled(old: Groups, state: Groups, fed: Federation) -> Groups:
    """The renamings after the looks or the members of groups have changed; who joins takes the larger group's network.

    What the members of groups that join have lost before was by another network.
    """
    if state.clear == old.clear and state.looks is old.looks and state.cluster == old.cluster:
        return state
    renamed = found(state, fed)
    heads = rows_of_classes(fed.task) if renamed else []
    if renamed == state.renamed:
        return replace(state, models=handed_back(state, state.models, heads, renamed))
    paces = dict(state.paces)
    for group in state.renamed:
        before = paces.get(str(state.root(int(group))))
        if group not in renamed and before is not None:  # it goes on, alone or before others, as fast as it did
            paces[group] = Pace(before.share, [], {})
    new = [group for group, each in renamed.items() if state.renamed.get(group) != each]
    for root in {str(renamed[group].root) for group in new} & set(paces):
        paces[root] = replace(paces[root], rises=[])
    joined = [client for group in new for client in members(state, int(group))]
    state = replace(state, renamed=renamed, paces=paces, arrived=sorted({*state.arrived, *joined}))
    state = replace(state, models=handed_back(state, state.models, heads, renamed))
    return told(state, fed, _said(state))


def in_own_names(state: Groups, model: dict[str, Tensor], group: int, heads: Sequence[str]) -> dict[str, Tensor]:
    """A model of the group's root, as the group names the classes."""
    if str(group) not in state.renamed:
        return model
    labels = torch.tensor(state.renamed[str(group)].labels)
    return {name: tensor[labels] if name in heads else tensor for name, tensor in model.items()}


def in_roots_names(state: Groups, models: Stack, groups: Sequence[int], heads: Sequence[str]) -> Stack:
    """Models of these groups, each as its group's root names the classes."""
    if not any(str(group) in state.renamed for group in groups):
        return models
    result = dict(models)
    for name in heads:
        result[name] = models[name].clone()
    for place, group in enumerate(groups):
        if str(group) in state.renamed:
            order = torch.tensor(state.renamed[str(group)].labels).argsort()
            for name in heads:
                result[name][place] = models[name][place][order]
    return result


def handed_back(state: Groups, models: Stack, heads: Sequence[str], groups: Collection[str]) -> Stack:
    """The groups' models, of some that only name the classes otherwise that of their root."""
    if not groups:
        return models
    result = {name: tensor.clone() for name, tensor in models.items()}
    for group in map(int, groups):
        for name, tensor in in_own_names(state, row(models, state.root(group)), group, heads).items():
            result[name][group] = tensor
    return result


def _said(state: Groups) -> str:
    roots: dict[int, list[int]] = {}
    for group, each in state.renamed.items():
        roots.setdefault(each.root, []).append(int(group))
    if not roots:
        return "no two groups see the same under other names any more: each trains alone"
    families = "; ".join(", ".join(map(str, sorted([root, *rest]))) for root, rest in sorted(roots.items()))
    return (
        f"groups {families} see much the same and name it otherwise: they train one network, that of the largest, its "
        "answers renamed for each"
    )

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
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from coterie.core.federation import Federation
from coterie.core.layers import rows_of_classes
from coterie.core.samples import ClientId
from coterie.core.states import Stack, count, row
from coterie.methods.auto.messages import Event, Groups, Renaming
from coterie.methods.auto.visits import members

_UNLIKE = 0.2
"""How much classes that a renaming joins may differ, beside what the classes of a group differ by.

With swapped and cycled labels it is -0.04 to 0.04 (digits, Fashion-MNIST, MNIST), with rotated images 0.95 to 5.
"""
_SEEN = 3
"""So many samples of a class that a group has must be in either half: one client of 35 digits got a wrong name once."""
_FEWEST = 2  # classes that both groups must hold, and the share of all that they must
_SHARE = 0.5

Means = NDArray[np.float64]


def appearance(state: Groups, some: Sequence[ClientId]) -> Means | None:
    """What each class of a group looks like, [2, classes, answers]: the median of its members; NaN if nobody has it.

    None where it has a class of which it has too few samples to say.
    """
    looks = [state.looks[client] for client in some if client in state.looks]
    looks = [look for look in looks if look.appearance.numel()]  # those of an older version's checkpoint have none
    if not looks:
        return None
    counts = torch.stack([look.counts for look in looks])
    total = counts.sum(0)
    if bool(((total.sum(0) > 0) & (total < _SEEN).any(0)).any()):
        return None
    told = torch.where((counts > 0)[..., None], torch.stack([look.appearance for look in looks]).double(), torch.nan)
    found: Means = torch.nanquantile(told, 0.5, dim=0).numpy()
    return found


def renaming(own: Means, other: Means) -> list[int] | None:
    """For each class of a group that of the other which looks as it does; None if they differ in more than names.

    Either half of the data joins the classes that are nearest; both must join the same. How much joined classes differ
    is what they differ by in one half times what they do in the other: 0 in the mean where that is chance alone. Where
    a group lacks a class, its name goes to one that is left. Groups without any other name are not joined, for
    something else told them apart.
    """
    classes = own.shape[1]
    here, there = (np.flatnonzero(np.isfinite(each).all((0, 2))) for each in (own, other))
    if min(len(here), len(there)) < max(_FEWEST, _SHARE * classes) or not own.shape[2]:
        return None
    one, two = own[:, here], other[:, there]
    apart = ((one[:, :, None] - two[:, None]) ** 2).sum(-1)
    rows, columns = linear_sum_assignment(apart[0])
    if not np.array_equal(columns, linear_sum_assignment(apart[1])[1]) or len(rows) < min(len(here), len(there)):
        return None
    joined = one[:, rows] - two[:, columns]
    spread = [each - each.mean(1, keepdims=True) for each in (one[:, rows], two[:, columns])]
    between = float(np.mean([(each[0] * each[1]).sum() for each in spread]))
    if not between > 0 or float((joined[0] * joined[1]).sum()) > _UNLIKE * between:
        return None
    named = {int(here[a]): int(there[b]) for a, b in zip(rows, columns, strict=True)}
    free = [label for label in range(classes) if label not in named.values()]
    for label in (each for each in range(classes) if each not in named):
        named[label] = free.pop(free.index(label) if label in free else 0)
    labels = [named[label] for label in range(classes)]
    return labels if labels != list(range(classes)) else None


def found(state: Groups, fed: Federation) -> dict[str, Renaming]:
    """Which groups differ from an earlier one in names alone; none unless the groups are clear."""
    groups = range(count(state.models))
    if not state.clear or len(groups) == 1 or not fed.task.has_classes or not rows_of_classes(fed.task):
        return {}
    told: dict[str, Renaming] = {}
    roots: dict[int, Means] = {}
    for group in groups:
        own = appearance(state, members(state, group))
        if own is None:
            continue
        for root, other in roots.items():
            labels = renaming(own, other)
            if labels is not None:
                told[str(group)] = Renaming(root, labels)
                break
        else:
            roots[group] = own
    return told


def settled(old: Groups, state: Groups, fed: Federation) -> Groups:
    """The renamings after the looks or the members of groups have changed; who is new to one takes its network."""
    if state.clear == old.clear and state.looks is old.looks and state.cluster == old.cluster:
        return state
    renamed = found(state, fed)
    if renamed == state.renamed:
        return state
    paces = dict(state.paces)
    for group in state.renamed:
        before = paces.get(str(state.root(int(group))))
        if group not in renamed and before is not None:  # it goes on alone, as fast as it did
            paces[group] = replace(before, rises=[], good={})
    new = [group for group, each in renamed.items() if state.renamed.get(group) != each]
    state = replace(state, renamed=renamed, paces=paces)
    state = replace(state, models=handed_back(state, state.models, rows_of_classes(fed.task), new))
    text = _said(state)
    fed.note(f"auto, round {fed.round + 1}: {text}")
    return replace(state, events=[*state.events, Event(fed.round, text)])


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
    return f"groups {families} see the same and name it otherwise: they train one network, its answers renamed for each"

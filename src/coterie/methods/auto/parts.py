"""Groups as the looks tell them, where these are clear: who is put where, and when all are divided again (ours)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from coterie.core.federation import Federation
from coterie.core.samples import ClientId
from coterie.core.states import State, concat, count, mean, stack, take
from coterie.methods.auto.judgement import without
from coterie.methods.auto.messages import Groups, told
from coterie.methods.auto.proposals import Proposal, propose, together, views
from coterie.methods.auto.visits import members

COVER = 0.6
"""The share of the clients that must have been seen before anything is parted."""
_NEW = 0.1  # so many new looks, in proportion, and all clients are divided again
_SAME = 0.6  # a part that has most of a group's members goes on with its model


def placed(state: Groups, ids: Sequence[ClientId]) -> dict[ClientId, int]:
    """The groups that clients with new looks belong to, by what they have shown; those like none are absent."""
    settled = [client for client in sorted(state.looks) if client in state.cluster and client not in ids]
    if not state.clear or not settled or not ids:
        return {}
    names = [*settled, *ids]
    labels = np.array([state.cluster[client] for client in settled] + [-1] * len(ids), np.int64)
    one, other = views(state.looks, names)[-1]
    fits = together(one, other).fits(labels)
    fits[:, ~np.isin(np.arange(fits.shape[1]), labels)] = -np.inf  # nobody there
    unlike = (one.fits(labels).max(1) < one.alone()) & (other.fits(labels).max(1) < other.alone())
    first = len(settled)
    return {
        client: int(fits[first + number].argmax()) for number, client in enumerate(ids) if not unlike[first + number]
    }


def parted(state: Groups, fed: Federation) -> tuple[Groups, Proposal | None]:
    """All clients parted by their looks, if enough are new and the groups are clear; else what they propose."""
    there = [client for client in fed.ids if client in state.looks and client in state.cluster]
    fresh = sum(state.looks[client].fresh for client in there)
    enough = max(2 if state.clear else 1, _NEW * len(there))
    if len(there) < COVER * len(fed.ids) or fresh < enough or (count(state.models) > 1 and not state.clear):
        return state, None
    found = propose(state.looks, there)
    looks = {client: replace(look, fresh=False) for client, look in state.looks.items()}
    state = replace(state, looks=looks)
    if found is None or not found.clear:
        return state, found
    old = {client: state.cluster[client] for client in found.part}
    state = _renumbered(state, found.part)
    state = replace(state, clear=True, question=None)
    if len({(old[i], state.cluster[i]) for i in old}) == len(set(old.values())) == len(set(found.part.values())):
        return state, None  # as before
    sizes = sorted(np.bincount(list(found.part.values())).tolist(), reverse=True)
    what = "the classes" if fed.task.has_classes else "the data"
    text = (
        f"{what} of the clients pull in {len(sizes)} ways: groups of {', '.join(map(str, sizes))} (t "
        f"{found.evidence:.1f} across halves; {100 * min(found.explained, 1):.0f} % of what groups could explain)"
    )
    return told(state, fed, text), None


def _renumbered(state: Groups, part: dict[str, int]) -> Groups:
    """The parts as groups: each keeps the number of the group it mostly was, and its model if it was most of that."""
    from scipy.optimize import linear_sum_assignment

    parts, groups = max(part.values()) + 1, count(state.models)
    shared = np.zeros((parts, groups))
    for client, which in part.items():
        shared[which, state.cluster[client]] += 1
    size = np.array([max(len(members(state, group)), 1) for group in range(groups)])
    number = {int(p): int(g) for p, g in zip(*linear_sum_assignment(-shared), strict=True) if shared[p, g] > 0}
    models, before, added = dict(enumerate(_rows(state))), [], groups
    for which in range(parts):
        some = sorted(client for client, own in part.items() if own == which)
        group = number.get(which, -1)
        if group < 0:
            number[which], added = added, added + 1
            before.append(int(shared[which].argmax()))
        if group < 0 or shared[which, group] < _SAME * size[group]:
            models[number[which]] = _made(state, some, shared[which])
    cluster = {**state.cluster, **{client: number[own] for client, own in part.items()}}
    old = state.before if not before else concat([state.before, take(state.before, torch.tensor(before))])
    known = {
        client: replace(known, unsettled=False) if client in part else known for client, known in state.known.items()
    }
    return replace(
        state, models=stack([models[group] for group in range(added)]), before=old, cluster=cluster, known=known
    )


def _rows(state: Groups) -> list[State]:
    return [{name: tensor[group] for name, tensor in state.models.items()} for group in range(count(state.models))]


def _made(state: Groups, some: Sequence[ClientId], shared: np.ndarray[tuple[int], np.dtype[np.float64]]) -> State:
    """The first model of a new group: what its members make together in the first round, if all have come to that.

    Later it is the mean of the models that they have had: old updates, added to a newer model, lead away from it.
    """
    groups = np.flatnonzero(shared)
    if state.renamed:  # groups name the rows of their models otherwise: no mean of these
        groups = np.array([shared.argmax()])
    if state.visits == len(state.known) and len(groups) == 1:
        return without(state, int(groups[0]), some)
    return mean(take(state.models, torch.from_numpy(groups)), torch.from_numpy(shared[groups]))

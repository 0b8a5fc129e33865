"""How the groups change: what the answers of a round mean, splits, moves, new groups (ours)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from coterie.core.aggregate import Rule, combined
from coterie.core.cohort import Cohort
from coterie.core.federation import Federation
from coterie.core.layers import rows_of_classes
from coterie.core.lengths import clip_factors
from coterie.core.samples import ClientId
from coterie.core.states import concat, count, stack, take
from coterie.methods.auto import pace, personal, renamings
from coterie.methods.auto.judgement import believed, flat_updates, parts_that_pay, verdict, without
from coterie.methods.auto.messages import GroupModels, Groups, Known, Look, Looked, SplitQuestion, Tried, Weighed, told
from coterie.methods.auto.parts import COVER, parted, placed
from coterie.methods.auto.proposals import own_ways, propose
from coterie.methods.auto.visits import AGAIN, FIRST_VISITS, Came, members, shares_by_group
from coterie.methods.clustered import Choice

ASK = 1.5
"""The t of the looks from which members are asked, where the groups are not clear (without groups it is below 0)."""
_VISITS, _LATER = 5.0, 2.5
"""Visits of each client before the first question; a later one takes longer."""
_SLOW = 12.0
"""Where there are classes, the network must have learnt first (`pace.learnt`), or have had so many visits of each.

While it has learnt little, any part of its clients learns faster by itself (docs/results/auto.md).
"""
MISFIT = 2.0
"""A client whose loss on arrival is so many times what it was, and what its fellows have, no longer fits."""
_NEW_MISFIT = 3.0
_LITTLE = 0.25  # members that gain less than this share of the mean are asked where they belong
_SKEWED, _FEW_SKEWED = 0.15, 0.2
_HELD, _LACKED = 2, 0.1  # a class with fewer samples is not held; the share of the group's samples that may be of such
_OWN_WAYS = 3.0  # the t from which clients have ways of their own; without them it is -1 to 1, of sensors 7 to 10
_LATEST = 1 << 28  # bytes of updates that the server keeps


def averaged(state: Groups, came: Sequence[Came], rule: Rule, fed: Federation) -> Groups:
    """FedAvg inside the groups; what is known of the clients that came; their latest updates.

    What a client has made of another group's model than its own counts for neither.
    """
    ids = [client for part in came for client in part.ids]
    groups = [group for part in came for group in part.group]
    stays = torch.tensor([stay for part in came for stay in part.stays or (True,) * len(part.ids)])
    trained, sent = concat([part.value.model for part in came]), concat([part.sent for part in came])
    size = torch.cat([part.value.size for part in came])
    cluster = {**state.cluster, **dict(zip(ids, groups, strict=True))}
    known, usual = dict(state.known), _usual_losses(state)
    state, back, held, afresh = pace.judged(state, came, _uneven(state, fed))
    for client, loss, samples, group in zip(ids, [x for p in came for x in p.loss], size.tolist(), groups, strict=True):
        old = known.get(client)
        strange = old is not None and old.visits >= AGAIN and loss > limit(old, usual.get(group, 0.0))
        mean = loss if old is None else loss if not strange and loss < old.loss else (old.loss + loss) / 2
        mean = old.loss if strange and old is not None else mean
        mean = old.loss if group in held and old is not None else loss if client in afresh else mean
        known[client] = Known(old.visits + 1 if old else 1, samples, mean, strange and group not in back)
    models, latest, heads = state.models, dict(state.latest), rows_of_classes(fed.task) if state.renamed else []
    stays &= torch.tensor([group not in back for group in groups])
    rows = torch.nonzero(stays)[:, 0]
    if len(rows):
        trained, sent, size = take(trained, rows), take(sent, rows), size[rows]
        updates = flat_updates(trained, sent)
        own = [groups[place] for place in rows.tolist()]
        trained, sent = (renamings.in_roots_names(state, some, own, heads) for some in (trained, sent))
        roots = torch.tensor([state.root(group) for group in own])
        models = combined(rule, trained, size.clamp_min(1e-9), roots, state.models, sent)
        models = renamings.handed_back(state, models, heads, state.renamed)
        if rule != "mean":
            updates *= clip_factors(trained, sent, size.clamp_min(1e-9), roots)[:, None].to(updates.dtype)
        latest.update({ids[place]: updates[i].clone() for i, place in enumerate(rows.tolist())})
        room = _LATEST // max(updates.shape[1] * updates.element_size(), 1)
        for client in list(latest)[: max(len(latest) - room, 0)]:
            del latest[client]
    models, before = (pace.taken_back(state, some, back, heads) for some in (models, state.models))
    for group in sorted({state.root(group) for group in back}):
        now = float(state.pace[group])
        state = told(state, fed, f"group {group} lost by its last rounds: taken back, and on at {now:.3g} of the rate")
    first = state.first_loss if state.visits else float(np.median([x for part in came for x in part.loss]))
    state = replace(state, visits=state.visits + len(ids), first_loss=first)
    return replace(state, models=models, before=before, cluster=cluster, known=known, latest=latest)


def looked(state: Groups, came: Came, fed: Federation) -> tuple[Groups, Came]:
    """What some clients have shown, and where they belong by it, if the groups are clear.

    A client that shows what it has shown before stays where it is, whatever its loss.
    """
    assert isinstance(came.value, Looked)
    looks, known, new = dict(state.looks), dict(state.known), []
    sketch = came.value.sketch.float() * came.value.scale.float()[:, None, None, :, None]
    counted, seen = came.value.counts.float().clamp_min(0), came.value.appearance.float()
    for client, shown, counts, appearance, loss in zip(came.ids, sketch, counted, seen, came.loss, strict=True):
        old = looks.get(client)
        if old is not None and torch.equal(old.counts, counts) and torch.equal(old.sketch, shown):
            known[client] = replace(known[client], loss=max(known[client].loss, loss))
            looks[client] = replace(old, appearance=appearance.clone())  # an older version's checkpoint has none
        else:
            looks[client] = Look(shown.clone(), counts.clone(), appearance=appearance.clone())
            new.append(client)
    state = replace(state, looks=looks, known=known)
    where, what = placed(state, new), "classes" if fed.task.has_classes else "data"
    group = [where.get(client, own) for client, own in zip(came.ids, came.group, strict=True)]
    for client, before, after in zip(came.ids, came.group, group, strict=True):
        if client not in state.cluster and state.clear:
            state = told(state, fed, f"{client} is new and joins group {after}, whose {what} pull alike")
        elif before != after:
            state = told(state, fed, f"{client} moves from group {before} to group {after}, whose {what} pull alike")
    stays = tuple(before == after for before, after in zip(came.group, group, strict=True))
    return state, replace(came, group=group, stays=stays)


def tried(state: Groups, came: Came) -> Groups:
    """Trials of personal models, as some clients have told them."""
    assert isinstance(came.value, Tried)
    choices = dict(state.choices)
    for client, row in zip(came.ids, came.value.trials, strict=True):
        choices[client] = personal.remembered(choices, client, row)
    return replace(state, choices=choices)


def voted(state: Groups, came: Came) -> Groups:
    """The question with some more answers."""
    assert state.question is not None
    assert isinstance(came.value, Weighed)
    question, losses = state.question, came.value.losses.tolist()
    gain = {client: whole - part for client, (whole, part) in zip(came.ids, losses, strict=True)}
    before = {client: whole for client, (whole, _) in zip(came.ids, losses, strict=True)}
    question = replace(question, gain={**question.gain, **gain}, before={**question.before, **before})
    return replace(state, question=question)


def decided(state: Groups, fed: Federation) -> Groups:
    """Split the group in question, leave it whole, or wait for more answers."""
    if state.question is None:
        return state
    question = believed(state.question)
    there = set(fed.ids)
    able = [client for client in question.part if client in there and state.cluster.get(client) == question.group]
    uneven = skewed(state, fed.task.classes if fed.task.has_classes else 0)
    t, pays = verdict(question, len(able), len(uneven.intersection(able)) < _FEW_SKEWED * len(able))
    if pays is None:
        usual = state.visits / (fed.round + 1)
        if fed.round - question.since <= 2 + 3 * len(able) / max(usual, 1.0):
            return state
        pays = False
    if not pays:
        text = (
            f"group {question.group} stays whole: its {max(question.part.values()) + 1} parts would not pay (t {t:.1f})"
        )
        return told(replace(state, question=None, denied=state.visits), fed, text)
    part = parts_that_pay(question)
    state = split(state, question.group, part)
    doubtful = _LITTLE * float(np.mean(list(question.gain.values())))
    unsure = {i: replace(state.known[i], unsettled=True) for i, gain in question.gain.items() if gain <= doubtful}
    state = replace(state, known={**state.known, **unsure})
    sizes = sorted(np.bincount(list(part.values())).tolist(), reverse=True)
    gain = float(np.mean(list(question.gain.values())))
    text = (
        f"group {question.group} becomes groups of {', '.join(map(str, sizes))}: directions agree across halves "
        f"(t {question.evidence:.1f}), and members lose {gain:.3g} less by it (t {t:.1f})"
    )
    return told(replace(state, question=None), fed, text)


def split(state: Groups, group: int, part: dict[str, int]) -> Groups:
    """Part 0 keeps the group's number. Members who have shown nothing yet stay there and are asked when they come."""
    first = count(state.models)
    cluster = dict(state.cluster)
    known = dict(state.known)
    for client in members(state, group):
        if client not in part and client in known:
            known[client] = replace(known[client], unsettled=True)
        elif part[client]:
            cluster[client] = first + part[client] - 1
    parts = max(part.values()) + 1
    fellows = [[client for client in sorted(part) if part[client] == number] for number in range(parts)]
    new = stack([without(state, group, some) for some in fellows])
    old = take(state.models, torch.arange(first))
    models = {name: torch.cat([t, new[name][1:]]) for name, t in old.items()}
    for name, tensor in models.items():
        tensor[group] = new[name][0]
    before = {
        name: torch.cat([t, t[group : group + 1].expand(parts - 1, *t.shape[1:])]) for name, t in state.before.items()
    }
    return replace(state, models=models, before=before, cluster=cluster, known=known)


def asked(state: Groups, fed: Federation) -> Groups:
    """All parted by their looks where these are clear; otherwise a question, if they support a partition of a group."""
    state, found = parted(state, fed)
    early = state.visits < max(_VISITS * len(fed.ids), _LATER * state.denied)
    early |= fed.task.has_classes and state.visits < _SLOW * len(fed.ids) and not pace.learnt(state, state.known)
    if state.question is not None or state.clear or early:
        return state
    best: SplitQuestion | None = None
    for group in range(count(state.models)):
        there = [client for client in members(state, group) if client in set(fed.ids)]
        shown = [client for client in there if client in state.looks]
        if len(shown) < COVER * (len(fed.ids) if count(state.models) == 1 else len(there)):
            continue
        found = found or propose(state.looks, shown)
        if found and found.evidence >= ASK and (best is None or found.evidence > best.evidence):
            best = SplitQuestion(group, found.part, {}, {}, found.evidence, fed.round)
        found = None
    if best is None:
        return replace(state, denied=state.visits)
    number = max(best.part.values()) + 1
    text = f"the looks propose {number} parts of group {best.group} (t {best.evidence:.1f}); its members are asked"
    return told(replace(state, question=best), fed, text)


def moved(state: Groups, old: Groups, came: Came, fed: Federation) -> Groups:
    """Say who went where, and let those who fit nowhere found a group."""
    usual, strangers = _usual_losses(old), []
    for client, group, loss in zip(came.ids, came.group, came.loss, strict=True):
        before = old.cluster.get(client)
        if client in old.known and loss > limit(old.known[client], usual.get(group, 0.0)) > 0:
            strangers.append(client)
        elif before is None:
            state = told(state, fed, f"{client} is new and joins group {group}")
        elif before != group:
            state = told(state, fed, f"{client} moves from group {before} to group {group}, whose model fits it better")
    if len(strangers) < 2:
        return state
    rows = torch.tensor([came.ids.index(client) for client in strangers])
    size = came.value.size[rows]
    made = combined("mean", take(came.value.model, rows), size, torch.zeros(len(rows), dtype=torch.int64), {
        name: t[:1] for name, t in state.models.items()
    })  # fmt: skip
    new = count(state.models)
    state = replace(
        state,
        models=concat([state.models, made]),
        before=concat([state.before, made]),
        cluster={**state.cluster, **dict.fromkeys(strangers, new)},
    )
    return told(state, fed, f"{', '.join(strangers)} fit no group and found group {new}")


def limit(known: Known, usual: float) -> float:
    """The loss on arrival from which a client no longer fits: by its own past, or, while it is new, by its fellows'."""
    return MISFIT * max(known.loss, usual) if known.visits > FIRST_VISITS else _NEW_MISFIT * usual


def skewed(state: Groups, classes: int) -> set[ClientId]:
    """Clients whose label shares differ from their group's by more than samples drawn from it would.

    Half the sum of |p - q| is for n drawn samples about half the sum of sqrt(2 q (1 - q) / (pi n)).
    """
    found: set[ClientId] = set()
    if not classes:
        return found
    shares = shares_by_group(state, classes)
    for client, look in state.looks.items():
        q, n = shares[state.cluster[client]], max(state.known[client].size, 1.0)
        apart = (look.shares - q).abs().sum() / 2
        if float(apart - (2 * q * (1 - q) / (math.pi * n)).sqrt().sum() / 2) > _SKEWED:
            found.add(client)
    return found


def _uneven(state: Groups, fed: Federation) -> bool:
    """Whether a good part of the clients met before have other labels than their group."""
    met = replace(state, looks={client: look for client, look in state.looks.items() if client in state.known})
    return len(skewed(met, fed.task.classes if fed.task.has_classes else 0)) >= _FEW_SKEWED * max(len(met.looks), 1)


def lacking(state: Groups, classes: int) -> set[ClientId]:
    """Clients that lack classes which their group has: what becomes of these under fine-tuning their data cannot say.

    With one sample of a class, or none, a client counts as lacking it. Where clients will only be asked for labels that
    they have, no client lacks any.
    """
    if not classes or not state.all_labels:
        return set()
    shares = shares_by_group(state, classes)
    return {
        client
        for client, look in state.looks.items()
        if float((shares[state.cluster[client]] * (look.counts.sum(0) < _HELD)).sum()) > _LACKED
    }


def alike(state: Groups, classes: int) -> set[ClientId]:
    """Clients that are as their group is, by their labels and by what they have shown: they need no other model."""
    if own_ways(state.looks, state.cluster) > _OWN_WAYS:
        return set()
    return set(state.looks) - skewed(state, classes)


def _usual_losses(state: Groups) -> dict[int, float]:
    """The median loss on arrival of each group's members."""
    losses: dict[int, list[float]] = {}
    for client, group in state.cluster.items():
        if client in state.known:
            losses.setdefault(group, []).append(state.known[client].loss)
    return {group: float(np.median(values)) for group, values in losses.items()}


def admitted(
    state: Groups, fed: Federation, new: Sequence[ClientId], find: Callable[[Cohort, GroupModels], Choice], classes: int
) -> Groups:
    """The state with newcomers in the groups whose models fit them best; with one group there is nothing to find."""
    unmet = [client for client in new if client not in state.cluster]
    if count(state.models) == 1 or not unmet:
        return state
    message = GroupModels(state.models, shares_by_group(state, classes), state.pace)
    replies = fed.ask(find, unmet, same=message)
    if replies.value is None:
        return state
    chosen = dict(zip(replies.ids, replies.value.cluster.tolist(), strict=True))
    return replace(state, cluster={**state.cluster, **chosen}, extra=state.extra + count(state.models) * len(unmet))

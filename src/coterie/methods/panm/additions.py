"""Ours, not in the paper: where PANM looks at sketches, at those who sleep, and at data that change.

With `sketch_length = 0`, `forget = 0` and `judge = "train"` nothing here does anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

import torch
from torch import Tensor

from coterie.core.cohort import Cohort
from coterie.core.rng import rng
from coterie.core.samples import ClientData, ClientId, Samples
from coterie.core.states import Stack, spread
from coterie.core.task import Task
from coterie.methods.p2p.base import Inbox, best
from coterie.methods.p2p.sketch import sketched
from coterie.methods.panm.looks import (
    Compared,
    answering,
    compared,
    recalled,
    remembered,
    strayed,
    to_ask,
    undivided,
    walked,
)
from coterie.methods.panm.matching import fitted
from coterie.methods.panm.settings import Matching, PANMSettings

_MANY = 0.9
"""With fewer than this share answering, a peer looks in every round, since only those who answer are of use."""


def blank(settings: PANMSettings, peers: int) -> Matching:
    """The nodes before the first round."""
    room = settings.remember if settings.sketches else 0
    return Matching.first(peers, room, settings.sketch_length if settings.sketches else 0)


def unpacked(settings: PANMSettings, parts: Mapping[str, Tensor]) -> Matching:
    """A node, also one of an older version, which remembered no peers."""
    new = blank(settings, len(parts["age"]))
    return Matching(**{each.name: parts.get(each.name, getattr(new, each.name)) for each in fields(Matching)})


def two_sketches(settings: PANMSettings, task: Task, seed: int, ends: Stack, begins: Stack) -> Tensor | None:
    """Of the last update, and of the way from the common initial model."""
    if not settings.sketches:
        return None
    return sketched(task, seed, settings.sketch_length, ends, [begins, spread(task.init(seed), 1)])


def asked(settings: PANMSettings, node: Matching, peer: int) -> int:
    """How many of its neighbours, and of others, a peer asks: with sketches as many as it takes that l answer."""
    return to_ask(settings.l, float(node.rate[peer])) if settings.sketches else settings.l


def many_silent(settings: PANMSettings, node: Matching) -> Tensor:
    """Which peers have been answered by few, [C]."""
    return (node.rate < _MANY) & settings.sketches


def whom_to_compare(node: Matching, inbox: Inbox) -> Compared:
    """Whom peers compare themselves with."""
    return recalled(inbox, node.met, node.looks) if inbox.sketches is not None else compared(inbox)


def alike(
    settings: PANMSettings, node: Matching, inbox: Inbox, similarity: Tensor, seen: Compared, known: Tensor
) -> tuple[Tensor, Tensor]:
    """H_i [C, w], and who need not wait for the end of stage one [C], because half of it is over and what it
    remembers falls apart in two, or because there are no groups at all. (Before half of it is over, a peer between
    two groups would take both for its own, and stay there.)

    Where nothing comes out of the matching, the known neighbours stay.
    """
    first = known
    if settings.sketches:
        top = best(similarity, seen.keys, seen.valid, settings.k)
        first = torch.where((known & seen.valid).any(1, keepdim=True), known, top)
    same, apart = fitted(similarity.numpy(), seen.valid.numpy(), first.numpy(), settings.rules)
    found, early = torch.from_numpy(same), torch.from_numpy(apart) & (2 * node.age >= settings.t1) & settings.sketches
    if seen.sketches is not None and inbox.sketches is not None:
        one = undivided(inbox.sketches[inbox.own], seen, found)
        found, early = torch.where(one[:, None], seen.valid, found), early | one
    return torch.where(found.any(1, keepdim=True), found, known & seen.valid), early


def kept(node: Matching, inbox: Inbox, seen: Compared, looked: Tensor) -> dict[str, Tensor]:
    """What a peer remembers after the round, apart from its list."""
    strides, met, looks, rate = node.strides, node.met, node.looks, node.rate
    if inbox.stride is not None:
        strides = walked(node.strides, inbox.stride)
    if seen.sketches is not None:
        met, looks = remembered(seen, looked, node.met, node.looks)
        rate = answering(node.rate, inbox.keys >= 0, inbox.mask, looked)
    return {"strides": strides, "met": met, "looks": looks, "rate": rate}


def forgetting(
    settings: PANMSettings, before: Matching, after: Matching, inbox: Inbox, chosen: Tensor
) -> tuple[Matching, Tensor]:
    """A peer whose data have changed restarts: without neighbours, in stage one, and with the common model.

    Its way is then measured from there, and what it had learnt of other data does not outvote what it learns now.
    What it remembers of others stays true.
    """
    if inbox.stride is None:
        return after, chosen
    restart = strayed(before.strides, inbox.stride, settings.forget)[:, None]
    first = blank(settings, len(restart))
    return replace(
        after,
        neighbours=torch.where(restart, -1, after.neighbours),
        age=torch.where(restart[:, 0], first.age, after.age),
        strides=torch.where(restart, first.strides, after.strides),
    ), chosen & ~restart


def trained_on(settings: PANMSettings, c: Cohort) -> Cohort:
    """The peers with what they train on: with `judge = "half"` the half that is not judged by."""
    if settings.metric != "loss" or settings.judge != "half":
        return c
    halves = [_halves(c.seed, client, data.train) for client, data in zip(c.ids, c.data, strict=True)]
    data = tuple(ClientData(half[0], own.test, own.valid) for half, own in zip(halves, c.data, strict=True))
    return replace(c, data=data)


def judged(settings: PANMSettings, c: Cohort) -> list[Samples]:
    """The data on which others' models are judged by their loss."""
    if settings.judge == "half":
        return [_halves(c.seed, client, data.train)[1] for client, data in zip(c.ids, c.data, strict=True)]
    return c.part(settings.judge)


def _halves(seed: int, client: ClientId, whole: Samples) -> tuple[Samples, Samples]:
    """What a peer trains on and what it judges by; a single sample is both."""
    if len(whole) < 2:
        return whole, whole
    order = torch.from_numpy(rng(seed, "held out half", client).permutation(len(whole)))
    middle = (len(whole) + 1) // 2
    return whole.take(order[:middle].sort().values), whole.take(order[middle:].sort().values)

"""Ours, not in the paper: where PANM looks at sketches, at those who sleep, and at data that change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

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


@dataclass(frozen=True)
class Additions(PANMSettings):
    """What stands beside the paper's algorithm; with `sketch_length = 0` and `forget = 0` there is none of it."""

    def blank(self, peers: int) -> Matching:
        """The nodes before the first round."""
        room = self.remember if self.sketches else 0
        return Matching.first(peers, room, self.sketch_length if self.sketches else 0)

    def unpack_node(self, parts: Mapping[str, Tensor]) -> Matching:
        """A node, also one of an older version, which remembered nobody."""
        new = self.blank(len(parts["age"]))
        return Matching(**{each.name: parts.get(each.name, getattr(new, each.name)) for each in fields(Matching)})

    def sketch(self, task: Task, seed: int, ends: Stack, begins: Stack) -> Tensor | None:
        """Of the last update, and of the way from the common initial model."""
        if not self.sketches:
            return None
        return sketched(task, seed, self.sketch_length, ends, [begins, spread(task.init(seed), 1)])

    @property
    def watches_strides(self) -> bool:
        """Where a peer forgets when its data change."""
        return self.forget > 0

    def asked(self, node: Matching, peer: int) -> int:
        """How many of its neighbours, and of others, a peer asks: with sketches as many as it takes that l answer."""
        return to_ask(self.l, float(node.rate[peer])) if self.sketches else self.l

    def many_silent(self, node: Matching) -> Tensor:
        """Which peers have been answered by few, [C]."""
        return (node.rate < _MANY) & self.sketches

    def seen(self, node: Matching, inbox: Inbox) -> Compared:
        """Whom peers compare themselves with."""
        return recalled(inbox, node.met, node.looks) if inbox.sketches is not None else compared(inbox)

    def alike(
        self, node: Matching, inbox: Inbox, similarity: Tensor, seen: Compared, known: Tensor
    ) -> tuple[Tensor, Tensor]:
        """H_i [C, w], and who need not wait for the end of stage one [C], because half of it is over and what it
        remembers falls apart in two, or because there are no groups at all. (Before half of it is over, a peer between
        two groups would take both for its own, and stay there.)

        Where nothing comes out of the matching, the known neighbours stay.
        """
        first = known
        if self.sketches:
            top = best(similarity, seen.keys, seen.valid, self.k)
            first = torch.where((known & seen.valid).any(1, keepdim=True), known, top)
        same, apart = fitted(similarity.numpy(), seen.valid.numpy(), first.numpy(), self.rules)
        found, early = torch.from_numpy(same), torch.from_numpy(apart) & (2 * node.age >= self.t1) & self.sketches
        if seen.sketches is not None and inbox.sketches is not None:
            one = undivided(inbox.sketches[inbox.own], seen, found)
            found, early = torch.where(one[:, None], seen.valid, found), early | one
        return torch.where(found.any(1, keepdim=True), found, known & seen.valid), early

    def kept(self, node: Matching, inbox: Inbox, seen: Compared, looked: Tensor) -> dict[str, Tensor]:
        """What a peer remembers after the round beside its list."""
        strides, met, looks, rate = node.strides, node.met, node.looks, node.rate
        if inbox.stride is not None:
            strides = walked(node.strides, inbox.stride)
        if seen.sketches is not None:
            met, looks = remembered(seen, looked, node.met, node.looks)
            rate = answering(node.rate, inbox.keys >= 0, inbox.mask, looked)
        return {"strides": strides, "met": met, "looks": looks, "rate": rate}

    def forgetting(self, before: Matching, after: Matching, inbox: Inbox, chosen: Tensor) -> tuple[Matching, Tensor]:
        """A peer whose data have changed restarts: without neighbours, in stage one, and with the common model.

        Its way is then measured from there, and what it had learnt of other data does not outvote what it learns now.
        What it remembers of others stays true.
        """
        if inbox.stride is None:
            return after, chosen
        anew = strayed(before.strides, inbox.stride, self.forget)[:, None]
        first = self.blank(len(anew))
        return replace(
            after,
            neighbours=torch.where(anew, -1, after.neighbours),
            age=torch.where(anew[:, 0], first.age, after.age),
            strides=torch.where(anew, first.strides, after.strides),
        ), chosen & ~anew

    def restarts(self, node: Matching) -> Tensor | None:
        """Those who have just forgotten what they had learnt."""
        return node.age == 0 if self.forget > 0 else None

    def train(self, c: Cohort, models: Stack) -> Stack:
        """Local training, with `judge = "half"` on the half that is not judged by."""
        if self.metric != "loss" or self.judge != "half":
            return super().train(c, models)
        halves = [_halves(c.seed, client, data.train) for client, data in zip(c.ids, c.data, strict=True)]
        data = tuple(ClientData(half[0], own.test, own.valid) for half, own in zip(halves, c.data, strict=True))
        return super().train(replace(c, data=data), models)

    def judged(self, c: Cohort) -> list[Samples]:
        """The data on which others' models are judged by their loss."""
        if self.judge == "half":
            return [_halves(c.seed, client, data.train)[1] for client, data in zip(c.ids, c.data, strict=True)]
        return c.part(self.judge)


def _halves(seed: int, client: ClientId, whole: Samples) -> tuple[Samples, Samples]:
    """What a peer trains on and what it judges by; a single sample is both."""
    if len(whole) < 2:
        return whole, whole
    order = torch.from_numpy(rng(seed, "held out half", client).permutation(len(whole)))
    middle = (len(whole) + 1) // 2
    return whole.take(order[:middle].sort().values), whole.take(order[middle:].sort().values)

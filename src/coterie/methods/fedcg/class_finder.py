"""Ours, not in the paper: domains by the mean features of each class, and domains that are found late (the default)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.core.cohort import Cohort
from coterie.core.federation import Federation, Nothing, Replies
from coterie.core.groupings import adjusted_rand
from coterie.core.samples import ClientId, Samples
from coterie.core.states import State
from coterie.methods.base import without
from coterie.methods.fedcg.classes import Means, joined, nearest
from coterie.methods.fedcg.domains import (
    UNEVEN,
    Found,
    Moments,
    features_of,
    find_domains,
    square,
    student_of,
    triangle,
)
from coterie.methods.fedcg.features import AT_ONCE, FeatureFinder
from coterie.methods.fedcg.finders import domain_seed
from coterie.methods.fedcg.growing import with_domain
from coterie.methods.fedcg.messages import ClassSums, Domains, Looks, MarkedReport, Report
from coterie.methods.fedcg.wrapping import domain_net

_MIXED = 1.2
"""The median of `Means.unlike` above which clients are said to mix domains: about 1.0 where each has one."""
_TELLS = 2.0
"""Times chance that mean inputs of two domains differ by if these tell them apart; on digits (seeds 31, 32) up to 1.5
where labels are swapped or cycled, and from 3.8 on where images are turned."""
_THIN = 1.5
"""Samples of a class that a client has, in the mean, below which classes by themselves say too little."""
_LARGEST = 1 << 26
"""More numbers than this (clients x classes x features) are not held together: then the inputs alone speak."""
_BYTES = 3
"""Of a mark: a whole number in a reply may not be large, and one drift in 2^24 is missed."""
_TRIES = 5
"""Questions that are lost, and changes of its data that are followed: one that always shows others founds no more."""
_MOST = 32
"""Domains beyond which a network does not grow, whatever clients describe."""


def class_sums(c: Cohort, features: int) -> ClassSums:
    """On the client: sums of features by class, and of their products."""
    own = [_by_class(c, client.train, features) for client in c.data]
    sums, counts = torch.stack([one[0] for one in own]), torch.stack([one[1] for one in own])
    return ClassSums(sums, torch.stack([one[2] for one in own]), counts, marks(c))


def _by_class(c: Cohort, samples: Samples, features: int) -> tuple[Tensor, Tensor, Tensor]:
    """Samples of a class that the federation does not know have no place and are left out."""
    known = (samples.y >= 0) & (samples.y < c.task.classes)
    each, labels = features_of(c.task.inputs(samples.x), c.seed, features)[known], samples.y[known]
    sums = each.new_zeros(c.task.classes, features).index_add_(0, labels, each)
    return sums, torch.bincount(labels, minlength=c.task.classes).to(each.dtype), triangle(each.T @ each)


def marks(c: Cohort) -> Tensor:
    """On the client: a number that is another when its data are: 24 bits of a hash of them, [C]."""
    return torch.tensor([_mark(c, index) for index in range(len(c))])


def _mark(c: Cohort, index: int) -> int:
    samples = c.data[index].train
    key = f"{c.seed} {c.ids[index]} ".encode()
    parts = [part.detach().cpu().contiguous().numpy().tobytes() for part in (samples.x, samples.y)]
    return int.from_bytes(sha256(b"".join([key, *parts])).digest()[:_BYTES], "big")


@dataclass(frozen=True)
class ClassFound(Found):
    """Domains by class, the clients that they are of, and what is kept of these."""

    cluster: dict[str, int]
    looks: Looks


@dataclass(frozen=True)
class _Heard:
    """What clients have described: sums [C, K, h], samples [C, K], and the moments that the inputs alone have."""

    ids: list[ClientId]
    sums: Tensor
    counts: Tensor
    moments: Moments
    marks: dict[str, int]


class ClassFinder(FeatureFinder):
    """Groups of clients by the means of their classes; the student tells the domains of those who did not describe."""

    def search(self, state: Domains, fed: Federation) -> Domains:
        """As by inputs; then, in every round, newcomers and clients whose data have changed are placed."""
        return super().search(state, fed) if state.looks is None else self._followed(state, state.looks, fed)

    def found(self, fed: Federation) -> tuple[Found | None, list[ClientId]]:
        """By class; by the inputs alone where targets are no classes, samples very few, or most clients mix domains."""
        if not fed.task.has_classes or len(fed.ids) * fed.task.classes * self.method.features > _LARGEST:
            return super().found(fed)
        heard = self._heard(fed, sorted(fed.ids))
        if heard is None:
            return None, []
        means = Means.of(heard.sums, heard.counts, heard.moments.products)
        labels = torch.zeros(len(heard.ids), dtype=torch.int64)
        for domain, rows in enumerate(joined(means, [1] * len(labels), most=self.method.domains)):
            labels[rows] = domain
        unlike, mixed = means.mixed(labels)
        if float(heard.counts[heard.counts > 0].mean()) < _THIN or float(unlike.median()) > _MIXED:
            return self._by_inputs(heard, fed), heard.ids
        domains, width = self.method.domains, heard.sums.shape[1:]
        blank = Looks(
            torch.zeros(domains, *width, dtype=torch.float64),
            torch.zeros(domains, width[0], dtype=torch.float64),
            torch.zeros(domains, dtype=torch.float64),
            torch.zeros_like(heard.moments.products),
            {},
            [],
            {},
        )
        by_inputs = self._by_inputs(heard, fed) if bool(mixed.any()) else None
        same = None if by_inputs is None else _same_domains(labels, by_inputs, ~mixed)
        labels = labels if same is None else same[labels]
        looks = _with(blank, heard, labels, mixed)
        student = self._student(looks) if by_inputs is None or same is None else by_inputs.student
        cluster = _pure(heard.ids, labels, mixed, bool(student))
        shares = F.one_hot(labels, domains).double()
        return ClassFound(shares, student, float(unlike.median()), cluster, looks), heard.ids

    def _by_inputs(self, heard: _Heard, fed: Federation) -> Found:
        return find_domains(heard.moments, self.method.domains, domain_seed(fed), self.method.ridge)

    def taken(self, state: Domains, found: Found) -> Domains:
        """With the domain of every client that has one, and where the inputs tell domains the student for others."""
        if not isinstance(found, ClassFound):
            return super().taken(state, found)
        pure = len(found.cluster) == len(found.shares)
        pooled = pure if self.method.routing == "auto" else state.pooled
        told = replace(state, cluster=found.cluster, looks=found.looks, student=found.student)
        return replace(told, pooled=pooled, history={"unevenness": [found.unevenness]})

    def domain_of(self, state: Domains, fed: Federation, ids: Sequence[ClientId]) -> Tensor:
        """That of the client, unless its samples are to be told one by one."""
        by_sample = bool(state.student) and self.method.routing in ("mixed", "image")
        return torch.full((len(ids),), -1) if by_sample else super().domain_of(state, fed, ids)

    def of_now(self, state: Domains, replies: Replies[Report]) -> tuple[Domains, Replies[Report]]:
        """Clients whose data are others than they described are asked again; meanwhile they have trained what is not
        theirs, and unless they are many (then data change all the time) that is left out."""
        if state.looks is None or not isinstance(replies.value, MarkedReport):
            return state, replies
        known, now = state.looks.marks, dict(zip(replies.ids, replies.value.mark.tolist(), strict=True))
        others = [client for client in replies.ids if client in known and known[client] != now[client]]
        again = [client for client in others if state.looks.tries.get(client, 0) < _TRIES]
        state = replace(state, looks=replace(state.looks, again=again))
        few = len(again) > 0 and len(others) <= len(replies.ids) / 2
        return state, without(replies, [replies.ids.index(client) for client in again]) if few else replies

    def _heard(self, fed: Federation, ids: Sequence[ClientId]) -> _Heard | None:
        method, came, marked = self.method, list[ClientId](), dict[str, int]()
        sums, counts, moments = list[Tensor](), list[Tensor](), None
        for begin in range(0, len(ids), AT_ONCE):
            replies = fed.ask(method.describe_classes, ids[begin : begin + AT_ONCE], same=Nothing())
            value = replies.value
            if value is None:
                continue
            came += replies.ids
            marked |= dict(zip(replies.ids, value.mark.tolist(), strict=True))
            sums.append(value.sums.double())
            counts.append(value.counts.double().clamp_min(0))
            some = Moments.of(sums[-1].sum(1), square(value.products, method.features), counts[-1].sum(1))
            moments = some if moments is None else moments.plus(some)
        return None if moments is None else _Heard(came, torch.cat(sums), torch.cat(counts), moments, marked)

    def _student(self, looks: Looks) -> State:
        """The student of these domains; none where the inputs do not tell them apart.

        They do if the domains' mean inputs are apart, as they would be with everybody's labels.
        """
        number, used = looks.counts.sum(1), looks.members > 0
        usual = looks.sums.sum(0) / looks.counts.sum(0).clamp_min(1)[:, None]
        everyone = looks.sums.sum((0, 1)) / number.sum().clamp_min(1)
        total = looks.sums.sum(1) - looks.counts @ usual + number[:, None] * everyone
        means = Means.of(total[used][:, None], number[used][:, None], looks.products)
        if means.least_gap() < _TELLS:
            return {}
        return student_of(looks.sums.sum(1), number, looks.products, self.method.ridge)

    def _followed(self, state: Domains, looks: Looks, fed: Federation) -> Domains:
        strange = [i for i in sorted(fed.ids) if i not in looks.marks and looks.tries.get(i, 0) < _TRIES]
        asked = sorted({*strange, *(i for i in looks.again if i in fed.ids)})
        heard = self._heard(fed, asked) if asked else None
        came = heard.ids if heard is not None else []
        counted = {*looks.again, *(i for i in strange if i not in came)}
        tries = {**looks.tries, **{i: looks.tries.get(i, 0) + 1 for i in asked if i in counted}}
        looks = replace(looks, again=[], tries=tries)
        return replace(state, looks=looks) if heard is None else self._placed(state, looks, heard, fed)

    def _placed(self, state: Domains, looks: Looks, heard: _Heard, fed: Federation) -> Domains:
        """With clients that have described their data: in a domain that is like them, or in one that they found.

        It takes two to found one. It begins with the residuals of the domain that it is likest.
        """
        used = looks.members.nonzero()[:, 0].tolist()
        sums, counts = torch.cat([looks.sums[used], heard.sums]), torch.cat([looks.counts[used], heard.counts])
        means, model = Means.of(sums, counts, looks.products + heard.moments.products), state.model
        members = [*looks.members[used].int().tolist(), *([1] * len(heard.ids))]
        labels, unlike = torch.zeros(len(heard.ids), dtype=torch.int64), torch.zeros(len(heard.ids))
        free = _Free(used, len(looks.members), may_grow=self.method.graph == "eye")
        for rows in joined(means, members, apart=len(used)):
            new = [row - len(used) for row in rows if row >= len(used)]
            near = [nearest(means, len(used) + row, len(used)) for row in new]
            likest = [used[place] for place, _ in near]
            if rows[0] < len(used):
                labels[new], unlike[new] = used[rows[0]], torch.tensor([far for _, far in near])
            elif len(new) > 1 and (domain := free.next()) is not None:
                labels[new] = domain
                model = with_domain(model, domain_net(fed.task).residuals, domain, max(likest, key=likest.count))
                fed.note(f"fedcg, round {fed.round + 1}: {len(new)} clients unlike all others found domain {domain}")
            else:
                labels[new], unlike[new] = torch.tensor(likest), torch.tensor([far for _, far in near])
        mixed = unlike > means.most_unlike()[len(used) :]
        more = free.number - len(looks.members)
        looks = replace(
            looks,
            sums=F.pad(looks.sums, (0, 0, 0, 0, 0, more)),
            counts=F.pad(looks.counts, (0, 0, 0, more)),
            members=F.pad(looks.members, (0, more)),
        )
        looks = _with(looks, heard, labels, mixed)
        before = {client: domain for client, domain in state.cluster.items() if client not in heard.marks}
        cluster = {**before, **_pure(heard.ids, labels, mixed, bool(state.student))}
        student = student_of(looks.sums.sum(1), looks.counts.sum(1), looks.products, self.method.ridge)
        pooled = state.pooled and (self.method.routing != "auto" or all(i in cluster for i in heard.ids))
        state = replace(state, model=model, looks=looks, cluster=cluster, pooled=pooled)
        return replace(state, student=student) if state.student else state


def _same_domains(labels: Tensor, found: Found, pure: Tensor) -> Tensor | None:
    """The numbers that domains by inputs have, [D], where pure clients are in the same ones and others mix them.

    Then the student comes from there: it is fitted to the shares of mixed clients, too.
    """
    own, theirs = labels[pure], found.labels[pure]
    if found.unevenness <= UNEVEN or adjusted_rand(own.tolist(), theirs.tolist()) < 1:
        return None
    number = found.shares.shape[1]
    same = {int(one): int(other) for one, other in zip(own, theirs, strict=True)}
    free = [domain for domain in range(number) if domain not in same.values()]
    return torch.tensor([same[domain] if domain in same else free.pop(0) for domain in range(number)])


def _with(looks: Looks, heard: _Heard, labels: Tensor, mixed: Tensor) -> Looks:
    """With what these clients have described; those that mix domains count in none."""
    shares = F.one_hot(labels, len(looks.members)).double() * ~mixed[:, None]
    number = heard.counts.sum(1)
    part = float(number[~mixed].sum() / number.sum().clamp_min(1))
    return replace(
        looks,
        sums=looks.sums + torch.einsum("cd,ckh->dkh", shares, heard.sums),
        counts=looks.counts + torch.einsum("cd,ck->dk", shares, heard.counts),
        members=looks.members + shares.sum(0),
        products=looks.products + part * heard.moments.products,
        marks={**looks.marks, **heard.marks},
    )


def _pure(ids: Sequence[ClientId], labels: Tensor, mixed: Tensor, told: bool) -> dict[str, int]:
    """The domains of those clients that have one; of all, where nothing but this tells the domains."""
    found = zip(ids, labels.tolist(), mixed.tolist(), strict=True)
    return {client: domain for client, domain, several in found if not (several and told)}


class _Free:
    """The numbers of domains that have no members, and then, where the network may grow, of further ones."""

    def __init__(self, used: Sequence[int], number: int, may_grow: bool) -> None:
        self.number, self._may_grow = number, may_grow
        self._free = [domain for domain in range(number) if domain not in used]

    def next(self) -> int | None:
        """One that is not used."""
        if self._free:
            return self._free.pop(0)
        if not self._may_grow or self.number >= _MOST:
            return None
        self.number += 1
        return self.number - 1

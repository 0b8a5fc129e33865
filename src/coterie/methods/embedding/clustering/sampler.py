"""Ours: partitions of clients by the likelihood of their bits with all groups' means integrated out.

A bit of class c of a client in group g is mean(c) + shared(g) + own(g, c) + noise: what a group does to a bit is in
part the same in all classes (of what rotations do to digits, about 0.3), so clients that hold no class in common can be
alike, too. With normal priors both effects are integrated out in closed form, and a partition that fits by chance
has no advantage over a simpler one. Clients change groups in turn by the odds of this likelihood, in several chains
side by side, first heated and then not; the best partition that any of them has seen is taken.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coterie.methods.embedding.clustering.ward import Floats, Ints

_CHAINS, _SWEEPS, _COOLING, _HEAT = 12, 90, 60, 4.0
"""Chains, turns of all clients, in how many of them likelihoods are divided by `_HEAT` and less."""
_SHARED, _OWN = 0.2, 0.3
"""The shares of a bit's variance that groups make: in all classes alike, and in one; the rest is noise."""
_LEAST_VARIANCE = 0.08
_MOVES = 10
_TINY = 1e-12
_CONCENTRATION = 1.0
"""Of the Dirichlet prior of the groups' sizes, for all groups together: small, so that few of them are used."""


@dataclass(frozen=True)
class Evidence:
    """Weighted bits around their means [N, C, L], weights [N, C], and the variances of both effects and of noise."""

    apart: Floats
    held: Floats
    own: Floats
    shared: Floats
    noise: Floats

    @classmethod
    def of(cls, x: Floats, held: Floats) -> Evidence:
        """Of bits, or the probabilities that they are 1, [N, C, L], by how probable it is that a class is held.

        Probabilities vary less than the bits that they stand for; all are taken to do so by the same factor.
        """
        weight = held[:, :, None]
        mean = ((x * weight).sum(0) + 1) / (weight.sum(0) + 2)
        less = (weight * (x - mean) ** 2).sum() / max((weight * (np.rint(x) - mean) ** 2).sum(), _TINY)
        variance = np.maximum(mean * (1 - mean), _LEAST_VARIANCE) * (less or 1.0)
        noise = (1 - _SHARED - _OWN) * variance
        return cls((x - mean) * weight, held, _OWN * variance, _SHARED * variance.mean(0), noise)

    def likelihood(self, sums: Floats, counts: Floats) -> Floats:
        """The log-likelihood of groups by their sums [..., C, L] and counts [..., C], less that of no group at all."""
        number = counts[..., None]
        inverse = 1 / (self.noise + number * self.own)
        alone = sums**2 * (self.own / self.noise * inverse) - np.log1p(number * self.own / self.noise)
        seen, pull = (number * inverse).sum(-2), (sums * inverse).sum(-2)
        together = self.shared * pull**2 / (1 + self.shared * seen) - np.log1p(self.shared * seen)
        return np.asarray((alone.sum(-2) + together).sum(-1) / 2)


def likeliest(evidence: Evidence, most: int, generator: np.random.Generator) -> Ints:
    """The likeliest partition found, into at most so many groups."""
    number = len(evidence.held)
    labels = generator.integers(0, most, (_CHAINS, number))
    member = np.eye(most)[labels]  # [chains, N, groups]
    counts = np.einsum("snk,nc->skc", member, evidence.held)
    sums = np.einsum("snk,ncl->skcl", member, evidence.apart)
    sizes, chain = member.sum(1), np.arange(_CHAINS)
    likely = evidence.likelihood(sums, counts)
    best, found = -np.inf, labels[0]
    for sweep in range(_SWEEPS):
        heat = max(1.0, _HEAT * (1 - sweep / _COOLING))
        for i in generator.permutation(number):
            held, apart, group = evidence.held[i], evidence.apart[i], labels[:, i]
            counts[chain, group] -= held
            sums[chain, group] -= apart
            sizes[chain, group] -= 1
            likely[chain, group] = evidence.likelihood(sums[chain, group], counts[chain, group])
            joined = evidence.likelihood(sums + apart, counts + held)
            odds = (joined - likely + np.log(sizes + _CONCENTRATION / most)) / heat
            group = (odds + generator.gumbel(size=odds.shape)).argmax(1)
            counts[chain, group] += held
            sums[chain, group] += apart
            sizes[chain, group] += 1
            likely[chain, group] = joined[chain, group]
            labels[:, i] = group
        total = likely.sum(1) + _log_sizes(sizes, most)
        if total.max() > best:
            best, found = float(total.max()), labels[total.argmax()].copy()
    return _numbered(found)


def merged(evidence: Evidence, labels: Ints) -> list[Ints]:
    """The partition and ever coarser ones: the two groups that lose least are joined, and all may move, in turn."""
    found = [labels]
    while labels.max() > 0:
        member = np.eye(int(labels.max()) + 1)[labels]
        counts, sums = member.T @ evidence.held, np.einsum("nk,ncl->kcl", member, evidence.apart)
        likely = evidence.likelihood(sums, counts)
        both = evidence.likelihood(sums[:, None] + sums[None], counts[:, None] + counts[None])
        gain = both - likely[:, None] - likely[None]
        np.fill_diagonal(gain, -np.inf)
        kept, gone = np.unravel_index(int(gain.argmax()), gain.shape)
        labels = _settled(evidence, _numbered(np.where(labels == gone, kept, labels)))
        found.append(labels)
    return found


def _settled(evidence: Evidence, labels: Ints) -> Ints:
    """Every client in turn with the group that it makes likeliest, until all stay; no group is left empty."""
    labels = labels.copy()
    member = np.eye(int(labels.max()) + 1)[labels]
    counts, sums = member.T @ evidence.held, np.einsum("nk,ncl->kcl", member, evidence.apart)
    for _ in range(_MOVES):
        before = labels.copy()
        for i, own in enumerate(labels):
            if (labels == own).sum() == 1:
                continue
            counts[own] -= evidence.held[i]
            sums[own] -= evidence.apart[i]
            joined = evidence.likelihood(sums + evidence.apart[i], counts + evidence.held[i])
            labels[i] = int((joined - evidence.likelihood(sums, counts)).argmax())
            counts[labels[i]] += evidence.held[i]
            sums[labels[i]] += evidence.apart[i]
        if (labels == before).all():
            break
    return labels


def _numbered(labels: Ints) -> Ints:
    return np.asarray(np.unique(labels, return_inverse=True)[1], np.int64)


def _log_sizes(sizes: Floats, most: int) -> Floats:
    """The log prior of groups' sizes, up to a constant: products of (s - 1 + a) ... (1 + a) a for each of them."""
    steps = np.log(np.arange(int(sizes.max()) + 1) + _CONCENTRATION / most)
    table = np.concatenate([[0.0], steps.cumsum()])
    return np.asarray(table[np.rint(sizes).astype(np.int64)].sum(-1))

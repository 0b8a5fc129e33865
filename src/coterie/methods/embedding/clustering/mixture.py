"""Ours: groups of clients that lack classes.

A client's bits of class c are drawn from its group's mean of that class if it holds the class, and are coins if it does
not; whether it does is a probability. So classes that a client lacks hardly speak, and no pair of clients needs to have
classes in common. Which partitions are likely is in `sampler`.

How many groups: a class of a client is predicted by the group that its *other* classes name, with the client itself
left out of all means. Groups count where that is better than one mean for all, by many standard errors over clients.
"""

from __future__ import annotations

import numpy as np

from coterie.core.rng import rng
from coterie.core.threads import one_thread_everywhere
from coterie.methods.embedding.clustering.sampler import Evidence, likeliest, merged
from coterie.methods.embedding.clustering.split_half import Bits
from coterie.methods.embedding.clustering.ward import Floats, Ints

SURE = 4.5
"""Standard errors by which groups must predict better than one mean; docs/results/embedding.md has real values."""
_MOST_GROUPS = 8
_FEWEST = 2  # a client that is alone has no one to be predicted by
_PRIOR = 1.0
"""How many clients of the overall mean are added to every group's."""
_LEAST, _TINY, _SURELY = 0.03, 1e-12, 0.01
_TIE = 0.25
"""The fewest groups within so many standard errors of the best are taken."""


def presence(said: Bits, flips: Floats) -> Floats:
    """The probability [N, C] that a client holds a class, from what it said and its flip probability [N]."""
    noise = np.clip(flips, 1e-3, 0.5)[:, None]
    rate = float(np.mean(noise))
    share = np.clip((said.mean() - rate) / max(1 - 2 * rate, 0.02), 0.05, 0.95)
    yes, no = np.where(said, 1 - noise, noise) * share, np.where(said, noise, 1 - noise) * (1 - share)
    return np.asarray(yes / (yes + no))


def groups_by_mixture(ones: Floats, held: Floats, seed: int) -> tuple[Ints, dict[int, float]]:
    """The group of every row, and the mean benefit of each number of groups that was tried.

    `ones` [N, bits] are bits, or the probabilities that they are 1.
    """
    with one_thread_everywhere():  # no sum may depend on the number of threads
        return _groups(ones, held, seed)


def _groups(ones: Floats, held: Floats, seed: int) -> tuple[Ints, dict[int, float]]:
    x = ones.astype(np.float64).reshape(len(ones), held.shape[1], -1)
    evidence, most = Evidence.of(x, held), max(min(_MOST_GROUPS, len(x) // 2), 1)
    tried = merged(evidence, likeliest(evidence, most, rng(seed, "mixture")))[::-1]  # from one group to many
    found = [labels for labels in tried if np.bincount(labels).min() >= _FEWEST or not labels.any()]
    gains = [benefit(x, held, labels) for labels in found]
    scores = {int(labels.max()) + 1: float(gain.mean()) for labels, gain in zip(found, gains, strict=True)}
    top = max(gains, key=lambda gain: float(gain.mean()))
    chosen = next(k for k, gain in enumerate(gains) if (top - gain).mean() <= _TIE * _error(top - gain))
    if gains[chosen].mean() <= SURE * _error(gains[chosen]):
        chosen = 0
    return np.unique(found[chosen], return_inverse=True)[1].astype(np.int64), scores


def benefit(x: Floats, held: Floats, labels: Ints) -> Floats:
    """By how much, in log-likelihood, groups foretell each client's classes better than one mean does, [N]."""
    member = np.eye(int(labels.max()) + 1)[labels]
    held = np.clip(held, _SURELY, 1 - _SURELY)
    weight = member[:, None] * held[:, :, None]
    sums, sizes = np.einsum("nck,ncl->kcl", weight, x), weight.sum(0).T
    all_sums, all_sizes = np.einsum("nc,ncl->cl", held, x), held.sum(0)
    odds = np.log(member.mean(0) + _TINY)
    gains = np.zeros(len(x))
    for i, own in enumerate(x):
        # without this client in any mean
        one = (all_sums - held[i][:, None] * own + 0.5) / (all_sizes - held[i] + 1)[:, None]
        rest = sums - weight[i].T[:, :, None] * own + _PRIOR * one
        means = rest / (sizes - weight[i].T + _PRIOR)[:, :, None]
        by_group, by_one = (_or_coins(_likelihood(own, m), held[i], own.shape[1]) for m in (means, one))
        others = by_group.sum(1)[:, None] - by_group + odds[:, None]  # [K, C]: what all classes but this one say
        named = _shares(others.T).T
        gains[i] = np.log((named * np.exp(by_group - by_one)).sum(0)).sum()
    return gains


def _likelihood(own: Floats, means: Floats) -> Floats:
    means = np.clip(means, _LEAST, 1 - _LEAST)
    return np.asarray((own * np.log(means) + (1 - own) * np.log(1 - means)).sum(-1))


def _or_coins(plain: Floats, held: Floats, bits: int) -> Floats:
    """The log-likelihood of bits that are a group's if the class is held, and coins if it is not."""
    return np.asarray(np.logaddexp(np.log(held + _TINY) + plain, np.log(1 - held + _TINY) + bits * np.log(0.5)))


def _shares(logs: Floats) -> Floats:
    """Rows of logarithms as shares that sum to 1."""
    raised = np.exp(logs - logs.max(-1, keepdims=True))
    return np.asarray(raised / raised.sum(-1, keepdims=True))


def _error(values: Floats) -> float:
    """The standard error of a mean."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) + _TINY

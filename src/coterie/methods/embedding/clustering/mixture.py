"""Ours: groups as a mixture in which every class of a client may be missing; for clients that lack classes.

A client's bits of class c are drawn from its group's mean of that class if it holds the class, and are coins if it does
not. Whether it does the client says in one more bit a class, flipped as the others are; here that is a probability.
So classes that a client lacks hardly speak, and no pair of clients needs to have classes in common.

How many groups: a class of a client is foretold by the group that its *other* classes name, with the client itself left
out of all means. Groups count where that is better than one mean for all, by many standard errors over clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coterie.core.rng import rng
from coterie.core.threads import one_thread_everywhere
from coterie.methods.embedding.clustering.split_half import Bits
from coterie.methods.embedding.clustering.ward import Floats, Ints

SURE = 4.5
"""Standard errors by which groups must foretell better than one mean; docs/results/embedding.md has real values."""
_MOST_GROUPS = 8
_STARTS, _STEPS, _COOLING, _HEAT = 20, 40, 20, 6.0
"""Random starts, steps of each; annealing: in the first `_COOLING` steps likelihoods are divided by up to `_HEAT`."""
_PRIOR = 1.0
"""How many clients of the overall mean are added to every group's."""
_LEAST, _TINY = 0.03, 1e-12
_TIE = 0.5
"""The fewest groups within so many standard errors of the best are taken."""


@dataclass(frozen=True)
class Fit:
    """`member` [N, K]: whose group is which; `held` [N, C, K]: does a client hold a class; the log-likelihood."""

    member: Floats
    held: Floats
    likelihood: float


def presence(said: Bits, flips: Floats) -> Floats:
    """The probability [N, C] that a client holds a class, from what it said and its flip probability [N]."""
    noise = np.clip(flips, 1e-3, 0.5)[:, None]
    rate = float(np.mean(noise))
    share = np.clip((said.mean() - rate) / max(1 - 2 * rate, 0.02), 0.05, 0.95)
    yes, no = np.where(said, 1 - noise, noise) * share, np.where(said, noise, 1 - noise) * (1 - share)
    return np.asarray(yes / (yes + no))


def groups_by_mixture(bits: Bits, held: Floats, seed: int) -> tuple[Ints, dict[int, float]]:
    """The group of every row, and the mean benefit of each number of groups that was tried."""
    with one_thread_everywhere():  # no sum may depend on the number of threads
        return _groups(bits, held, seed)


def _groups(bits: Bits, held: Floats, seed: int) -> tuple[Ints, dict[int, float]]:
    x = bits.astype(np.float64).reshape(len(bits), held.shape[1], -1)
    labels, gains = [np.zeros(len(x), np.int64)], [np.zeros(len(x))]
    for k in range(2, min(_MOST_GROUPS, len(x) // 2) + 1):
        best = fitted(x, held, k, [rng(seed, "mixture", k, start) for start in range(_STARTS)])
        labels.append(best.member.argmax(1))
        gains.append(benefit(x, held, best))
    scores = {k: float(gain.mean()) for k, gain in enumerate(gains, 1)}
    top = gains[max(scores, key=lambda k: scores[k]) - 1]
    chosen = next(k for k, gain in enumerate(gains) if (top - gain).mean() <= _TIE * _error(top - gain))
    if gains[chosen].mean() <= SURE * _error(gains[chosen]):
        chosen = 0
    return np.unique(labels[chosen], return_inverse=True)[1].astype(np.int64), scores


def fitted(x: Floats, held: Floats, k: int, generators: Sequence[np.random.Generator]) -> Fit:
    """Expectation and maximisation from random starts, annealed; x is [N, C, L] of 0 and 1. The likeliest fit.

    All S starts go side by side: entries of groups are [C, N, S, K] or, flat, [C, N, S K].
    """
    bits, holds = x.transpose(1, 0, 2), held.T[:, :, None, None]
    overall = ((x * held[:, :, None]).sum(0) + 0.5) / (held.sum(0)[:, None] + 1)
    member = np.stack([generator.dirichlet(np.full(k, 0.5), len(x)) for generator in generators], 1)  # [N, S, K]
    present = np.broadcast_to(holds, (len(bits), *member.shape))
    flat = (len(bits), len(x), -1)
    for step in range(_STEPS):
        weight = (member * present).reshape(flat)
        sums = bits.transpose(0, 2, 1) @ weight + _PRIOR * overall[:, :, None]
        means = np.clip(sums / (weight.sum(1, keepdims=True) + _PRIOR), _LEAST, 1 - _LEAST)
        plain = bits @ np.log(means / (1 - means)) + np.log(1 - means).sum(1, keepdims=True)
        plain = plain.reshape(present.shape)
        either = _or_coins(plain, holds, x.shape[2])
        present = np.exp(np.log(holds + _TINY) + plain - either)
        each = either.sum(0) + np.log(member.mean(0) + _TINY)
        heat = max(1.0, _HEAT * (1 - step / _COOLING))
        member = _shares(each / heat)
    most = each.max(-1)
    likelihood = (most + np.log(np.exp(each - most[..., None]).sum(-1))).sum(0)
    best = int(likelihood.argmax())
    return Fit(member[:, best], present[:, :, best].transpose(1, 0, 2), float(likelihood[best]))


def benefit(x: Floats, held: Floats, fit: Fit) -> Floats:
    """By how much, in log-likelihood, groups foretell each client's classes better than one mean does, [N]."""
    weight = fit.member[:, None] * fit.held
    anyone = weight.sum(2)
    sums, sizes = np.einsum("nck,ncl->kcl", weight, x), weight.sum(0).T
    all_sums, all_sizes = np.einsum("nc,ncl->cl", anyone, x), anyone.sum(0)
    odds = np.log(fit.member.mean(0) + _TINY)
    gains = np.zeros(len(x))
    for i, own in enumerate(x):
        # without this client in any mean
        one = (all_sums - anyone[i][:, None] * own + 0.5) / (all_sizes - anyone[i] + 1)[:, None]
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

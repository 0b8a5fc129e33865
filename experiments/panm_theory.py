"""What PANM's authors prove and count: Theorem 1 on stage one, and the models a peer receives (Table 6)."""

from __future__ import annotations

from math import comb

import numpy as np

from coterie.core.errors import CoterieError
from coterie.core.rng import rng


def confidence(n: int, a: int, l: int, k: int, rounds: int) -> list[float]:  # noqa: E741
    """Theorem 1: the probability, after each round of stage one, that all k neighbours are of the peer's own group.

    n peers, a of them in the group (the peer among them), l candidates a round, a metric that never errs. The recursion
    counts a peer that is drawn again as a new one, so it is an upper bound, and it is wrong where a - 1 < k.
    """
    _check(n, a, l, k)
    total = comb(n - 1, l)
    drawn = [comb(a - 1, x) * comb(n - a, l - x) / total for x in range(l + 1)]
    at_least = [sum(drawn[x:]) for x in range(l + 1)] + [0.0] * k
    # P^t(x) = sum_{m < x} G(m) P^{t-1}(x - m) + R(x), with P^0 = 0
    now = [0.0] * (k + 1)
    result = []
    for _ in range(rounds):
        now = [1.0] + [sum(drawn[m] * now[x - m] for m in range(min(x, l + 1))) + at_least[x] for x in range(1, k + 1)]
        result.append(now[k])
    return result


def simulated_confidence(n: int, a: int, l: int, k: int, rounds: int, *, trials: int, seed: int) -> list[float]:  # noqa: E741
    """The same by trying it: a peer keeps the peers of its group it draws, candidates are never present neighbours."""
    _check(n, a, l, k)
    generator = rng(seed, "confidence", n, a, l, k)
    pure = np.zeros(rounds)
    for _ in range(trials):
        neighbours: list[int] = []
        for number in range(rounds):
            others = np.setdiff1d(np.arange(n - 1), neighbours)
            candidates = generator.choice(others, min(l, len(others)), replace=False).tolist()
            met = [*neighbours, *candidates]
            neighbours = sorted(met, key=lambda peer: peer >= a - 1)[:k]  # peers below a - 1 are of its group
            pure[number] += all(peer < a - 1 for peer in neighbours)
    return [float(share) for share in pure / trials]


def _check(n: int, a: int, l: int, k: int) -> None:  # noqa: E741
    if not (1 <= a <= n and 1 <= l < n and 1 <= k <= l):
        raise CoterieError(f"Theorem 1 needs 1 <= a <= n and 1 <= k <= l < n, not n = {n}, a = {a}, l = {l}, k = {k}.")


def models_received(l: int, k: int, t1: int, t2: int, tau: int, *, vectors: int = 1) -> int:  # noqa: E741
    """How many models a peer receives in t1 + t2 rounds, as Table 6 counts them.

    Stage one: l, then l + k a round. Stage two: 2 l when matching, every tau-th round, else k. Where similarities are
    measured an answer holds `vectors` models: Table 6 counts 1, but PANMGrad needs 2 (the trained model and its start).
    """
    matchings = (t1 + t2) // tau - t1 // tau
    measured = (l + (t1 - 1) * (l + k) if t1 else 0) + matchings * 2 * l
    return vectors * measured + (t2 - matchings) * k

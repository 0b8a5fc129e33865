"""How a peer's list of neighbours N_i is renewed (PANM, section 3.2): confident initialisation, heuristic matching.

Matching is hard EM for two Gaussians: which of the measured similarities belong to the peer's group. The paper's
initialisation of gamma has its two components swapped; here the known neighbours start as "same", the candidates as
"other", and what ends with the larger mean is "same". What we add is in `ours.Rules`; `PAPER` has none of it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coterie.methods.p2p.topology import Keys
from coterie.methods.panm.ours import PAPER, Rules

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
_ITERATIONS = 100
_LEAST_SIGMA = 1e-4


def confident(old: Keys, top: Keys, k: int) -> Keys:
    """ConfiNeighInit (equation 8): the k most similar; where fewer came, silent old neighbours fill the list."""
    silent = [key for key in old.tolist() if key not in set(top.tolist())]
    return np.array([*top.tolist(), *silent[: max(0, k - len(top))]], dtype=np.int64)


def matched(old: Keys, asked: Keys, same: Keys) -> Keys:
    """HeurNeighMatch (equation 18), N <- (N - S) + H; the list never becomes empty."""
    kept = [key for key in old.tolist() if key not in set(asked.tolist())]
    new = sorted({*kept, *same.tolist()})
    return np.array(new, dtype=np.int64) if new else old


def fitted(y: Floats, valid: Bools, known: Bools, rules: Rules = PAPER) -> tuple[Bools, Bools]:
    """Which similarities y [C, m] belong to the component with the larger mean, row by row; and in which rows there are
    two components (that are as far apart as the guard wants), [C].

    `valid` says which entries count, `known` which of them are of present neighbours. Degenerate rows: without
    candidates, or if "same" empties, the known ones stay; if "other" empties, or all similarities are equal, all are
    accepted. With a guard, a row whose components are not far enough apart keeps the known ones and adds none:
    two components fitted to a single group would throw half of it out, and two groups that overlap would mix.
    """
    known = known & valid
    numbers = np.where(valid, y, 0.0)
    spread = np.where(valid, y, -np.inf).max(1, initial=-np.inf) - np.where(valid, y, np.inf).min(1, initial=np.inf)
    floor = np.zeros(len(y))
    if rules.least_sigma > 0:
        floor = np.maximum(_LEAST_SIGMA, rules.least_sigma * np.where(np.isfinite(spread), spread, 0.0))
    same = known.copy()
    for _ in range(_ITERATIONS):
        moved = _assigned(numbers, valid, same, floor, rules.monotone)
        if (moved == same).all():
            break
        same = moved
    means, sigmas, _ = _estimates(numbers, valid, same, floor)
    has_same, has_other = _any(same), _any(valid & ~same)
    both = has_same & has_other
    swapped = both & (means[1] > means[0])
    same = np.where(swapped[:, None], valid & ~same, same)
    close = np.abs(means[0] - means[1]) <= rules.guard * (sigmas[0] + sigmas[1])
    if rules.guard > 0:
        same = np.where((both & close)[:, None], known, same)
    same = np.where((~has_same)[:, None], known, same)
    same = np.where(_any(valid & ~known)[:, None], same, known)
    equal = (spread <= 0) & _any(known)
    return np.where(equal[:, None], valid, same) & valid, both & ~close


def _any(part: Bools) -> Bools:
    """Whether a row has any."""
    found: Bools = np.asarray(part.any(axis=1))
    return found


def _estimates(y: Floats, valid: Bools, same: Bools, floor: Floats) -> tuple[list[Floats], list[Floats], list[Floats]]:
    """Means, deviations and shares of "same" and "other" in each row (the paper's E-step)."""
    means, sigmas, shares = [], [], []
    total = np.maximum(valid.sum(1), 1)
    for part in (same & valid, ~same & valid):
        size = part.sum(1)
        divisor = np.maximum(size, 1)
        mean = np.where(part, y, 0.0).sum(1) / divisor
        variance = np.where(part, (y - mean[:, None]) ** 2, 0.0).sum(1) / divisor
        means.append(mean)
        sigmas.append(np.maximum(np.sqrt(variance), floor))
        shares.append(size / total)
    return means, sigmas, shares


def _assigned(y: Floats, valid: Bools, same: Bools, floor: Floats, monotone: bool) -> Bools:
    """Every similarity to the likelier component (the paper's M-step); rows with one component stay as they are."""
    means, sigmas, shares = _estimates(y, valid, same, floor)
    scores = [_log_density(y, *component) for component in zip(means, sigmas, shares, strict=True)]
    likelier = scores[0] > scores[1]
    if monotone:
        low, high = np.minimum(*means)[:, None], np.maximum(*means)[:, None]
        first_is_high = (means[0] >= means[1])[:, None]
        likelier = np.where(y >= high, first_is_high, np.where(y <= low, ~first_is_high, likelier))
    alone = (shares[0] == 0) | (shares[1] == 0)
    moved: Bools = np.where(alone[:, None], same, likelier) & valid
    return moved


def _log_density(y: Floats, mean: Floats, sigma: Floats, share: Floats) -> Floats:
    """log(beta phi(y)) without its constant; a component without width holds what lies at its mean and nothing else."""
    with np.errstate(divide="ignore", invalid="ignore"):
        prior = np.log(share / sigma)
        score = prior[:, None] - (y - mean[:, None]) ** 2 / (2 * sigma[:, None] ** 2)
    point = np.where(y == mean[:, None], np.inf, -np.inf)
    density: Floats = np.where((sigma > 0)[:, None], score, point)
    return density

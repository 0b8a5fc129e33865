"""Hard EM for two Gaussians: which of the measured similarities belong to the own group (PANM, section 3.2.3).

The paper's initialisation of gamma has its two components swapped; here the known neighbours start as "same", the
candidates as "other", and what ends with the larger mean is "same".
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
_ITERATIONS = 100
_LEAST_SIGMA = 1e-4
_LEAST_SHARE_OF_RANGE = 1e-3


def same_group(y: Floats, valid: Bools, known: Bools, *, guard: float = 0.0) -> Bools:
    """Which similarities y [C, m] belong to the component with the larger mean, row by row.

    `valid` says which entries count, `known` which of them are of present neighbours. Degenerate rows: without
    candidates, or if "same" empties, the known ones stay; if "other" empties, or all similarities are equal, all are
    accepted. A similarity above the larger mean is "same" and one below the smaller is "other", whatever the variances.
    With `guard` c > 0 nobody known is dropped unless the means are more than c (sigma_0 + sigma_1) apart: a fit of two
    components to a single group would otherwise throw half of it out.
    """
    known = known & valid
    numbers = np.where(valid, y, 0.0)
    spread = np.where(valid, y, -np.inf).max(1, initial=-np.inf) - np.where(valid, y, np.inf).min(1, initial=np.inf)
    floor = np.maximum(_LEAST_SIGMA, _LEAST_SHARE_OF_RANGE * np.where(np.isfinite(spread), spread, 0.0))
    same = known.copy()
    for _ in range(_ITERATIONS):
        moved = _assigned(numbers, valid, same, floor)
        if (moved == same).all():
            break
        same = moved
    means, sigmas, _ = _estimates(numbers, valid, same, floor)
    has_same, has_other = _any(same), _any(valid & ~same)
    both = has_same & has_other
    swapped = both & (means[1] > means[0])
    same = np.where(swapped[:, None], valid & ~same, same)
    apart = np.abs(means[0] - means[1]) > guard * (sigmas[0] + sigmas[1])
    if guard > 0:
        same = np.where((both & ~apart)[:, None], same | known, same)
    same = np.where((~has_same)[:, None], known, same)
    same = np.where(_any(valid & ~known)[:, None], same, known)
    equal = (spread <= 0) & _any(known)
    return np.where(equal[:, None], valid, same) & valid


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


def _assigned(y: Floats, valid: Bools, same: Bools, floor: Floats) -> Bools:
    """Every similarity to the likelier component (the paper's M-step); rows with one component stay as they are."""
    means, sigmas, shares = _estimates(y, valid, same, floor)
    scores = []
    for mean, sigma, share in zip(means, sigmas, shares, strict=True):
        with np.errstate(divide="ignore"):
            prior = np.log(share / sigma)
        scores.append(prior[:, None] - (y - mean[:, None]) ** 2 / (2 * sigma[:, None] ** 2))
    likelier = scores[0] > scores[1]
    low, high = np.minimum(*means)[:, None], np.maximum(*means)[:, None]
    first_is_high = (means[0] >= means[1])[:, None]
    likelier = np.where(y >= high, first_is_high, np.where(y <= low, ~first_is_high, likelier))
    alone = (shares[0] == 0) | (shares[1] == 0)
    moved: Bools = np.where(alone[:, None], same, likelier) & valid
    return moved

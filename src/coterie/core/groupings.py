"""How far two ways to put the same clients into groups agree.

scikit-learn has this number too, but a process needs 1.8 s to import it, and every run computes the number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from math import comb


def adjusted_rand(one: Sequence[Hashable], other: Sequence[Hashable]) -> float:
    """The adjusted Rand index of Hubert and Arabie (1985): 1 for the same groups, 0 for what chance gives.

    It counts pairs of clients: together in both, in one alone, in the other alone, in neither.
    """
    both = _pairs(list(zip(one, other, strict=True)))
    one_alone, other_alone = _pairs(one) - both, _pairs(other) - both
    if not one_alone and not other_alone:
        return 1.0
    neither = comb(len(one), 2) - both - one_alone - other_alone
    expected = (both + one_alone) * (one_alone + neither) + (both + other_alone) * (other_alone + neither)
    return 2 * (both * neither - one_alone * other_alone) / expected


def _pairs(labels: Sequence[Hashable]) -> int:
    """How many pairs have the same label."""
    return sum(comb(size, 2) for size in Counter(labels).values())

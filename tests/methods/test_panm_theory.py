"""Theorem 1 and the cost of Table 6."""

from __future__ import annotations

from itertools import pairwise

import pytest
from experiments.panm_theory import confidence, models_received, simulated_confidence
from hypothesis import given
from hypothesis import strategies as st

from coterie.core.errors import CoterieError


def test_confidence_by_hand() -> None:
    """n = 3, a = 2, l = k = 1: the one friend among two others is drawn with 1/2; after two rounds 1/2 + 1/4."""
    assert confidence(3, 2, 1, 1, 3) == pytest.approx([0.5, 0.75, 0.875])


def test_the_values_of_the_paper_s_setting() -> None:
    """METHODS 3.4, n = 100, l = 10, k = 5."""
    assert confidence(100, 50, 10, 5, 3) == pytest.approx([0.617, 0.995, 1.0], abs=6e-4)
    assert confidence(100, 25, 10, 5, 5) == pytest.approx([0.059, 0.561, 0.897, 0.984, 0.998], abs=6e-4)


@pytest.mark.parametrize("a", [25, 50])
def test_theory_and_trial_agree(a: int) -> None:
    trial = simulated_confidence(100, a, 10, 5, 5, trials=1500, seed=0)
    assert trial == pytest.approx(confidence(100, a, 10, 5, 5), abs=0.06)


@given(st.integers(4, 30), st.integers(1, 5), st.integers(0, 5))
def test_confidence_grows_and_is_a_probability(a: int, k: int, extra: int) -> None:
    """Corollary 1, with a group of at least k others."""
    chances = confidence(40, a + k, k + extra, k, 6)
    assert all(0 <= chance <= 1 + 1e-12 for chance in chances)
    assert all(later >= earlier - 1e-12 for earlier, later in pairwise(chances))


def test_models_received() -> None:
    assert models_received(4, 2, 100, 200, 10) == 1118
    assert models_received(4, 3, 100, 200, 10) == 1397
    # 4 + 99 * 6 = 598 in stage one and 20 * 8 = 160 when matching count twice, 180 * 2 = 360 in gossip once
    assert models_received(4, 2, 100, 200, 10, vectors=2) == 2 * (598 + 160) + 360 == 1876
    assert models_received(4, 3, 100, 200, 10, vectors=2) == 2 * (697 + 160) + 540 == 2254
    assert models_received(10, 5, 0, 4, 2) == 2 * 20 + 2 * 5


@pytest.mark.parametrize("values", [(10, 11, 3, 2), (10, 5, 10, 2), (10, 5, 2, 3), (10, 0, 3, 2)])
def test_impossible_numbers_are_refused(values: tuple[int, int, int, int]) -> None:
    with pytest.raises(CoterieError, match="Theorem 1 needs"):
        confidence(*values, 3)
    with pytest.raises(CoterieError, match="Theorem 1 needs"):
        simulated_confidence(*values, 3, trials=1, seed=0)

"""What the report says about an embedding's privacy."""

from __future__ import annotations

import pytest

from coterie.methods.embedding.panels import _privacy


@pytest.mark.parametrize(
    ("flips", "reports", "often", "chance", "epsilon"),
    [
        ([0.2, 0.2], 1, "once", "0.2.", "1.39 per bit, 277 in total."),
        ([0.2], 2, "again (of a bit at most two answers)", "0.2.", "1.39 per bit, 555 in total."),
        ([0.2, 0.0, 0.1], 1, "once", "0 to 0.2, as", "infinite (the bits are sent as they are) to 1.39 per bit, 277"),
    ],
)
def test_epsilon_is_that_of_all_reports_and_of_the_weakest_client(
    flips: list[float], reports: int, often: str, chance: str, epsilon: str
) -> None:
    """ln(0.8 / 0.2) = 1.386 a bit, 277.3 for 200 bits, twice that for two answers."""
    said = _privacy(flips, 200, reports).paragraphs[0]
    assert f"{often}; each is flipped with probability {chance}" in said
    assert f"epsilon = {epsilon}" in said

"""From a client's codes to packed bits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coterie.core.errors import CoterieError
from coterie.core.rng import rng
from coterie.methods.class_means import class_means
from coterie.methods.embedding.bits import (
    binarise,
    flip,
    pack_bits,
    packed_size,
    packing_flaws,
    unpack_bits,
)
from coterie.methods.embedding.privacy import epsilon_per_bit, epsilon_total, flip_for


def test_means_by_class_and_noise_for_a_missing_one() -> None:
    codes = torch.tensor([[1.0, 3.0], [3.0, 5.0], [10.0, 0.0]])
    means = class_means(codes, torch.tensor([0, 0, 2]), 3, rng(0, "noise"))
    assert means[0].tolist() == [2.0, 4.0]
    assert means[2].tolist() == [10.0, 0.0]
    assert ((means[1] >= 0) & (means[1] < 1)).all()
    other = class_means(codes, torch.tensor([0, 0, 2]), 3, rng(1, "noise"))
    assert not torch.equal(means[1], other[1])
    assert torch.equal(means[0], other[0])


def test_unknown_classes_have_no_place() -> None:
    codes = torch.tensor([[1.0, 3.0], [5.0, 5.0], [7.0, 7.0]])
    means = class_means(codes, torch.tensor([1, 2, -1]), 2, rng(0, "noise"))
    assert means.shape == (2, 2)
    assert means[1].tolist() == [1.0, 3.0]


def test_a_client_without_samples_sends_noise() -> None:
    means = class_means(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), 3, rng(0, "noise"))
    assert means.shape == (3, 4)
    assert means.unique().numel() == 12


def test_bits_by_hand() -> None:
    """(0, 2, 10) -> (0, .2, 1) -> 0 0 1; a constant row -> 0 0 0; (-4, 4, 1) -> (0, 1, .625) -> 0 1 1."""
    means = torch.tensor([[0.0, 2.0, 10.0], [7.0, 7.0, 7.0], [-4.0, 4.0, 1.0]])
    assert binarise(means).tolist() == [0, 0, 1, 0, 0, 0, 0, 1, 1]


def test_flips() -> None:
    bits = rng(0, "bits").integers(0, 2, 20_000).astype(np.uint8)
    assert (flip(bits, 0.0, rng(0, "flips")) == bits).all()
    assert np.mean(flip(bits, 0.1, rng(0, "flips")) != bits) == pytest.approx(0.1, abs=0.01)
    noise = flip(bits, 0.5, rng(0, "flips"))
    assert np.corrcoef(bits, noise)[0, 1] == pytest.approx(0, abs=0.03)
    for bad in (-0.1, 0.51, math.nan):
        with pytest.raises(CoterieError, match=r"\[0, 0.5\]"):
            flip(bits, bad, rng(0, "flips"))


def test_an_unchanged_bit_is_answered_the_same_and_a_changed_one_with_another_coin() -> None:
    bits = rng(0, "bits").integers(0, 2, 20_000).astype(np.uint8)
    changed = bits.copy()
    changed[:10_000] ^= 1
    first, second = flip(bits, 0.2, rng(0, "c")), flip(changed, 0.2, rng(0, "c"))
    assert (first[10_000:] == second[10_000:]).all()
    # with one coin per bit, the answers of changed bits would all differ and show the change
    assert np.mean(first[:10_000] != second[:10_000]) == pytest.approx(0.8**2 + 0.2**2, abs=0.02)


@given(st.lists(st.integers(0, 1), min_size=1, max_size=70))
def test_packing_comes_back(values: list[int]) -> None:
    bits = np.array(values, np.uint8)
    packed = pack_bits(bits)
    assert packed.dtype == torch.uint8
    assert len(packed) == packed_size(len(bits)) == math.ceil(len(bits) / 8)
    assert unpack_bits(packed[None], len(bits))[0].tolist() == values
    assert packing_flaws(packed[None], len(bits)) == {}


def test_200_bits_are_25_bytes() -> None:
    assert [packed_size(length) for length in (200, 1240, 7680, 21504)] == [25, 155, 960, 2688]


def test_bad_packed_embeddings_are_found_by_row() -> None:
    good = torch.zeros(2, 3, dtype=torch.uint8)
    good[1, 2] = 0b0001_0000
    assert packing_flaws(good, 20) == {}
    good[1, 2] = 0b0000_1000
    assert packing_flaws(good, 20) == {1: "its embedding has bits set beyond its length of 20"}
    assert "shape (3,) instead of (4,)" in packing_flaws(good, 32)[0]
    assert "float32, not packed bits" in packing_flaws(good.float(), 20)[1]


def test_epsilon() -> None:
    assert epsilon_per_bit(0.1) == pytest.approx(math.log(9))
    assert epsilon_total(0.1, 200) == pytest.approx(439.4, abs=0.1)
    assert epsilon_per_bit(0.5) == 0.0
    assert math.isinf(epsilon_per_bit(0.0))
    assert flip_for(epsilon_per_bit(0.2)) == pytest.approx(0.2)
    assert epsilon_total(0.1, 200, reports=50) == epsilon_total(0.1, 200, reports=2) == 2 * epsilon_total(0.1, 200)
    with pytest.raises(CoterieError, match="epsilon"):
        flip_for(-1.0)
    with pytest.raises(CoterieError, match="must lie in"):
        epsilon_per_bit(0.7)

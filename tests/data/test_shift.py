from __future__ import annotations

import pytest
import torch

from coterie.core.errors import CoterieError
from coterie.core.samples import Samples
from coterie.data.shift import Shift, combine, cycle, cycles, domains, rotation, rotations, swap, swaps

IMAGE = torch.tensor([[[[1, 2], [3, 4]]]], dtype=torch.uint8)


def shifted(shift: Shift, label: int = 0) -> tuple[list[int], int]:
    after = shift(Samples(IMAGE, torch.tensor([label])))
    return after.x.flatten().tolist(), int(after.y)


@pytest.mark.parametrize(
    ("degrees", "pixels"),
    [
        (0, [1, 2, 3, 4]),
        (90, [2, 4, 1, 3]),
        (180, [4, 3, 2, 1]),
        (270, [3, 1, 4, 2]),
        (450, [2, 4, 1, 3]),
        (-90, [3, 1, 4, 2]),
    ],
)
def test_rotation_is_counter_clockwise(degrees: int, pixels: list[int]) -> None:
    """1 2 / 3 4 turned left by a quarter is 2 4 / 1 3."""
    assert shifted(rotation(degrees)) == (pixels, 0)


def test_rotation_keeps_all_channels_and_the_type() -> None:
    x = torch.arange(2 * 3 * 4 * 4).reshape(2, 3, 4, 4).to(torch.uint8)
    after = rotation(90)(Samples(x, torch.zeros(2, dtype=torch.int64))).x
    assert after.dtype == torch.uint8
    assert after.is_contiguous()
    for image, turned in zip(x, after, strict=True):
        for channel, one in zip(image, turned, strict=True):
            assert torch.equal(one, torch.rot90(channel))


def test_groups_of_rotations() -> None:
    assert [shift.turns for shift in rotations(2)] == [0, 2]
    assert [shift.turns for shift in rotations(3)] == [0, 1, 2]
    assert [shift.turns for shift in rotations(4)] == [0, 1, 2, 3]
    assert [(shift.turns, shift.mirrored) for shift in rotations(6)[3:]] == [(3, False), (0, True), (1, True)]
    with pytest.raises(CoterieError, match="at most 8 groups"):
        rotations(9)


@pytest.mark.parametrize("first", rotations(8))
@pytest.mark.parametrize("second", rotations(8))
def test_turns_and_mirrors_combine(first: Shift, second: Shift) -> None:
    """The eight symmetries of a square are a group: one after the other is one of them."""
    samples = Samples(torch.arange(9).view(1, 1, 3, 3), torch.zeros(1, dtype=torch.int64))
    assert torch.equal(combine(first, second)(samples).x, second(first(samples)).x)


def test_only_images_can_be_mirrored() -> None:
    with pytest.raises(CoterieError, match="cannot be mirrored"):
        Shift(mirrored=True)(Samples(torch.zeros(1, 6), torch.zeros(1)))


def test_rotation_errors() -> None:
    with pytest.raises(CoterieError, match="multiples of 90"):
        rotation(45)
    with pytest.raises(CoterieError, match="give square images"):
        rotation(90)(Samples(torch.zeros(1, 1, 2, 3), torch.zeros(1)))
    with pytest.raises(CoterieError, match="give square images"):
        rotation(180)(Samples(torch.zeros(1, 6), torch.zeros(1)))
    assert rotation(180)(Samples(torch.arange(6.0).view(1, 1, 2, 3), torch.zeros(1))).x.flatten()[0] == 5


def test_swap() -> None:
    shift = swap([(0, 1), (4, 2)], 5)
    assert [shifted(shift, label)[1] for label in range(5)] == [1, 0, 4, 3, 2]
    for pairs in ([(0, 1), (1, 2)], [(0, 0)], [(4, 5)], [(-1, 2)]):
        with pytest.raises(CoterieError, match="not disjoint pairs"):
            swap(pairs, 5)


def test_groups_of_swaps() -> None:
    """Two groups swap 0/1 and 6/7 (PANM, no group unswapped), four groups the first four pairs."""
    assert [swap([pair], 10) for pair in ((0, 1), (6, 7))] == swaps(2, 10)
    assert [swap([pair], 10) for pair in ((0, 1), (2, 3), (4, 5), (6, 7))] == swaps(4, 10)
    assert swaps(2, 4) == [swap([(0, 1)], 4), swap([(2, 3)], 4)]
    with pytest.raises(CoterieError, match="10 classes have 5 disjoint pairs"):
        swaps(6, 10)


def test_cycle() -> None:
    """(y - 2) mod 10: 0 -> 8, 1 -> 9, 2 -> 0, 9 -> 7."""
    assert [shifted(cycle(2, 10), label)[1] for label in (0, 1, 2, 9)] == [8, 9, 0, 7]
    assert cycles(3, 10) == [Shift(), cycle(1, 10), cycle(2, 10)]
    with pytest.raises(CoterieError, match="can be cycled in 10 ways"):
        cycles(11, 10)


def test_domains() -> None:
    assert [shift.domain for shift in domains(2, ["a", "b", "c"])] == [0, 1]
    with pytest.raises(CoterieError, match=r"3 domains \(a, b, c\)"):
        domains(4, ["a", "b", "c"])


def test_combination() -> None:
    """Swap 0/1 then turn by 90 degrees; two label shifts are applied one after the other."""
    both = combine(swap([(0, 1)], 3), rotation(90))
    assert shifted(both, 0) == ([2, 4, 1, 3], 1)
    assert combine(rotation(90), rotation(270)) == Shift()
    twice = combine(swap([(0, 1)], 3), cycle(1, 3))
    assert [shifted(twice, label)[1] for label in range(3)] == [0, 2, 1]
    assert combine(Shift(domain=2), rotation(180)) == Shift(turns=2, domain=2)
    with pytest.raises(CoterieError, match="both choose a domain"):
        combine(Shift(domain=1), Shift(domain=2))


def test_nothing_to_do_copies_nothing() -> None:
    samples = Samples(IMAGE, torch.tensor([0]))
    assert Shift()(samples).x is IMAGE

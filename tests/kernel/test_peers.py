"""Means and products of many models: as torch has them, the same bits in any company, wrong arguments refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.rng import torch_rng
from coterie.kernel import library
from coterie.kernel import rows as peers
from tests.kernel.reference import needs_kernel

pytestmark = needs_kernel
WIDTHS = [1, 7, 16, 37, 511, 512, 513, 1100]
LONG = 70_001
"""More columns than a piece has: threads share them."""


@pytest.fixture
def threads() -> Iterator[None]:
    """Whatever a test does to torch's threads ends with it."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def compiled() -> library.Library:
    found = library.installed()
    assert isinstance(found, library.Library)
    return found


def drawn(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch_rng(seed, "peers", *shape), dtype=dtype)


def pairs(rows: int, number: int) -> tuple[Tensor, Tensor]:
    g = torch_rng(number, "pairs")
    first, second = torch.randint(rows, (2, number), generator=g)
    return first, second


def by_hand(end: Tensor, begin: Tensor, first: Tensor, second: Tensor) -> Tensor:
    change = (end - begin).double()
    return (change[first] * change[second]).sum(1)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_means_are_those_of_torch(width: int, dtype: torch.dtype) -> None:
    rows = drawn(9, width, dtype=dtype)
    sizes = torch.tensor([1, 6, 3, 9])
    members = torch.cat([torch.randperm(9, generator=torch_rng(i, "bag"))[:size] for i, size in enumerate(sizes)])
    found = peers.means(compiled(), rows, members, sizes)
    expected = torch.stack([rows[bag].double().mean(0) for bag in members.split(sizes.tolist())])
    assert torch.allclose(found.double(), expected, rtol=0, atol=4 * torch.finfo(dtype).eps)
    assert torch.equal(found[0], rows[members[0]]), "alone, a model stays what it is"


@pytest.mark.parametrize("width", WIDTHS)
def test_products_are_those_of_torch(width: int) -> None:
    """Two parts, two kinds of beginnings: of each model its own, and one for all."""
    ends, own = [drawn(13, width), drawn(13, 5)], [drawn(13, width, seed=1), drawn(13, 5, seed=1)]
    origin = [drawn(1, width, seed=2), drawn(1, 5, seed=2)]
    first, second = pairs(13, 40)
    found = peers.products(compiled(), ends, [own, origin], first, second)
    for kind, begin in zip(found, (own, origin), strict=True):
        expected = sum(by_hand(*parts, first, second) for parts in zip(ends, begin, strict=True))
        assert torch.allclose(kind, torch.as_tensor(expected), rtol=1e-12, atol=1e-12)


def test_single_precision_products_are_near() -> None:
    end, begin = drawn(6, LONG, dtype=torch.float32), drawn(6, LONG, dtype=torch.float32, seed=1)
    first, second = pairs(6, 20)
    found = peers.products(compiled(), [end], [[begin]], first, second)[0]
    exact = by_hand(end.double(), begin.double(), first, second)
    assert torch.allclose(found, exact, rtol=0, atol=1e-6 * 2 * LONG)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_neither_threads_nor_company_change_a_bit(dtype: torch.dtype, threads: None) -> None:
    end, begin = drawn(12, LONG, dtype=dtype), drawn(12, LONG, dtype=dtype, seed=1)
    first, second = pairs(12, 50)
    sizes, members = torch.tensor([5, 7]), torch.arange(12)
    results = []
    for number in (1, 2):
        torch.set_num_threads(number)
        products = peers.products(compiled(), [end], [[begin]], first, second)
        results.append((products, peers.means(compiled(), end, members, sizes)))
    assert all(torch.equal(*both) for both in zip(*results, strict=True))
    whole = results[0][0][0]
    turned = peers.products(compiled(), [end], [[begin]], second.clone(), first.clone())[0]
    assert torch.equal(turned, whole)
    alone = [peers.products(compiled(), [end], [[begin]], first[p : p + 1], second[p : p + 1])[0, 0] for p in range(9)]
    assert torch.equal(torch.stack(alone), whole[:9])
    few = torch.stack([first[:9], second[:9]]).unique()
    moved = peers.products(
        *(compiled(), [end[few]], [[begin[few]]]),
        *(torch.searchsorted(few, side[:9].contiguous()) for side in (first, second)),
    )
    assert torch.equal(moved[0], whole[:9])


def test_rows_may_be_views() -> None:
    """Columns of a wider matrix, and one model spread over all rows."""
    wide = drawn(8, 900)
    view, shared = wide[:, 100:640], drawn(1, 540).expand(8, 540)
    first, second = pairs(8, 10)
    found = peers.products(compiled(), [view], [[shared]], first, second)
    assert torch.equal(found, peers.products(compiled(), [view.contiguous()], [[shared.contiguous()]], first, second))
    bags = torch.tensor([0, 3, 7]), torch.tensor([2, 1])
    assert torch.equal(peers.means(compiled(), view, *bags), peers.means(compiled(), view.contiguous(), *bags))


def test_nothing_asked_is_nothing() -> None:
    none = torch.empty(0, dtype=torch.int64)
    assert peers.products(compiled(), [drawn(3, 4)], [[drawn(1, 4)]], none, none).shape == (1, 0)


def test_what_is_not_finite_stays_with_its_pairs() -> None:
    end = drawn(4, 600)
    end[2, 555] = torch.nan
    first, second = torch.tensor([0, 0, 0, 1]), torch.tensor([1, 2, 3, 3])
    found = peers.products(compiled(), [end], [[drawn(1, 600, seed=1)]], first, second)[0]
    assert found.isnan().tolist() == [False, True, False, False]
    means = peers.means(compiled(), end, torch.tensor([0, 1, 2, 3]), torch.tensor([2, 2]))
    assert means.isnan().nonzero().tolist() == [[1, 555]]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"rows": torch.zeros(4)}, "one model per row"),
        ({"rows": torch.zeros(4, 0)}, "one model per row"),
        ({"rows": torch.zeros(4, 3, dtype=torch.float16)}, "float32 or float64"),
        ({"rows": torch.zeros(3, 4).T}, "side by side"),
        ({"members": torch.tensor([0, 4])}, "members must hold numbers from 0 to 3"),
        ({"members": torch.tensor([0, -1])}, "members must hold"),
        ({"members": torch.tensor([0, 1], dtype=torch.int32)}, "members must be a contiguous list"),
        ({"members": torch.arange(4)[::2]}, "members must be a contiguous list"),
        ({"sizes": torch.tensor([1])}, "sizes must be"),
        ({"sizes": torch.tensor([2, 0])}, "sizes must be"),
        ({"sizes": torch.tensor([], dtype=torch.int64)}, "sizes must be"),
        ({"sizes": torch.tensor([3, -1])}, "sizes must hold"),
    ],
)
def test_wrong_means_are_refused(change: dict[str, Any], text: str) -> None:
    right = {"rows": torch.zeros(4, 3), "members": torch.tensor([0, 1]), "sizes": torch.tensor([1, 1])}
    with pytest.raises(CoterieError, match=text):
        peers.means(compiled(), **{**right, **change})


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"ends": []}, "at least one part"),
        ({"begins": []}, "at least one part"),
        ({"begins": [[torch.zeros(4, 3)] * 2]}, "each with as many parts"),
        ({"begins": [[torch.zeros(4, 2)]]}, "not that of part 0"),
        ({"begins": [[torch.zeros(3, 3)]]}, "not that of part 0"),
        ({"begins": [[torch.zeros(4, 3).double()]]}, "of one type"),
        ({"ends": [torch.zeros(4, 3), torch.zeros(5, 3)], "begins": [[torch.zeros(1, 3)] * 2]}, "Part 1 holds 5"),
        ({"ends": [None]}, "one model per row"),
        ({"first": torch.tensor([4, 0])}, "first must hold numbers from 0 to 3"),
        ({"second": torch.tensor([-1, 0])}, "second must hold"),
        ({"second": torch.tensor([1])}, "two sides of pairs"),
        ({"first": torch.tensor([[0, 1]])}, "first must be a contiguous list"),
    ],
)
def test_wrong_products_are_refused(change: dict[str, Any], text: str) -> None:
    right = {"ends": [torch.zeros(4, 3)], "begins": [[torch.zeros(4, 3)]]}
    index = {"first": torch.tensor([0, 1]), "second": torch.tensor([2, 3])}
    with pytest.raises(CoterieError, match=text):
        peers.products(compiled(), **{**right, **index, **change})

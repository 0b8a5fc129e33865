"""The algebra of states, by hand numbers and by properties."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from coterie.core.rng import torch_rng
from coterie.core.states import (
    Stack,
    axpy,
    bag_means,
    clone,
    concat,
    cosine,
    count,
    distance,
    flat,
    group_means,
    mean,
    minus,
    mix,
    row,
    spread,
    stack,
    take,
    unflat,
    zeros,
)

shapes = st.lists(st.integers(1, 3), max_size=3).map(tuple)


@st.composite
def stacks(draw: st.DrawFn, rows: int | None = None) -> Stack:
    """A few entries of any shape, floating or whole."""
    number = draw(st.integers(1, 5)) if rows is None else rows
    generator = torch_rng(draw(st.integers(0, 1000)), "stacks")
    result: Stack = {}
    for index, shape in enumerate(draw(st.lists(shapes, min_size=1, max_size=4))):
        dtype = torch.float64 if index == 0 else draw(st.sampled_from([torch.float64, torch.float32, torch.int64]))
        size = (number, *shape)
        if dtype == torch.int64:
            result[f"layer{index}"] = torch.randint(0, 100, size, generator=generator)
        else:
            result[f"layer{index}"] = torch.randn(size, generator=generator, dtype=dtype)
    return result


def equal(a: Stack, b: Stack) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@given(stacks())
def test_flat_and_unflat_are_inverse(models: Stack) -> None:
    matrix = flat({name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in models.items()})
    again = unflat(matrix, models)
    assert all(torch.equal(again[name].to(tensor.dtype), tensor) for name, tensor in models.items())
    floats = [tensor for tensor in models.values() if tensor.is_floating_point()]
    assert matrix.shape == (count(models), sum(tensor[0].numel() for tensor in floats))


@given(stacks(), st.data())
def test_take_gives_the_rows_asked_for(models: Stack, data: st.DataObject) -> None:
    index = data.draw(st.lists(st.integers(0, count(models) - 1), min_size=1, max_size=6))
    taken = take(models, torch.tensor(index))
    for place, wanted in enumerate(index):
        assert equal(row(taken, place), row(models, wanted))


@given(stacks())
def test_stack_concat_and_clone(models: Stack) -> None:
    rows = [row(models, i) for i in range(count(models))]
    assert equal(stack(rows), models)
    assert equal(concat([stack(rows[:1]), stack(rows)]), take(models, torch.tensor([0, *range(count(models))])))
    copy = clone(models)
    copy["layer0"].zero_()
    assert not models["layer0"].eq(0).all()


@given(stacks(rows=1), st.lists(st.floats(0.1, 10), min_size=1, max_size=6))
def test_the_mean_of_equal_models_is_the_model(models: Stack, weights: list[float]) -> None:
    one = row(models, 0)
    average = mean(spread(one, len(weights)), torch.tensor(weights, dtype=torch.float64))
    for name, tensor in one.items():
        assert average[name].dtype == tensor.dtype
        assert torch.allclose(average[name].double(), tensor.double(), rtol=1e-6, atol=1e-6)
        if not tensor.is_floating_point():
            assert torch.equal(average[name], tensor)


@settings(max_examples=50)
@given(stacks(), st.data())
def test_mixing_with_row_stochastic_weights_stays_inside(models: Stack, data: st.DataObject) -> None:
    """A convex mixture lies between the smallest and the largest model, in every entry."""
    numbers = st.lists(st.floats(0.01, 1), min_size=count(models), max_size=count(models))
    weights = torch.tensor(data.draw(st.lists(numbers, min_size=1, max_size=3)), dtype=torch.float64)
    weights /= weights.sum(1, keepdim=True)
    for name, mixed in mix(weights, models).items():
        low, high = models[name].amin(0).double() - 1e-5, models[name].amax(0).double() + 1e-5
        assert mixed.shape == (len(weights), *models[name].shape[1:])
        assert bool((mixed.double() >= low).all())
        assert bool((mixed.double() <= high).all())


def test_mix_by_hand() -> None:
    """Rows (1, 2) and (3, 6): their mean is (2, 4), one quarter against three quarters is (2.5, 5)."""
    mixed = mix(torch.tensor([[0.5, 0.5], [0.25, 0.75]]), {"w": torch.tensor([[1.0, 2.0], [3.0, 6.0]])})
    assert mixed["w"].tolist() == [[2.0, 4.0], [2.5, 5.0]]


def test_integer_buffers_are_averaged_and_rounded() -> None:
    """Counters 1, 2, 4 with weights 1, 1, 2: (1 + 2 + 8) / 4 = 2.75, rounded 3."""
    average = mean({"n": torch.tensor([1, 2, 4])}, torch.tensor([1.0, 1.0, 2.0]))
    assert average["n"].dtype == torch.int64
    assert int(average["n"]) == 3


def test_a_mean_without_weight_is_the_plain_one() -> None:
    """Clients without samples have sent back what they got: its mean is no NaN."""
    assert float(mean({"w": torch.tensor([1.0, 3.0])}, torch.zeros(2))["w"]) == 2.0


def test_group_means_by_hand() -> None:
    """Groups 0, 2, 0 with weights 1, 5, 3: group 0 is (1 + 3 * 5) / 4 = 4, group 2 is 7, group 1 keeps its 9."""
    models = {"w": torch.tensor([[1.0], [7.0], [5.0]]), "n": torch.tensor([2, 8, 4])}
    previous = {"w": torch.full((3, 1), 9.0), "n": torch.tensor([9, 9, 9])}
    means = group_means(models, torch.tensor([1.0, 5.0, 3.0]), torch.tensor([0, 2, 0]), previous)
    assert means["w"].flatten().tolist() == [4.0, 9.0, 7.0]
    assert means["n"].tolist() == [4, 9, 8]  # (2 + 3 * 4) / 4 = 3.5, rounded to even


def test_a_group_whose_members_weigh_nothing_keeps_its_model() -> None:
    previous = {"w": torch.tensor([[3.0]])}
    means = group_means({"w": torch.tensor([[8.0]])}, torch.zeros(1), torch.tensor([0]), previous)
    assert float(means["w"]) == 3.0


@given(st.integers(1, 4), st.lists(st.integers(0, 3), min_size=1, max_size=8))
def test_group_means_are_row_stochastic(k: int, groups: list[int]) -> None:
    """Where every model is all ones, so is every mean: the weights of a row add up to one."""
    chosen = torch.tensor([group % k for group in groups])
    ones: Stack = {"w": torch.ones(len(groups), 2, dtype=torch.float64)}
    sizes = torch.arange(1, len(groups) + 1, dtype=torch.float64)
    means = group_means(ones, sizes, chosen, {"w": torch.full((k, 2), -1.0, dtype=torch.float64)})
    for group in range(k):
        expected = 1.0 if group in chosen.tolist() else -1.0
        assert means["w"][group].tolist() == pytest.approx([expected] * 2, abs=1e-12)


def test_axpy_minus_and_zeros_leave_counters_alone() -> None:
    x: Stack = {"w": torch.tensor([3.0]), "n": torch.tensor([5])}
    y: Stack = {"w": torch.tensor([1.0]), "n": torch.tensor([2])}
    assert minus(x, y).keys() == {"w"}
    assert zeros(x).keys() == {"w"}
    assert float(minus(x, y)["w"]) == 2.0
    moved = axpy(2.0, x, y)
    assert (float(moved["w"]), int(moved["n"])) == (7.0, 2)


def test_distance_and_cosine_by_hand() -> None:
    """(3, 4) is 5 from the origin; (1, 0) and (1, 1) enclose 45 degrees; a zero vector has cosine 0."""

    def models(*vectors: tuple[float, float]) -> Stack:
        return {"w": torch.tensor(vectors)}

    assert distance(models((3.0, 4.0), (0.0, 0.0)), models((0.0, 0.0))).flatten().tolist() == [5.0, 0.0]
    matrix: Tensor = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    angles = cosine(matrix)
    assert float(angles[0, 1]) == pytest.approx(math.sqrt(0.5))
    assert angles[2].tolist() == [0.0, 0.0, 0.0]


class Sevens:
    """A backend that says 7.25 of all numbers of float32 and takes no others."""

    def takes(self, rows: Tensor) -> bool:
        return rows.dtype == torch.float32

    def means(self, rows: Tensor, members: Tensor, sizes: Tensor) -> Tensor:
        return torch.full((len(sizes), rows.shape[1]), 7.25)

    def products(self, *_: object) -> Tensor:
        raise NotImplementedError


def test_bag_means_are_by_the_backend_that_is_given_where_it_takes_the_numbers() -> None:
    """Rows 0 and 2 of [1, 2, 4] give 5 / 2, row 1 alone 2; a counter is averaged in float64 and rounded to even."""
    models = {"w": torch.tensor([[1.0], [2.0], [4.0]]), "n": torch.tensor([1, 2, 4])}
    members, sizes = torch.tensor([0, 2, 1]), torch.tensor([2, 1])
    plain, other = bag_means(models, members, sizes), bag_means(models, members, sizes, Sevens())
    assert plain["w"].tolist() == [[2.5], [2.0]]
    assert other["w"].tolist() == [[7.25], [7.25]]
    assert plain["n"].tolist() == other["n"].tolist() == [2, 2]

"""Stacks in a file are stacks like any other, and rules that read them piece by piece find the same."""

from __future__ import annotations

import errno
import os

import pytest
import torch
from torch import Tensor

from coterie.core import spill
from coterie.core.aggregate import RULES, Rule, combined
from coterie.core.errors import Unfinished
from coterie.core.lengths import distances, too_long
from coterie.core.states import Picked, Stack, take

LAYOUT: spill.Layout = {"a": ((7, 5, 3), torch.float32), "b": ((7,), torch.int64), "c": ((7, 0), torch.float64)}


@pytest.fixture
def on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill, "IN_MEMORY", 0)


def replies(clients: int = 12) -> Stack:
    """Models of 130 numbers and a counter; the last is long, so that it is shortened."""
    numbers = torch.Generator().manual_seed(3)
    models: Stack = {
        "weight": torch.randn(clients, 13, 10, generator=numbers),
        "count": torch.arange(clients),
        "bias": torch.randn(clients, generator=numbers),
    }
    models["weight"][-1] *= 30
    return models


def in_file(models: Stack) -> Stack:
    room = spill.empty({name: (tuple(tensor.shape), tensor.dtype) for name, tensor in models.items()})
    half = len(models["count"]) // 2
    spill.put(room, half, {name: tensor[half:] for name, tensor in models.items()})
    spill.put(room, 0, {name: tensor[:half] for name, tensor in models.items()})
    return room


@pytest.mark.usefixtures("on_disk")
def test_room_in_a_file_is_aligned_and_keeps_what_is_put_there() -> None:
    room = spill.empty(LAYOUT)
    assert {name: (tuple(t.shape), t.dtype) for name, t in room.items()} == LAYOUT
    assert all(tensor.data_ptr() % 64 == 0 and tensor.is_contiguous() for tensor in room.values())
    rows: dict[str, Tensor] = {"a": torch.rand(3, 5, 3), "b": torch.tensor([4, 5, 6]), "c": torch.zeros(3, 0).double()}
    spill.put(room, 4, rows)
    spill.let_go()
    assert torch.equal(room["a"][4:], rows["a"])
    assert room["b"].tolist()[4:] == [4, 5, 6]
    picked = spill.taken(room, torch.tensor([6, 4]))
    assert picked["b"].tolist() == [6, 4]
    with pytest.raises(ValueError, match="shape of a"):
        spill.put(room, 0, {**rows, "a": torch.rand(3, 1, 3)})


@pytest.mark.usefixtures("on_disk")
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("block", [spill.BLOCK, 12 * 8 * 16])
def test_a_rule_finds_the_same_in_a_file(rule: Rule, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one piece bit for bit; in pieces of 16 numbers a model, sums in another order may round otherwise."""
    models = replies()
    groups, weights = torch.arange(12) % 2, torch.arange(1.0, 13.0)
    previous = {name: tensor[:2] for name, tensor in models.items()}
    expected = combined(rule, models, weights, groups, previous)
    far = too_long(models, take(previous, groups))
    monkeypatch.setattr(spill, "BLOCK", block)
    spilled = in_file(models)
    found = combined(rule, spilled, weights, groups, previous)
    for name, tensor in expected.items():
        exact = block == spill.BLOCK or name == "count"
        assert torch.allclose(found[name].double(), tensor.double(), rtol=1e-6, atol=0 if exact else 1e-6), name
    assert too_long(spilled, Picked(previous, groups)) == pytest.approx(far)
    assert torch.equal(distances(spilled, Picked(previous, groups)), distances(models, take(previous, groups))), (
        "each length is a sum of its own"
    )


def test_a_full_disk_is_said_before_anything_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    monkeypatch.setattr(spill, "IN_MEMORY", 4096)
    assert spill.empty({"a": ((2, 2), torch.float32)})["a"].shape == (2, 2), "little needs no file"
    with pytest.raises(Unfinished, match=r"take 0\.0 GB and .* has no room .*; set TMPDIR to a folder that has"):
        spill.empty({"a": ((200, 200), torch.float32)})

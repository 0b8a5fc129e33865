"""Groups that see the same and name it otherwise: they train one network, its answers renamed for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import coterie
from coterie.core.layers import rows_of_classes
from coterie.core.states import row
from coterie.core.task import Task
from coterie.core.wire import decode, encode
from coterie.data import build
from coterie.methods import METHODS
from coterie.methods.auto import pace, steady
from coterie.methods.auto.messages import Groups, Known, Look, Pace, Renaming, Visit
from coterie.methods.auto.renamings import appearance, found, handed_back, in_roots_names, match, renaming, settled
from coterie.methods.auto.visits import Came
from coterie.models import build_model
from coterie.runs.advice.differences import other_names
from coterie.simulation.simulator import EngineOptions

HEADS = ["head"]
APART = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 6.0]])
"""What three classes look like: any two differ by 4 at least."""


def halves(means: np.ndarray[tuple[int, ...], np.dtype[np.float64]], noise: float = 0.1) -> np.ndarray[
    tuple[int, ...], np.dtype[np.float64]
]:  # fmt: skip
    return means + np.random.default_rng(0).normal(0, noise, (2, *means.shape))


def test_classes_that_look_alike_are_joined() -> None:
    """Class 0 here is 2 there, 1 is 0, 2 is 1."""
    assert renaming(halves(APART[[2, 0, 1]]), halves(APART, noise=0.05)) == [2, 0, 1]


def test_groups_that_differ_in_more_than_names_are_not_joined() -> None:
    """A class that has moved by 4: 16 beside the 17.3 + 17.3 ... that classes differ by; the same names; noise."""
    moved = APART[[1, 0, 2]] + np.array([[0.0, 0.0], [0.0, 0.0], [4.0, 0.0]])
    assert renaming(halves(moved), halves(APART)) is None
    assert renaming(halves(APART), halves(APART)) is None  # something else told them apart
    assert renaming(halves(0 * APART, noise=1.0), halves(0 * APART, noise=1.0)[::-1].copy()) is None
    swapped = np.stack([APART[[1, 0, 2]], APART[[0, 1, 2]]])  # each half joins other classes
    assert renaming(swapped, np.stack([APART, APART])) is None


def test_classes_are_matched_one_by_one() -> None:
    """0 and 1 are swapped; 2 has moved by 6, which is more than classes differ by; 1 is not known to the other."""
    moved = APART[[1, 0, 2]] + np.array([[0.0, 0.0], [0.0, 0.0], [6.0, 6.0]])
    found = match(halves(moved), halves(APART))
    assert (found.same, found.renamed, found.unlike) == ({0: 1, 1: 0}, {0: 1, 1: 0}, [2])
    whole = match(halves(APART[[1, 0, 2]]), halves(APART))
    assert (whole.same, whole.renamed, whole.unlike) == ({0: 1, 1: 0, 2: 2}, {0: 1, 1: 0}, [])
    fewer = halves(APART)
    fewer[:, 1] = np.nan
    assert match(halves(APART[[1, 0, 2]]), fewer).same == {1: 0, 2: 2}  # what is left over is guessed: not said
    assert match(0 * APART[None] * np.nan + np.zeros((2, 1, 1)), halves(APART)).same == {}


def test_both_halves_join_the_same_classes_also_where_one_group_has_more() -> None:
    """Four classes here, two known there: one half joins 1 and 2 to them, the other 0 and 1."""
    other = np.full((2, 4, 1), np.nan)
    other[:, 0], other[:, 1] = 0.0, 10.0
    own = np.array([[[-50.0], [0.0], [10.0], [90.0]], [[0.0], [10.0], [50.0], [90.0]]])
    assert renaming(own, other) is None


def test_a_class_that_a_group_lacks_has_the_name_that_is_left() -> None:
    own, other = halves(APART[[1, 0, 2]]), halves(APART)
    own[:, 2] = np.nan
    assert renaming(own, other) == [1, 0, 2]
    own[:, 1] = np.nan
    assert renaming(own, other) is None  # one class says nothing


def test_one_liar_does_not_decide_what_a_class_looks_like() -> None:
    honest = torch.from_numpy(halves(APART)).float()
    counts = torch.ones(2, 3)
    looks = {f"c{i}": Look(torch.zeros(0), counts, appearance=honest + 0.01 * i) for i in range(4)}
    looks["liar"] = Look(torch.zeros(0), counts, appearance=torch.full((2, 3, 2), 1e30))
    state = Groups({}, {}, dict.fromkeys(looks, 0), {}, looks, {}, {})
    seen = appearance(state, list(looks))
    assert seen is not None
    assert np.allclose(seen, honest.numpy() + 0.02, atol=1e-5)
    looks["old"] = Look(torch.zeros(0), counts)  # of an older version's checkpoint
    assert np.array_equal(seen, appearance(state, list(looks)))  # type: ignore[arg-type]
    assert appearance(state, ["old"]) is None
    assert appearance(state, ["c0", "c1"]) is None  # two samples of a class are too few


class HeadFirst(nn.Module):
    """A network that lists its last layer first."""

    def __init__(self, scaled: bool) -> None:
        super().__init__()
        self.head = nn.Linear(5, 3)
        self.body = nn.Linear(4, 5)
        self.scaled = scaled

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(torch.relu(self.body(x)))
        return found * torch.tensor([1.0, 2.0, 3.0]) if self.scaled else found


@pytest.mark.parametrize(("scaled", "names"), [(False, ["head.weight", "head.bias"]), (True, [])])
def test_rows_of_classes_are_tried_out(scaled: bool, names: list[str]) -> None:
    """Where the answers of a layer are not the network's, one each, no rows are those of classes."""
    x, y = torch.randn(9, 4), torch.arange(9) % 3
    population = coterie.from_arrays({"a": (x.numpy(), y.numpy()), "b": (x.numpy(), y.numpy())})
    assert rows_of_classes(Task.of(partial(HeadFirst, scaled), population)) == names


class Odd(nn.Module):
    """A last layer with something that a renaming must know of, or a body that does not take made-up numbers."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.body = nn.Embedding(9, 4) if what == "tokens" else nn.Linear(4, 4)
        self.head = nn.Linear(4, 3, bias=what != "late bias")
        self.late = nn.Parameter(torch.zeros(3))
        self.after = nn.LayerNorm(3) if what == "norm" else nn.Identity()
        if what == "scale":
            self.head.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        body = self.body(x).mean(1) if self.what == "tokens" else torch.relu(self.body(x))
        found: Tensor = self.after(self.head(body))
        return found + self.late if self.what == "late bias" else found


@pytest.mark.parametrize("what", ["tokens", "late bias", "norm", "scale"])
def test_networks_that_no_renaming_fits_have_no_such_rows_and_train_as_before(what: str) -> None:
    """Zeros of a late bias and ones of a norm would be exchanged for what they learn; a scale is no row of a class."""
    generator = np.random.default_rng(0)
    tokens = what == "tokens"
    draw = (lambda: generator.integers(0, 9, (12, 4))) if tokens else (lambda: generator.normal(size=(12, 4)))
    clients = {f"c{i}": (draw() if tokens else draw().astype(np.float32), np.arange(12) % 3) for i in range(4)}
    population = coterie.from_arrays(clients, **({"layout": "tokens"} if tokens else {}))  # type: ignore[arg-type]
    task = Task.of(partial(Odd, what), population)
    assert rows_of_classes(task) == (["head.weight", "head.bias"] if what == "scale" else [])
    found = coterie.run(METHODS["auto"](lr=0.01), population, partial(Odd, what), rounds=2, seed=1)
    assert found.rounds == 2


@pytest.mark.parametrize("kind", ["multilabel", "regression", "ready"])
def test_tasks_without_classes_and_networks_that_cannot_be_drawn_again_train_as_before(kind: str) -> None:
    generator = np.random.default_rng(0)
    targets: dict[str, Callable[[], Any]] = {
        "multilabel": lambda: generator.integers(0, 2, (12, 3)).astype(np.float32),
        "regression": lambda: generator.normal(size=(12, 3)).astype(np.float32),
        "ready": lambda: np.arange(12) % 3,
    }
    clients = {f"c{i}": (generator.normal(size=(12, 4)).astype(np.float32), targets[kind]()) for i in range(4)}
    population = coterie.from_arrays(clients, **({"task": kind} if kind != "ready" else {}))  # type: ignore[arg-type]
    model = Odd("late bias") if kind == "ready" else nn.Linear(4, 3)
    assert coterie.run(METHODS["auto"](lr=0.01), population, model, rounds=2, seed=1).rounds == 2


def test_the_largest_group_leads_and_its_network_goes_on() -> None:
    """A liar alone in group 1 shows the classes of group 2, two exchanged: it takes the network of the twenty."""
    there = torch.from_numpy(halves(APART)).float()
    shown = {f"h{i}": (2, there) for i in range(20)} | {"liar": (1, there[:, [1, 0, 2]])}
    counts = torch.full((2, 3), 5.0)
    looks = {name: Look(torch.zeros(0), counts, appearance=each) for name, (_, each) in shown.items()}
    cluster = {name: group for name, (group, _) in shown.items()}
    fed: Any = SimpleNamespace(task=_three_classes(), round=3, note=lambda text: None)
    models = {"weight": torch.zeros(3, 3, 4), "bias": torch.tensor([[0.0] * 3, [6.0] * 3, [1.0, 2.0, 3.0]])}
    state = Groups(models, models, cluster, {}, looks, {}, {}, clear=True)
    after = settled(Groups(models, models, {}, {}, {}, {}, {}), state, fed)
    assert after.renamed == {"1": Renaming(2, [1, 0, 2])}
    assert after.models["bias"].tolist() == [[0.0] * 3, [2.0, 1.0, 3.0], [1.0, 2.0, 3.0]]
    assert after.arrived == ["liar"]  # what it has lost before was by another network
    moved = {f"h{i}": Look(torch.zeros(0), counts, appearance=there[:, [1, 0, 2]]) for i in range(11)}
    grown = replace(after, cluster={**cluster, **dict.fromkeys(moved, 1)}, looks={**looks, **moved})
    assert found(grown, fed)["1"].root == 2  # twelve against nine, which have led
    doubted = replace(after, paces={"2": Pace(0.5, [0.1], row(models, 2), doubted=True)})
    apart = replace(doubted, looks={name: look for name, look in looks.items() if name != "liar"})
    alone = settled(doubted, apart, fed)
    assert (alone.renamed, alone.paces["1"]) == ({}, Pace(0.5, [], {}))  # its own network has not been in doubt


def _three_classes() -> Task:
    x, y = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32), np.arange(9) % 3
    return Task.of(nn.Linear(4, 3), coterie.from_arrays({"a": (x, y), "b": (x, y)}))


def test_models_go_to_the_roots_names_and_back() -> None:
    """Row 0 of group 1 is row 2 of group 0, and so on; nothing else is touched."""
    state = Groups({}, {}, {}, {}, {}, {}, {}, renamed={"1": Renaming(0, [2, 0, 1])})
    own = {"head": torch.tensor([[0.0, 1.0, 2.0], [2.0, 0.0, 1.0]]), "body": torch.tensor([[1.0], [1.0]])}
    there = in_roots_names(state, own, [0, 1], HEADS)
    assert there["head"].tolist() == [[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]]
    assert handed_back(state, there, HEADS, state.renamed)["head"].tolist() == own["head"].tolist()


def test_groups_of_one_network_have_one_pace_and_one_mean() -> None:
    """Four members of each group lose: both are taken back to the root's good model, each under its own names.

    Two of the eight members came, of the one group: the mean of both moves by a quarter.
    """
    models = {"head": torch.tensor([[5.0, 7.0], [7.0, 5.0]])}
    cluster = {f"{group}-{number}": group for group in (0, 1) for number in range(4)}
    known = {client: Known(3, 10.0, 1.0) for client in cluster}
    good = Pace(1.0, [], {"head": torch.tensor([1.0, 2.0])})
    state = Groups(
        models, models, cluster, known, {}, {}, {}, paces={"0": good}, renamed={"1": Renaming(0, [1, 0])}, clear=True
    )
    came = [
        Came(tuple(f"{g}-{i}" for i in range(4)), Visit({}, torch.ones(4), torch.full((4,), 2.0)), {}, [g] * 4)
        for g in (0, 1)
    ]
    learnt = replace(state, first_loss=2.0)
    slower, back, held, _ = pace.judged(learnt, came, uneven=False)
    assert (back, held) == (set(), {0, 1}), "in doubt"
    slower, back, held, _ = pace.judged(slower, came, uneven=False)
    assert back == held == {0, 1}
    assert slower.pace.tolist() == [0.5, 0.5]
    assert pace.taken_back(slower, models, back, HEADS)["head"].tolist() == [[1.0, 2.0], [2.0, 1.0]]
    some = [Came(("0-0", "0-1"), Visit({}, torch.ones(2), torch.ones(2)), {}, [0, 0])]
    after = steady.followed(state, Groups(**{**vars(state), "models": {"head": models["head"] + 4}}), some, [])
    assert after.steady["head"].tolist() == [[6.0, 8.0], [8.0, 6.0]]


def test_renamings_are_in_the_checkpoint() -> None:
    state = Groups(
        {"w": torch.zeros(2, 1)}, {"w": torch.zeros(2, 1)}, {}, {}, {}, {}, {}, renamed={"1": Renaming(0, [1, 0])}
    )
    assert decode(encode(state), Groups).renamed == state.renamed


@pytest.mark.parametrize("shift", ["swap", "cycle"])
def test_swapped_and_cycled_labels_are_learnt_together(shift: str) -> None:
    """Every group's network is that of group 0 with the rows of its last layer in another order, to the bit.

    One group swaps 0 and 1, the other 6 and 7; or one cycles its labels by one.
    """
    population = build("rotated-digits", seed=8, clients=12, groups=2, shift=shift)  # type: ignore[arg-type]
    options = {"rounds": 6, "seed": 8, "engine": EngineOptions(workers=1)}
    model = partial(build_model, "digits-mlp", tuple(population.shape), population.classes)
    found = coterie.run(METHODS["auto"](), population, model, **options)  # type: ignore[arg-type]
    apart = coterie.run(METHODS["oracle"](), population, model, **options)  # type: ignore[arg-type]
    state = found.state
    assert isinstance(state, Groups)
    labels = state.renamed["1"].labels
    assert labels == ([1, 0, 2, 3, 4, 5, 7, 6, 8, 9] if shift == "swap" else [*range(1, 10), 0])
    last = list(state.models)[-2:]
    for name, tensor in state.models.items():
        assert torch.equal(tensor[1], tensor[0][labels] if name in last else tensor[0])
    assert found.accuracy > apart.accuracy + 0.02
    assert found.ari == 1
    said = other_names(state, {0: 0, 1: 1}, [])
    assert (said.joined, said.alone, said.whole) == (True, True, False)
    assert "Group 1 gives some of what group 0 sees other names: its '0' is '1' there" in said.remarks[0]
    assert "is there, the samples do not tell." in said.remarks[0]  # of one class too few are there


def test_rotated_groups_train_apart() -> None:
    population = build("rotated-digits", seed=7, clients=12, groups=2)
    model = partial(build_model, "digits-mlp", tuple(population.shape), population.classes)
    found = coterie.run(METHODS["auto"](), population, model, rounds=3, seed=7, engine=EngineOptions(workers=1))
    assert found.ari == 1
    assert isinstance(found.state, Groups)
    assert found.state.renamed == {}

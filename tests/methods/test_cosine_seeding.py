"""Groups of clients by the directions of their updates."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from coterie.core.task import Task
from coterie.methods.md_icfl.seeding import (
    cosine_groups,
    directions,
    numbered,
    same_partition,
    seeding_layer,
    steady,
)
from coterie.models import build_model


def layer_of(*layers: nn.Module, shape: tuple[int, ...] = (1, 4, 4)) -> str:
    return seeding_layer(Task(nn.Sequential(*layers), shape, 2))


def test_the_layer_is_the_first_fully_connected_one() -> None:
    assert layer_of(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2)) == "2.weight"


def test_the_layer_is_never_the_classifier_unless_there_is_no_other() -> None:
    """A convolution before one linear layer, two convolutions alone, and a single linear layer."""
    assert layer_of(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2)) == "0.weight"
    assert layer_of(nn.Conv2d(1, 3, 3), nn.Conv2d(3, 2, 2), nn.Flatten()) == "0.weight"
    assert layer_of(nn.Flatten(), nn.Linear(16, 2)) == "1.weight"


def test_resnet_18_gives_its_last_convolution() -> None:
    """Its only matrix of two dimensions is the classifier, which shows the groups worst of all layers."""
    task = Task(lambda: build_model("resnet18", (3, 32, 32), 10), (3, 32, 32), 10)
    layer = seeding_layer(task)
    weights = [key for key in task.parameters if task.template[key].dim() > 1]
    classifier = next(key for key in weights if task.template[key].dim() == 2)
    assert task.template[layer].dim() == 4
    assert weights.index(layer) == weights.index(classifier) - 1


def test_a_head_that_is_written_down_first_is_still_the_classifier() -> None:
    class HeadFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 2)
            self.body = nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            answer: torch.Tensor = self.head(self.body(x.flatten(1)))
            return answer

    assert seeding_layer(Task(HeadFirst, (1, 4, 4), 2)) == "body.weight"


def test_directions_by_hand() -> None:
    """Updates (3, 1) and (1, 1) have the mean (2, 1); what is left is (1, 0) and (-1, 0), of length 1 already."""
    found = directions({"w": torch.tensor([[[5.0, 5.0]], [[3.0, 5.0]]])}, {"w": torch.tensor([[2.0, 4.0]])}, "w")
    assert torch.allclose(found, torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))


def test_labels_are_regressed_out() -> None:
    """Every client's update is what its labels pull plus a mark of its group: less the labels only the marks remain."""
    g = torch.Generator().manual_seed(0)
    shares = torch.softmax(3 * torch.randn(24, 4, generator=g), 1)
    marks = torch.randn(2, 50, generator=g)[torch.arange(24) % 2]
    updates = 20 * shares @ torch.randn(4, 50, generator=g) + marks
    names = [f"{i:02d}" for i in range(24)]
    truth = numbered(names, [i % 2 for i in range(24)])

    def groups(labels: torch.Tensor | None) -> dict[str, int]:
        found = directions({"w": updates}, {"w": torch.zeros(50)}, "w", labels, ridge=0.01)
        return cosine_groups(dict(zip(names, found, strict=True)), 2)

    assert same_partition(groups(shares), truth)
    assert not same_partition(groups(None), truth)


def test_groups_are_numbered_by_their_first_client() -> None:
    vectors = {"b": torch.tensor([0.0, 1.0]), "a": torch.tensor([1.0, 0.1]), "c": torch.tensor([1.0, 0.0])}
    assert cosine_groups(vectors, 2) == {"a": 0, "b": 1, "c": 0}
    assert cosine_groups(vectors, 3) == {"a": 0, "b": 1, "c": 2}


def test_partitions_are_compared_whatever_the_numbers() -> None:
    assert same_partition({"a": 0, "b": 1, "c": 1}, {"a": 7, "b": 2, "c": 2, "d": 7})
    assert not same_partition({"a": 0, "b": 1, "c": 1}, {"a": 0, "b": 0, "c": 1})
    assert not same_partition({"a": 0}, {"b": 0})


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12), st.permutations(range(5)))
def test_renaming_groups_changes_no_partition(labels: list[int], names: list[int]) -> None:
    clients = [str(i) for i in range(len(labels))]
    one, other = (dict(zip(clients, each, strict=True)) for each in (labels, [names[label] for label in labels]))
    assert same_partition(one, other)
    assert numbered(clients, labels) == numbered(clients, [names[label] for label in labels])


def test_a_client_all_by_itself_is_no_group_unless_clients_are_few() -> None:
    lone = dict(zip("abcdef", [0, 1, 1, 1, 1, 1], strict=True))
    assert not steady(lone, lone)
    pairs = dict(zip("abcdef", [0, 0, 1, 1, 1, 1], strict=True))
    assert steady(pairs, pairs)
    assert not steady(pairs, lone)
    assert steady({"a": 0, "b": 1, "c": 1}, {"a": 1, "b": 0, "c": 0})
    assert not steady({}, {})

"""Groups of clients by the directions of their updates."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from coterie.core.groupings import alike
from coterie.core.task import Task
from coterie.methods.md_icfl.looks import believed, compared, enough_looks, judgement_due, seen_again, with_looks
from coterie.methods.md_icfl.messages import Seeds
from coterie.methods.md_icfl.seeding import (
    direction_groups,
    judged,
    numbered,
    placed,
    pulls,
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


def looked(seeds: Seeds, updates: dict[str, list[float]], registered: int, shares: torch.Tensor | None = None) -> Seeds:
    """One round's look at these clients."""
    return with_looks(seeds, list(updates), torch.tensor(list(updates.values())), shares, registered)


def test_pulls_have_length_one() -> None:
    """An update of (3, 4) is (0.6, 0.8) of its length 5."""
    found = pulls({"w": torch.tensor([[[5.0, 8.0]]])}, {"w": torch.tensor([[2.0, 4.0]])}, "w")
    assert torch.allclose(found, torch.tensor([[0.6, 0.8]]))


def test_with_everybody_there_the_centre_is_the_rounds_mean() -> None:
    """(1, 0) and (0, 1) have the mean (1/2, 1/2) and lie opposite to each other, both at the mean length.

    At the second look the first counts half: of v and v the mean is v, of v and -v it is -v / 3. If both pull alike,
    nothing is left of that look, and it does not count.
    """
    s = 0.5**0.5
    once = looked(Seeds({}, {}), {"a": [1.0, 0.0], "b": [0.0, 1.0]}, 2)
    assert torch.allclose(once.vectors["a"], torch.tensor([s, -s]))
    assert torch.allclose(once.vectors["b"], torch.tensor([-s, s]))
    twice = looked(once, {"a": [1.0, 0.0], "b": [0.0, 1.0]}, 2)
    assert torch.allclose(twice.vectors["a"], torch.tensor([s, -s]))
    turned = looked(once, {"a": [0.0, 1.0], "b": [1.0, 0.0]}, 2)
    assert torch.allclose(turned.vectors["a"], torch.tensor([s, -s]) * (0.5 - 1) / 1.5)
    assert looked(once, {"a": [1.0, 0.0], "b": [1.0, 0.0]}, 2).looks == {"a": 1, "b": 1}


def test_the_members_of_a_large_group_have_short_vectors() -> None:
    """Three pull to (1, 0) and one to (0, 1): the mean is (3/4, 1/4), and (1, -1) / 4 and (-3, 3) / 4 are left.

    Their mean length is 3/8 sqrt(2), so that their lengths become 2/3 and 2. By directions alone a member of
    the large group whose pull differs by little from the others' would be as far from them as a stranger is.
    """
    found = looked(Seeds({}, {}), {"a": [1.0, 0.0], "b": [1.0, 0.0], "c": [1.0, 0.0], "d": [0.0, 1.0]}, 4)
    assert torch.allclose(found.vectors["a"], torch.tensor([1.0, -1.0]) / 2**0.5 * 2 / 3)
    assert torch.allclose(found.vectors["d"], torch.tensor([-1.0, 1.0]) / 2**0.5 * 2)


def test_a_large_group_stays_whole_beside_small_ones() -> None:
    """Groups of 30, 6, 3 and 1 and noise: by directions alone the large one falls to pieces first."""
    g = torch.Generator().manual_seed(0)
    truth = [0] * 30 + [1] * 6 + [2] * 3 + [3]
    marks = 0.2 * torch.randn(4, 200, generator=g)[torch.tensor(truth)]
    updates = torch.nn.functional.normalize(1 + marks + 0.25 * torch.randn(40, 200, generator=g), dim=1)
    names = [f"{i:02d}" for i in range(40)]
    found = with_looks(Seeds({}, {}), names, updates, None, 40)
    assert direction_groups(compared(found, 40, 40), 4) == numbered(names, truth)
    assert not alike(direction_groups(compared(found, 2, 40), 4), numbered(names, truth))


def test_where_no_group_is_large_lengths_do_not_count() -> None:
    """Four clients at an angle of 0 and four at 0.3, two short and two long of each: by distance length parts them."""
    angles, lengths = torch.tensor([0.0, 0.3]).repeat_interleave(4), torch.tensor([1.0, 1.0, 3.0, 3.0]).repeat(2)
    rows = lengths[:, None] * torch.stack([angles.cos(), angles.sin()], 1)
    assert list(direction_groups(dict(zip("abcdefgh", rows, strict=True)), 2).values()) == [0] * 4 + [1] * 4


def test_a_few_odd_clients_are_not_taken_for_the_small_groups() -> None:
    """Two groups of ten, and two clients far away from both: by distance, twenty and two."""
    g = torch.Generator().manual_seed(0)
    marks = torch.zeros(22, 50)
    marks[:10, 0], marks[10:20, 0], marks[20:, 1] = 1.0, -1.0, 9.0
    rows = marks + 0.05 * torch.randn(22, 50, generator=g)
    names = [f"{i:02d}" for i in range(22)]
    found = direction_groups(dict(zip(names, rows, strict=True)), 2)
    assert len({found[name] for name in names[:10]}) == len({found[name] for name in names[10:20]}) == 1
    assert found["00"] != found["10"]


def test_who_did_not_move_has_shown_nothing() -> None:
    found = looked(Seeds({}, {}), {"a": [1.0, 0.0], "b": [0.0, 1.0], "c": [0.0, 0.0]}, 3)
    assert found.looks == {"a": 1, "b": 1}


def test_with_few_clients_a_round_only_directions_count() -> None:
    """Two of 40 clients: each look has length 1 then, and vectors are compared by their directions."""
    found = looked(Seeds({}, {}), {"a": [1.0, 0.0], "b": [0.0, 1.0]}, 40)
    assert torch.allclose(found.vectors["a"].norm(), torch.tensor(1.0))
    told = Seeds({"a": torch.tensor([3.0, 4.0])}, {})
    assert torch.allclose(compared(told, 2, 40)["a"], torch.tensor([0.6, 0.8]))
    assert compared(told, 4, 40) == told.vectors


def test_a_client_alone_is_seen_against_those_of_earlier_rounds() -> None:
    """Four clients, one a round. The first shows nothing. At the second the sums are 3/4 (1, 0) + (0, 1), weight 7/4.

    So the centre is (3/7, 4/7), and what is left of (0, 1) is (-3/7, 3/7): the direction (-1, 1) / sqrt(2). By the
    participants' mean both would have been nothing.
    """
    first = looked(Seeds({}, {}), {"a": [1.0, 0.0]}, 4)
    assert first.vectors == {}
    second = looked(first, {"b": [0.0, 1.0]}, 4)
    assert torch.allclose(second.vectors["b"], torch.tensor([-1.0, 1.0]) / 2**0.5)


def test_labels_are_regressed_out() -> None:
    """Every client's update is what its labels pull plus a mark of its group: less the labels only the marks remain."""
    g = torch.Generator().manual_seed(0)
    shares = torch.softmax(3 * torch.randn(240, 4, generator=g), 1)
    marks = torch.randn(2, 50, generator=g)[torch.arange(240) % 2]
    updates = 5 * shares @ torch.randn(4, 50, generator=g) + marks
    names = [f"{i:03d}" for i in range(240)]
    truth = numbered(names, [i % 2 for i in range(240)])

    def groups(labels: torch.Tensor | None) -> dict[str, int]:
        return direction_groups(with_looks(Seeds({}, {}), names, updates, labels, 240).vectors, 2)

    assert alike(groups(shares), truth)
    assert not alike(groups(None), truth)


def test_a_judgement_needs_as_many_new_looks_as_clients_and_believes_who_was_seen_often() -> None:
    """Of 4 clients 3 new looks are due (three quarters). With a mean of 2 looks one is believed, of 3 not."""
    seeds = Seeds({}, {}, looks={"a": 3, "b": 2, "c": 1}, judged={"a": 2, "b": 2})
    assert not judgement_due(seeds, 4)
    assert judgement_due(seeds, 2)
    assert seen_again(seeds) == ["a", "c"]
    assert believed(seeds) == ["a", "b", "c"]
    assert believed(Seeds({}, {}, looks={"a": 4, "b": 4, "c": 1})) == ["a", "b"]
    assert enough_looks(Seeds({}, {}, looks={"a": 3, "b": 3, "c": 3, "d": 3}), 3, 5)
    assert not enough_looks(Seeds({}, {}, looks={"a": 3, "b": 3, "c": 3, "d": 2}), 3, 5)


def test_agreement_counts_on_fresh_looks_alone() -> None:
    """The same groups as before: agreed, if somebody was looked at since; with nobody fresh it says nothing."""
    vectors = {"a": [1.0, 0.1], "b": [1.0, 0.0], "c": [0.0, 1.0], "d": [0.1, 1.0]}
    groups = {"a": 0, "b": 0, "c": 1, "d": 1}
    looks = dict.fromkeys("abcd", 2)
    held = {name: torch.tensor(vector) for name, vector in vectors.items()}
    fresh = judged(Seeds(held, groups, looks=looks, judged=dict.fromkeys("abcd", 1)), held, 2)
    assert (fresh.alike, fresh.turns, fresh.judged) == (2, 1, looks)
    assert judged(Seeds(held, groups, looks=looks, judged=looks), held, 2).alike == 1


def test_who_was_seen_too_seldom_is_put_with_the_nearest_group() -> None:
    vectors = {"a": torch.tensor([1.0, 0.0]), "b": torch.tensor([0.0, 1.0]), "c": torch.tensor([0.2, 0.7])}
    assert placed(Seeds(vectors, {"a": 0, "b": 1}), vectors) == {"a": 0, "b": 1, "c": 1}
    assert placed(Seeds(vectors, {"a": 0, "b": 1, "c": 1}), vectors) == {"a": 0, "b": 1, "c": 1}


def test_groups_are_numbered_by_their_first_client() -> None:
    vectors = {"b": torch.tensor([0.0, 1.0]), "a": torch.tensor([1.0, 0.1]), "c": torch.tensor([1.0, 0.0])}
    assert direction_groups(vectors, 2) == {"a": 0, "b": 1, "c": 0}
    assert direction_groups(vectors, 3) == {"a": 0, "b": 1, "c": 2}


def test_partitions_are_compared_whatever_the_numbers() -> None:
    assert alike({"a": 0, "b": 1, "c": 1}, {"a": 7, "b": 2, "c": 2, "d": 7})
    assert not alike({"a": 0, "b": 1, "c": 1}, {"a": 0, "b": 0, "c": 1})
    assert not alike({"a": 0}, {"b": 0})
    forty = {f"{i:02d}": i % 4 for i in range(40)}
    assert alike(forty, {**forty, "00": 1})
    assert not alike(forty, {**forty, "00": 1, "02": 1})
    few = {f"{i:02d}": i % 4 for i in range(24)}
    assert not alike(few, {**few, "00": 1})


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12), st.permutations(range(5)))
def test_renaming_groups_changes_no_partition(labels: list[int], names: list[int]) -> None:
    clients = [str(i) for i in range(len(labels))]
    one, other = (dict(zip(clients, each, strict=True)) for each in (labels, [names[label] for label in labels]))
    assert alike(one, other)
    assert numbered(clients, labels) == numbered(clients, [names[label] for label in labels])


def test_a_client_all_by_itself_is_no_group_unless_clients_are_few() -> None:
    lone = dict(zip("abcdef", [0, 1, 1, 1, 1, 1], strict=True))
    assert not steady(lone, lone)
    pairs = dict(zip("abcdef", [0, 0, 1, 1, 1, 1], strict=True))
    assert steady(pairs, pairs)
    assert not steady(pairs, lone)
    assert steady({"a": 0, "b": 1, "c": 1}, {"a": 1, "b": 0, "c": 0})
    assert not steady({}, {})

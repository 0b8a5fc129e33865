"""The models that clients use where few members of a group come to a round."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

import coterie
from coterie.methods.auto import pace, steady
from coterie.methods.auto.messages import Groups, Known, Pace, Visit
from coterie.methods.auto.method import Auto
from coterie.methods.auto.visits import Came


def state_of(*weights: float, members: int = 8, paces: dict[str, Pace] | None = None) -> Groups:
    """Groups with as many members, each with a model of one weight and a whole number beside it."""
    models = {"w": torch.tensor(weights)[:, None], "steps": torch.arange(len(weights))}
    cluster = {f"{group}-{number}": group for group in range(len(weights)) for number in range(members)}
    known = {client: Known(3, 10.0, 1.0) for client in cluster}
    return Groups(models, models, cluster, known, {}, {}, {}, paces=paces or {})


def came(group: int, number: int, stays: bool = True) -> Came:
    """So many members of a group that have trained its model."""
    ids = tuple(f"{group}-{i}" for i in range(number))
    sent = {"w": torch.zeros(number, 1)}
    visit = Visit(sent, torch.ones(number), torch.ones(number))
    return Came(ids, visit, sent, [group] * number, (stays,) * number)


def weights(state: Groups) -> list[float]:
    return Auto().cluster_models(state)["w"][:, 0].tolist()


def test_a_running_mean_by_the_share_of_eight_members_that_came() -> None:
    """By hand: two of eight come, so 0 moves to 1 by a quarter; all eight make the mean the model itself."""
    old = state_of(0.0, 10.0)
    new = steady.followed(old, state_of(1.0, 20.0), [came(0, 2)], [])
    assert weights(new) == [0.25, 10.0]  # nobody of group 1 has come
    assert new.steady["steps"].tolist() == [0, 1]
    again = steady.followed(new, state_of(2.0, 20.0), [came(0, 4), came(1, 2)], [])
    assert weights(again) == [1.125, 12.5]
    whole = steady.followed(again, state_of(3.0, 30.0), [came(0, 8), came(1, 8)], [])
    assert not whole.steady
    assert weights(whole) == [3.0, 30.0]


def test_all_members_of_a_small_group_are_enough() -> None:
    assert not steady.followed(state_of(0.0, members=3), state_of(1.0, members=3), [came(0, 3)], []).steady
    assert weights(steady.followed(state_of(0.0, members=4), state_of(1.0, members=4), [came(0, 1)], [])) == [0.25]


def test_what_was_trained_by_clients_of_another_group_does_not_count() -> None:
    assert weights(steady.followed(state_of(0.0), state_of(1.0), [came(0, 4, stays=False)], [])) == [0.0]


def test_a_group_that_changes_begins_again() -> None:
    """Somebody left group 0 for the new group 2, and group 1 was taken back: all three are as they are now."""
    old = replace(state_of(0.0, 10.0), steady={"w": torch.tensor([[5.0], [15.0]]), "steps": torch.arange(2)})
    new = state_of(1.0, 20.0, 30.0, paces={"1": Pace(0.5, [], {}, restored=True)})
    new = replace(new, cluster={**new.cluster, "0-1": 2})
    assert weights(steady.followed(old, new, [came(0, 1), came(1, 1)], ["0-1"])) == [1.0, 20.0, 30.0]
    kept = steady.followed(old, replace(new, paces={}), [came(0, 1), came(1, 2)], ["0-1"])
    assert weights(kept) == [1.0, 16.25, 30.0]


def test_it_begins_again_in_the_round_that_is_taken_back_and_not_in_those_after() -> None:
    """The pace says `restored` until members have told how the restored model does, which takes many rounds."""
    restored = {"0": Pace(0.5, [], {}, restored=True)}
    back = steady.followed(state_of(50.0), state_of(0.0, paces=restored), [came(0, 1)], [])
    assert weights(back) == [0.0]
    after = steady.followed(back, state_of(8.0, paces=restored), [came(0, 1)], [])
    assert weights(after) == [1.0]


def test_a_round_that_is_taken_back_counts_though_others_move_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """`pace.kept` forgets who was restored when somebody moves: the means are followed before it."""
    order: list[str] = []

    def noted(module: Any, name: str) -> None:
        plain = getattr(module, name)

        def called(*given: Any) -> Any:
            order.append(name)
            return plain(*given)

        monkeypatch.setattr(module, name, called)

    noted(steady, "followed")
    noted(pace, "kept")
    population = coterie.build("rotated-digits", seed=3, clients=4, groups=2)
    model = partial(coterie.build_model, "digits-mlp", tuple(population.shape), population.classes)
    coterie.run(Auto(), population, model, rounds=1, seed=3)
    assert order == ["followed", "kept"]


@pytest.mark.parametrize(("fraction", "differs"), [(1.0, False), (0.25, True)])
def test_what_is_used_is_trained_further_only_by_itself(fraction: float, differs: bool) -> None:
    """Training never sees the mean: the trained models are those of a run whose clients use them as they are."""
    population = coterie.build("rotated-digits", seed=3, clients=8, groups=2)
    model = partial(coterie.build_model, "digits-mlp", tuple(population.shape), population.classes)
    states = []

    class Plain(Auto):
        def cluster_models(self, state: Groups) -> dict[str, torch.Tensor]:
            return state.models

    for kind in (Auto, Plain):
        result = coterie.run(kind(fraction=fraction), population, model, rounds=6, seed=3, evaluate_every=2)
        states.append(result.state)
    one, other = states
    assert all(torch.equal(one.models[name], other.models[name]) for name in one.models)
    assert bool(one.steady) is differs

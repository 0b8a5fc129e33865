"""FedFomo, by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from coterie import run
from coterie.core.errors import CoterieError
from coterie.data.own import OwnPopulation
from coterie.methods.fedfomo import Exchange, FedFomo, first_order_weights

from ..tiny import Rows, made, one_weight, only, rows, small_net

STEP: dict[str, Any] = {"lr": 0.25, "epochs": 1, "batch": 0, "momentum": 0.0, "explore": 0.0}


def test_weights_by_hand() -> None:
    """From loss 4: a model with loss 1 at distance 1 weighs 3, one with loss 2 at distance 4 weighs 1/2.

    One that is worse has a negative weight; one at distance 0 weighs nothing.
    """
    losses, distances = torch.tensor([1.0, 2.0, 6.0, 4.0]), torch.tensor([1.0, 4.0, 2.0, 0.0])
    assert first_order_weights(torch.tensor(4.0), losses, distances).tolist() == [3.0, 0.5, -1.0, 0.0]


def test_one_round_by_hand() -> None:
    """The model is w x with loss (w x - y)^2; w starts at 0; a wants 2, b wants 6.

    Training gives a = 1 (loss 1 on a, from 4) and b = 3 (loss 9 on b, from 36). Client a weighs its own model with
    (4 - 1) / 1 = 3 and b's, which has loss (3 - 2)^2 = 1, with (4 - 1) / 3 = 1: shares 3/4 and 1/4, so its model is
    0.75 * 1 + 0.25 * 3 = 1.5. Client b weighs its own with (36 - 9) / 3 = 9 and a's with (36 - 25) / 1 = 11:
    (9 * 3 + 11 * 1) / 20 = 1.9.
    """
    result = run(FedFomo(**STEP), rows(([1.0], [2]), ([1.0], [6])), one_weight(), rounds=1, loss="mse")
    assert float(result.models["client-a"]["weight"]) == pytest.approx(1.5, abs=1e-6)
    assert float(result.models["client-b"]["weight"]) == pytest.approx(1.9, abs=1e-6)
    assert result.state.affinity == {"a": {"b": pytest.approx(0.25)}, "b": {"a": pytest.approx(0.55)}}


def test_without_any_gain_the_old_model_stays() -> None:
    """With lr 2 training overshoots: a goes to 0 + 2 * 2 * 2 = 8 (loss 36 > 4), b to -8 (loss 100): nothing helps."""
    clients = rows(([1.0], [2]), ([1.0], [-2]))
    result = run(FedFomo(**{**STEP, "lr": 2.0}), clients, one_weight(), rounds=1, loss="mse")
    assert float(result.models["client-a"]["weight"]) == 0.0


def test_negative_weights_are_dropped() -> None:
    """a's model (1) is good for a, c's (-2, loss 16 on a) is worse than the start: only its own model counts."""
    clients = rows(([1.0], [2]), ([1.0], [-4]))
    result = run(FedFomo(**STEP), clients, one_weight(), rounds=1, loss="mse")
    assert float(result.models["client-a"]["weight"]) == pytest.approx(1.0, abs=1e-6)
    assert result.state.affinity["a"]["b"] < 0


def test_the_log_tells_the_shares_that_are_used() -> None:
    """Training gives a = 1 (from loss 4 to 1), b = 3 (from 36 to 9) and c = -2 (wants -4: from 16 to 4).

    a weighs itself 3, b 1 and c (4 - 16) / 2 = -6: 1/4 of its mixture is b's. b weighs itself 9, a 11 and c
    (36 - 64) / 2 = -14: 11/20 is a's. c weighs a (16 - 25) / 1 and b (16 - 49) / 3: nothing is theirs.
    The server chooses by the signed weights over the size of their sum: 1 / |3 + 1 - 6| and so on.
    """
    watching = Rows()
    clients = rows(([1.0], [2]), ([1.0], [6]), ([1.0], [-4]))
    result = run(FedFomo(**STEP), clients, one_weight(), rounds=1, loss="mse", view=watching)
    assert watching.rows[0]["log"]["taken_from_others"] == pytest.approx((1 / 4 + 11 / 20 + 0) / 3, abs=1e-6)
    assert result.state.affinity["a"] == {"b": pytest.approx(1 / 2), "c": pytest.approx(-6 / 2)}
    assert result.state.affinity["b"] == {"a": pytest.approx(11 / 6), "c": pytest.approx(-14 / 6)}


def test_the_first_client_of_all_keeps_what_it_has_learnt() -> None:
    """One of two clients takes part, and there is no other model to mix: a has learnt 1, b 3 (see above)."""
    clients = rows(([1.0], [2]), ([1.0], [6]))
    watching = Rows()
    result = run(FedFomo(**STEP, fraction=0.5), clients, one_weight(), rounds=1, loss="mse", view=watching)
    (client,) = result.state.uploads
    assert float(result.models[f"client-{client}"]["weight"]) == pytest.approx({"a": 1.0, "b": 3.0}[client])
    assert watching.rows[0]["log"] == {"taken_from_others": 0.0}


def test_it_says_once_that_nothing_is_held_out(digits: OwnPopulation) -> None:
    sentence = (
        "fedfomo: no client has a validation part, so models are weighed on training data, where a client's own one "
        "wins; set scenario.validation = 0.2."
    )
    for clients, times in ((digits, 0), (_unvalidated(digits), 1)):
        watching = Rows()
        run(made("fedfomo"), clients, small_net, rounds=3, view=watching)
        assert watching.notes.count(sentence) == times


def _unvalidated(population: OwnPopulation) -> OwnPopulation:
    clients = {client: type(data)(data.train, data.test) for client, data in population.clients.items()}
    return replace(population, clients=clients)


def test_models_are_judged_on_the_validation_part(digits: OwnPopulation) -> None:
    """Other validation data, other mixtures, though the training data are the same."""
    first = run(made("fedfomo"), digits, small_net, rounds=1)
    swapped = {
        client: type(data)(data.train, data.test, digits.clients["c0"].valid) for client, data in digits.clients.items()
    }
    second = run(
        made("fedfomo"), type(digits)(swapped, digits.shape, digits.classes, digits.normalise), small_net, rounds=1
    )
    assert first.state.uploads["c4"].keys() == second.state.uploads["c4"].keys()
    assert torch.equal(first.state.uploads["c4"]["1.weight"], second.state.uploads["c4"]["1.weight"])
    assert first.state.affinity["c4"] != second.state.affinity["c4"]


class _Fed:
    """As much of a federation as choosing needs."""

    def __init__(self, round: int) -> None:
        self.round = round

    def rng(self, purpose: str, *key: object) -> Any:
        return np.random.default_rng(self.round)


def test_the_most_useful_models_are_chosen_and_epsilon_falls() -> None:
    affinity = {"a": {"b": 0.1, "c": 2.0, "d": -1.0, "e": 0.5}}
    state = Exchange({}, {name: {} for name in "abcdefg"}, affinity)
    greedy = FedFomo(downloads=3, explore=0.0)
    for number in range(10):
        picked = greedy._choose(state, _Fed(number), "a")  # type: ignore[arg-type]
        assert picked == ["c", "e", "b"]
    curious = FedFomo(downloads=3, explore=1.0, explore_decay=0.5)
    assert curious._choose(state, _Fed(0), "a") != ["c", "e", "b"]  # type: ignore[arg-type]
    assert curious._choose(state, _Fed(2), "a") == ["c", "e", "b"]  # type: ignore[arg-type]
    assert "a" not in FedFomo(downloads=9)._choose(state, _Fed(1), "a")  # type: ignore[arg-type]


def test_both_norms_and_partial_participation(digits: OwnPopulation) -> None:
    one = run(made("fedfomo", fraction=0.3, downloads=2), digits, small_net, rounds=3)
    other = run(made("fedfomo", fraction=0.3, downloads=2, norm="l1"), digits, small_net, rounds=3)
    assert one.state.uploads.keys() == other.state.uploads.keys()
    assert one.state.affinity != other.state.affinity


def test_one_client_is_refused(digits: OwnPopulation) -> None:
    with pytest.raises(CoterieError, match="fedfomo mixes the models of several clients"):
        run(made("fedfomo"), only(digits, ["c0"]), small_net, rounds=1)


@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [
        ("downloads", 0, "downloads must be at least 1"),
        ("explore", 1.5, r"explore must lie in \[0, 1\]"),
        ("explore_decay", -0.1, "explore_decay must be at least 0"),
    ],
)
def test_settings_out_of_range(setting: str, value: float, says: str) -> None:
    with pytest.raises(CoterieError, match=f"fedfomo: {says}, not {value}"):
        FedFomo(**{setting: value})  # type: ignore[arg-type]

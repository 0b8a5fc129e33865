"""The rules by which replies become a model: numbers derived by hand, and how many false replies each rule bears."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from coterie import run
from coterie.core.aggregate import REACH, RULES, Rule, combined, combined_bags, combined_one
from coterie.core.checks import check_reply
from coterie.core.lengths import (
    AGAINST,
    FAR,
    FEW_AGAINST,
    HEAVIEST,
    HEAVY,
    JUDGES,
    LONG,
    LONGEST,
    capped,
    clip_factors,
    held_back,
    too_long,
)
from coterie.core.states import Stack, State, group_means
from coterie.data.own import OwnPopulation
from coterie.methods import METHODS
from coterie.simulation.faults import Faults
from coterie.simulation.simulator import EngineOptions
from tests.tiny import made, small_net, tiny_digits

ONE = EngineOptions(workers=1)

ROBUST: list[Rule] = [rule for rule in RULES if rule != "mean"]


def column(*numbers: float) -> Stack:
    """Models of one number each."""
    return {"w": torch.tensor(numbers, dtype=torch.float64)[:, None]}


def one(rule: Rule, *numbers: float, weights: Tensor | None = None) -> float:
    """The models of one number, all sent 0, as one model."""
    shares = torch.ones(len(numbers), dtype=torch.float64) if weights is None else weights
    return float(combined_one(rule, column(*numbers), shares, {"w": torch.zeros(1, dtype=torch.float64)})["w"])


def test_each_rule_on_five_numbers_and_a_false_one() -> None:
    """Replies 1, 2, 3, 4 and -100, all sent 0.

    mean: -90 / 5 = -18. clipped: lengths 1, 2, 3, 4, 100 have median 3, and -100 is against the others, so that it
    becomes -3: (10 - 3) / 5.
    median: 2. trimmed: a fifth of 5 is 1 from each side, (1 + 2 + 3) / 3 = 2. krum, f = 1: scores are over the
    5 - 1 - 2 = 2 nearest: 1: 1 + 4 = 5; 2: 1 + 1; 3: 1 + 1; 4: 1 + 4; -100: 101^2 + ...; the best four: 2.5.
    """
    numbers = (1.0, 2.0, 3.0, 4.0, -100.0)
    assert one("mean", *numbers) == pytest.approx(-18)
    assert one("clipped", *numbers) == pytest.approx(1.4)
    assert one("median", *numbers) == pytest.approx(2)
    assert one("trimmed", *numbers) == pytest.approx(2)
    assert one("krum", *numbers) == pytest.approx(2.5)


def test_the_geometric_median_of_three_corners() -> None:
    """(0, 0), (1, 0) and (0, 1): the Fermat point (x, x) sees the side between the last two under 120 degrees.

    Half of that side is 2^0.5 / 2, so the point is 2^0.5 / 2 / tan 60 = 1 / 6^0.5 away from its middle (1/2, 1/2):
    x = 1/2 - 1 / 12^0.5 = (3 - 3^0.5) / 6.
    """
    models = {"w": torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)}
    found = combined_one("geometric", models, torch.ones(3), {"w": torch.zeros(2, dtype=torch.float64)})["w"]
    assert found.tolist() == pytest.approx([(3 - 3**0.5) / 6] * 2, abs=1e-3)


def test_clipped_is_around_what_was_sent_to_each() -> None:
    """Sent 10, 10, 10, 0: updates 1, 1, 1 and 9 (median 1); the last is shortened to 6: (11 + 11 + 11 + 6) / 4."""
    sent = column(10, 10, 10, 0)
    models = column(11, 11, 11, 9)
    found = combined("clipped", models, torch.ones(4), torch.zeros(4, dtype=torch.int64), column(10), sent)
    assert float(found["w"]) == pytest.approx(39 / 4)


def test_nobody_weighs_more_than_the_upper_quartile_and_a_quarter_or_less_than_nothing() -> None:
    """Three quarters of group 0 weigh up to 2: 2.5 at most. Group 1 has one member that weighs: too few to say."""
    groups = torch.tensor([0, 0, 0, 0, 1, 1])
    assert capped(torch.tensor([1.0, 2.0, 2.0, 1e9, 50.0, -7.0]), groups).tolist() == [1.0, 2.0, 2.0, 2.5, 50.0, 0.0]
    alike = torch.zeros(9, dtype=torch.int64)
    sizes = [1e9, 1e9, 5.0, 4.0, 5.0, 5.0, 4.0, 5.0, 5.5]
    assert capped(torch.tensor(sizes), alike).tolist() == [6.875, 6.875, *sizes[2:]], "seven of nine weigh up to 5.5"
    sizes = [1e9, 1e9, 1e9, 1e9, 3.0, 2.0, 4.0, 2.0, 2.0]
    found = capped(torch.tensor(sizes), alike).tolist()
    assert found == [6.0, 6.0, 6.0, 6.0, *sizes[4:]], "four of nine lie: 1.5 times the median, 4"
    assert capped(torch.tensor([1.0, 1.0, 90.0]), alike[:3]).tolist() == [1.0, 1.0, 90.0], "three are too few"


@settings(max_examples=60, deadline=None)
@given(
    honest=st.lists(st.integers(1, 1000), min_size=3, max_size=30),
    claims=st.lists(st.sampled_from([1e3, 1e9, 1e300]), min_size=1, max_size=30),
)
def test_fewer_than_half_gain_little_by_claiming_many_samples(honest: list[int], claims: list[float]) -> None:
    false = claims[: len(honest) - 1]
    weights = torch.tensor([*map(float, honest), *false], dtype=torch.float64)
    found = capped(weights, torch.zeros(len(weights), dtype=torch.int64))
    assert float(found.max()) <= (HEAVIEST if len(false) <= len(honest) // 3 else HEAVY) * max(honest)
    assert bool((found <= weights).all())


def test_a_reply_that_claims_many_samples_counts_as_little_more_than_one() -> None:
    """Updates 1, 1, 1 with weight 1, and -1.4 with 10^9, which counts as 1.25: (3 - 1.75) / 4.25 = 5 / 17."""
    assert one("clipped", 1, 1, 1, -1.4, weights=torch.tensor([1, 1, 1, 1e9])) == pytest.approx(5 / 17)


def test_what_is_long_and_against_the_others_is_shortened_to_the_median() -> None:
    """Seven updates (1, 0), and one of length 2, at an angle to their sum of which the cosine is c.

    Only where that is below -0.6 (c = -0.7) it is made 1 long; a short one (length 1.2) is left as it is. Where there
    are fewer than eight, c must be below -0.8.
    """

    def factor(length: float, cosine: float, others: int = 7) -> float:
        odd = [length * cosine, length * (1 - cosine**2) ** 0.5]
        models = {"w": torch.tensor([*[[1.0, 0.0]] * others, odd], dtype=torch.float64)}
        sent, groups = {"w": torch.zeros_like(models["w"])}, torch.zeros(others + 1, dtype=torch.int64)
        found = clip_factors(models, sent, torch.ones(others + 1), groups)
        assert found[:-1].tolist() == [1.0] * others
        return float(found[-1])

    assert (LONG, AGAINST, JUDGES, FEW_AGAINST) == (1.5, -0.6, 8, -0.8)
    assert factor(2, -0.7) == pytest.approx(1 / 2)
    assert [factor(2, -0.5), factor(2, 0.9), factor(1.2, -1.0), factor(2, -0.7, others=6)] == [1.0] * 4
    assert factor(8, 0.9) == factor(8, -0.7, others=6) == pytest.approx(6 / 8)
    assert factor(2, -0.9, others=6) == pytest.approx(1 / 2)


def test_attackers_of_one_cluster_do_not_speak_for_each_other() -> None:
    """Six updates of length 1 have 1/2 in common, the rest of each is orthogonal; four updates are -2 times the common.

    The six add up to (3, and 6^0.5 0.75^0.5 = 4.5^0.5 across): a long one has a cosine of -3 / 13.5^0.5 = -0.82 with
    that and is made 1 long. With the other three long ones in the sum it would be 0.
    """
    honest = torch.cat([torch.full((6, 1), 0.5), 0.75**0.5 * torch.eye(6)], 1)
    models = {"w": torch.cat([honest, torch.tensor([[-2.0, *[0.0] * 6]] * 4)]).double()}
    sent, groups = {"w": torch.zeros_like(models["w"])}, torch.zeros(10, dtype=torch.int64)
    weights = torch.tensor([1.0] * 6 + [1.5] * 4)
    factors, weighed = held_back(models, sent, weights, groups)
    assert factors.tolist() == pytest.approx([1.0] * 6 + [0.5] * 4)
    assert weighed.tolist() == [1.0] * 10


def test_a_large_claim_gains_nothing_by_what_goes_against_the_others() -> None:
    """Seven updates (1, 0) that weigh 1, and one of length 2 that claims 10^9 samples, which are capped at 1.25.

    At a cosine of -1/2 with the seven it is not shortened and weighs 1: (7 - 1) / 8. At 1/2 it keeps its 1.25:
    (7 + 1.25) / 8.25 = 1. One of length 1.4 is not long, and a quarter more than the median is not heavy, so that it
    keeps it, too: (7 - 0.875) / 8.25. Of ten that weigh 1 (six) and 10^9 (four), the four are capped at 1.5, which is
    heavy: with length 1.4 and -1/2 they weigh 1, (6 - 2.8) / 10.
    """

    def along(length: float, cosine: float, honest: int = 7, false: int = 1) -> float:
        odd = [length * cosine, length * (1 - cosine**2) ** 0.5]
        models = {"w": torch.tensor([*[[1.0, 0.0]] * honest, *[odd] * false], dtype=torch.float64)}
        sent = {"w": torch.zeros(2, dtype=torch.float64)}
        claims = torch.tensor([*[1.0] * honest, *[1e9] * false], dtype=torch.float64)
        return float(combined_one("clipped", models, claims, sent)["w"][0])

    assert along(2, -0.5) == pytest.approx(6 / 8)
    assert along(2, 0.5) == pytest.approx(1.0)
    assert along(1.4, -0.5) == pytest.approx(6.125 / 8.25)
    assert along(1.4, -0.5, honest=6, false=4) == pytest.approx(3.2 / 10)


def test_what_no_honest_client_sends_is_not_used_at_all() -> None:
    models, sent = column(1, 2, 3, -31), column(0, 0, 0, 0)
    assert too_long(models, sent) == {3: pytest.approx(31 / 2)}
    assert too_long(column(1, 2, 3, -20), sent) == {}, f"{FAR:g} medians are still believed"
    assert too_long(column(1, -900, 1), column(0, 0, 0)) == {}, "of three none can be called odd"
    late = column(*[100.0] * 4)
    assert too_long(column(100.1, 100.1, 100.1, 102), late) == {}, "20 medians, but a fiftieth of the model"
    assert too_long(column(100.1, 100.1, 100.1, -500), late) == {3: pytest.approx(6000)}, "-5 w is seen"


models_strategy = st.lists(st.lists(st.floats(-1, 1, width=32), min_size=3, max_size=3), min_size=3, max_size=9)


@settings(max_examples=60, deadline=None)
@given(models_strategy, st.integers(0, 2))
def test_clipped_is_the_mean_bit_for_bit_where_nothing_is_long(rows: list[list[float]], shift: int) -> None:
    models = {"w": torch.tensor(rows), "n": torch.arange(len(rows))}
    groups = (torch.arange(len(rows)) + shift) % 2
    sent = {"w": models["w"] - torch.tensor([1.0, 0.0, 0.0]), "n": models["n"]}  # every update has length 1
    previous = {"w": torch.zeros(2, 3), "n": torch.zeros(2, dtype=torch.int64)}
    weights = torch.linspace(1, 2.4, len(rows), dtype=torch.float64)
    plain = group_means(models, weights, groups, previous)
    found = combined("clipped", models, weights, groups, previous, sent)
    assert all(torch.equal(found[name], plain[name]) for name in plain)


@pytest.mark.parametrize("rule", ROBUST)
@settings(max_examples=40, deadline=None)
@given(
    honest=st.lists(st.floats(0.5, 1.0), min_size=8, max_size=12),
    false=st.lists(st.sampled_from([-1e12, -50.0, 50.0, 1e12]), min_size=1, max_size=2),
)
def test_a_fifth_of_the_replies_cannot_carry_the_rest_away(rule: Rule, honest: list[float], false: list[float]) -> None:
    """Breakdown: however far up to a fifth of the replies are, what comes out stays near the honest ones.

    median, trimmed and krum stay within them but for rounding, geometric too in one dimension up to a bound; clipped
    moves at most by a fifth of LONGEST times the longest honest update.
    """
    found = one(rule, *honest, *false)
    share = len(false) / (len(honest) + len(false))
    slack = LONGEST * share if rule in ("clipped", "geometric") else 1e-9
    assert min(honest) * (1 - share) - slack <= found <= max(honest) + slack
    assert abs(one("mean", *honest, *[1e12] * len(false))) > 1e10, "the mean is carried away"


@pytest.mark.parametrize("rule", RULES)
def test_a_group_without_members_keeps_its_model_and_buffers_are_whole(rule: Rule) -> None:
    models = {"w": torch.tensor([[1.0], [1.0], [1.0]]), "n": torch.tensor([3, 3, 3])}
    previous = {"w": torch.tensor([[0.0], [7.0]]), "n": torch.tensor([1, 9])}
    found = combined(rule, models, torch.ones(3), torch.zeros(3, dtype=torch.int64), previous)
    assert found["w"].tolist() == [[1.0], [7.0]]
    assert found["n"].tolist() == [3, 9]
    assert found["n"].dtype == torch.int64


def test_peers_clip_around_their_own_model() -> None:
    """Own model 0, others at 1, 1 and -9: the median distance is 1, -9 becomes -2: (0 + 1 + 1 - 2) / 4 = 0.

    The second peer has its own model 5 and asked one only, at 1: nothing to compare it with, (5 + 1) / 2 = 3.
    """
    pool = column(0, 1, 1, -9, 5)
    own, others = torch.tensor([0, 4]), torch.tensor([[1, 2, 3], [1, -1, -1]])
    assert combined_bags("clipped", pool, own, others)["w"].flatten().tolist() == pytest.approx([0, 3])
    assert combined_bags("mean", pool, own, others)["w"].flatten().tolist() == pytest.approx([-7 / 4, 3])
    assert combined_bags("median", pool, own, others)["w"].flatten().tolist() == pytest.approx([0.5, 3])


def test_what_no_honest_peer_sends_is_not_used() -> None:
    """Others at 1, 1 and -90: ten times farther than a peer goes (2), so its own model stands for it: 2 / 4."""
    found = combined_bags("clipped", column(0, 1, 1, -90), torch.tensor([0]), torch.tensor([[1, 2, 3]]))
    assert float(found["w"]) == pytest.approx(0.5)


def test_of_few_partners_the_nearest_counts_too() -> None:
    """Others at 1, 30 and 35: the median would allow 60; four times the nearest is 4: (0 + 1 + 4 + 4) / 4."""
    pool, own = column(0, 1, 30, 35), torch.tensor([0])
    found = combined_bags("clipped", pool, own, torch.tensor([[1, 2, 3]]))
    assert float(found["w"]) == pytest.approx(9 / 4)


def test_a_reply_weighs_what_its_client_said() -> None:
    reply = {"model/w": torch.ones(3, 1), "size": torch.tensor([5.0, 1e9, -5.0], dtype=torch.float64)}
    said = torch.tensor([5, 7, -5])
    good, bad = check_reply(["a", "b", "c"], reply, {"w": torch.zeros(1)}, 1e3, said=said)
    assert good == [0]
    assert bad["b"].kind == "refused"
    assert bad["b"].reason == "it claims 1e+09 samples and said 7 when it joined"
    assert "c" in bad, "fewer than no samples are refused, whatever it said"


AVERAGING = sorted(set(METHODS) - {"local", "fedfomo"})
"""fedfomo's clients mix by themselves, only what lowers their own validation loss."""


ATTACKED = [(name, attack) for name in AVERAGING for attack in ("negate", "size")]
"""All methods by one attack on the models and one on the weights; some by others on the models, which weigh less."""


@pytest.mark.parametrize(
    ("name", "attack"),
    [*ATTACKED, *((name, attack) for name in ("fedavg", "ifca", "panm") for attack in ("norm", "minus"))],
)
def test_no_method_forgets_the_rule(name: str, attack: Any, digits: OwnPopulation) -> None:
    """One of nine clients attacks: with the default rule every model stays about as long as in a calm run.

    With the mean, -5 w takes two thirds of its length away in a single round, and the norm limit multiplies it.
    """
    calm = calm_models(name)
    stormy = run(made(name), digits, small_net, rounds=2, seed=3, faults=Faults(attackers=1, attack=attack), engine=ONE)
    assert len(stormy.client_ids) == 8, "attackers are not judged"
    honest = {model for model in stormy.models if model.removeprefix("client-") in {model, *stormy.client_ids}}
    assert honest & calm.keys()
    for model in honest & calm.keys():
        assert 0.75 < length(stormy.models[model]) / length(calm[model]) < 1.25, model


@lru_cache(maxsize=1)
def calm_models(name: str) -> Mapping[str, State]:
    """The models of a run without attackers: the same for every attack, which are tried one after another."""
    return run(made(name), tiny_digits(), small_net, rounds=2, seed=3, engine=ONE).models


def length(model: State) -> float:
    return float(torch.cat([tensor.double().flatten() for tensor in model.values()]).norm())


def test_the_mean_is_what_the_test_above_would_find(digits: OwnPopulation) -> None:
    calm = calm_models("fedavg")
    stormy = run(made("fedavg", aggregate="mean"), digits, small_net, rounds=2, seed=3, faults=Faults(attackers=1))
    assert length(stormy.models["global"]) < 0.5 * length(calm["global"])


def test_the_constants_that_the_numbers_above_were_derived_with() -> None:
    assert (LONGEST, HEAVIEST, HEAVY, REACH, FAR) == (6.0, 1.25, 1.5, 2.0, 10.0)

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import nn

import coterie
from coterie.core.errors import CoterieError
from coterie.core.samples import Population
from coterie.data import build
from coterie.methods.given_groups import GivenGroups
from coterie.models import build_model
from coterie.report.advice import print_advice
from coterie.runs.advice.advise import FEDAVG, GROUPS, _gain_by_groups, _length, _recommended, advise
from coterie.runs.advice.answer import Candidate
from coterie.runs.advice.differences import differences
from coterie.runs.advice.held_out import HeldOut
from coterie.runs.advice.paired import paired_gain
from coterie.runs.advice.remarks import asked_for_more, remarks_on
from coterie.runs.options import RunOptions


def test_a_gain_is_the_mean_of_the_differences_of_clients_that_have_both() -> None:
    """Differences 0.1 and 0.3, mean 0.2; the third client has no second score. No draw of two leaves [0.1, 0.3]."""
    gain = paired_gain({"a": 0.9, "b": 0.8, "c": 0.1}, {"a": 0.8, "b": 0.5})
    assert gain.mean == pytest.approx(0.2)
    assert [gain.low, gain.high] == pytest.approx([0.1, 0.3])
    assert gain.sure


def test_noise_alone_is_no_gain() -> None:
    g = np.random.default_rng(0)
    noise = {str(i): float(x) for i, x in enumerate(g.normal(0, 0.1, 100))}
    assert not paired_gain(noise, dict.fromkeys(noise, 0.0)).sure
    assert paired_gain({key: x + 0.1 for key, x in noise.items()}, dict.fromkeys(noise, 0.0)).sure
    assert not paired_gain({}, {}).sure


def test_a_trial_judges_on_samples_that_it_does_not_train_on_and_never_on_the_test_part() -> None:
    population = build("rotated-digits", seed=0, clients=4, samples=20)
    held = HeldOut(population, population.ids[:2], seed=0)
    assert held.ids == population.ids[:2]
    whole, parts = population.client("0"), HeldOut(population, population.ids, 0).client("0")
    assert (len(parts.train), len(parts.test)) == (15, 5)
    together = torch.cat([parts.train.x, parts.test.x]).flatten(1)
    assert sorted(map(tuple, together.tolist())) == sorted(map(tuple, whole.train.x.flatten(1).tolist()))
    validated = build("rotated-digits", seed=0, clients=4, samples=20, validation=0.2)
    assert torch.equal(HeldOut(validated, validated.ids, 0).client("0").test.x, validated.client("0").valid.x)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("samples", "epochs", "expected"),
    [(1_000, 5, (20, 5)), (48_000, 5, (12, 1)), (20_000, 2, (15, 2)), (10_000_000, 3, (10, 1))],
)
def test_a_trial_trains_on_about_as_many_samples_whatever_the_size(
    samples: int, epochs: int, expected: tuple[int, int]
) -> None:
    """600,000 visits: 48,000 samples in 10 rounds leave one epoch, and then 12 rounds; 20,000 in 15 rounds of 2."""
    rounds, settings = _length(samples, {"epochs": epochs, "lr": 0.1})
    assert (rounds, settings["epochs"]) == expected
    assert settings["lr"] == 0.1


def _clients(answer: list[int], move: float = 0.0) -> coterie.Population:
    """Eight clients; those of the second half have other labels (0/1 exchanged) or moved inputs."""
    g = np.random.default_rng(1)
    clients = {}
    for number in range(8):
        x = g.normal(size=(40, 3)).astype(np.float32)
        y = (x[:, 0] > 0).astype(np.int64)
        late = number >= 4
        x[:, 2] += move * late
        clients[f"c{number}"] = (x, np.asarray(answer)[y] if late else y)
    return coterie.from_arrays(clients)


def test_what_tells_groups_apart() -> None:
    groups = {f"c{number}": number // 4 for number in range(8)}
    assert "the answer to the same input" in differences(_clients([1, 0]), groups).sentence
    moved = differences(_clients([0, 1], move=3.0), groups, ["age", "height", "dose"])
    assert moved.features == ["dose"]
    assert "inputs differ" in moved.sentence
    assert "most of all in dose" in moved.sentence
    one_class = differences(_clients([1, 1]), groups)
    assert "labels are not equally frequent" in one_class.sentence


def test_remarks_name_what_is_odd_and_nothing_else() -> None:
    assert [text for text in remarks_on(HeldOut(_clients([0, 1]), ["c0", "c1"], 0)) if "too few" not in text] == []
    assert list(remarks_on(build("rotated-digits", seed=0))) == []
    skewed = list(remarks_on(build("rotated-digits", seed=0, alpha=0.1)))
    assert len(skewed) == 2
    assert skewed[0].startswith("Labels are skewed")
    assert skewed[1].startswith("Clients will be asked for labels that they lack")


def test_given_groups_train_apart() -> None:
    """Two clients with the opposite answer to the same inputs: together they guess, each in its group learns."""
    g = np.random.default_rng(0)
    x = g.normal(size=(200, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    population = coterie.from_arrays({"a": (x, y), "b": (x, 1 - y)})

    def network() -> torch.nn.Module:
        return torch.nn.Linear(4, 2)

    apart = coterie.run(GivenGroups(groups={"a": 0, "b": 1}, lr=0.1), population, network, rounds=3)
    assert apart.clusters == [0, 1]
    assert apart.accuracy > 0.9
    with pytest.raises(CoterieError, match="b have no group"):
        coterie.run(GivenGroups(groups={"a": 0}), population, network, rounds=1)


def test_advice_needs_two_clients() -> None:
    population = build("rotated-digits", seed=0, clients=1, groups=1)
    with pytest.raises(CoterieError, match="at least two clients"):
        advise(population, build_model("digits-mlp", population.shape, population.classes))


def test_who_will_be_asked_for_labels_it_lacks_is_not_told_to_adapt(capsys: pytest.CaptureFixture[str]) -> None:
    """Tests of a named scenario hold all labels: on skewed held-out data local training looks best and is not."""
    skewed = build("rotated-digits", seed=0, clients=8, groups=1, alpha=0.5, partition="dirichlet-client")
    found = advise(skewed, build_model("digits-mlp", skewed.shape, 10), options=RunOptions(seed=0))
    local = next(choice for choice in found.choices if choice.name == "local training")
    assert local.score > found.recommended.score
    assert found.recommended.name in ("FedAvg", "auto")
    assert any("labels that they lack" in remark for remark in found.remarks)
    print_advice(found)
    assert "which learns all labels. On those that clients have, local training has +" in " ".join(
        capsys.readouterr().out.split()
    )
    held = HeldOut(skewed, skewed.ids, 0)
    assert asked_for_more(held)
    own = coterie.from_arrays({c: (d.train.x, d.train.y) for c in skewed.ids if len((d := skewed.client(c)).train)})
    assert not asked_for_more(own)


def _chosen(in_groups: bool, lower: bool = False, **scores: list[float]) -> str:
    """What is recommended where these are the clients' scores with local training, FedAvg (tuned) and auto."""
    names = {"local": "local training", "fedavg": "FedAvg", "tuned": "FedAvg, fine-tuned", "auto": "auto"}
    names["fedcg"] = "FedCG"
    nothing = paired_gain({}, {})
    choices = [
        Candidate(
            names[key],
            key,
            {},
            float(np.mean(found)),
            nothing,
            nothing,
            0,
            0.0,
            {f"c{i}": x for i, x in enumerate(found)},
        )
        for key, found in scores.items()
    ]
    return _recommended(choices, tuple(names.values()), in_groups=in_groups, lower=lower).name


def test_where_there_are_groups_it_is_auto_unless_the_trial_is_sure_of_something_else() -> None:
    """Clients' differences by hand: +3 or -2 points by turns are no sure lead; +2 points each are one."""
    auto = [0.80] * 10
    waver, lead = [0.83, 0.78] * 5, [0.82] * 10
    assert _chosen(True, local=waver, fedavg=[0.5] * 10, tuned=waver, auto=auto) == "auto"
    assert _chosen(True, local=waver, fedavg=[0.5] * 10, tuned=lead, auto=auto) == "FedAvg, fine-tuned"
    assert _chosen(True, local=auto, fedavg=[0.5] * 10, tuned=waver, auto=auto) == "local training"  # surely as good
    assert _chosen(True, local=[0.79] * 10, fedavg=[0.5] * 10, tuned=waver, auto=auto) == "auto"  # surely worse


def test_where_groups_have_the_same_inputs_it_is_fedcg_unless_it_does_worse() -> None:
    """FedCG is among the choices only there; 0.4 points behind auto is nothing, 1 point is."""
    low, auto = [0.5] * 10, [0.80] * 10
    assert _chosen(True, fedcg=[0.81, 0.79] * 5, local=low, fedavg=low, auto=auto) == "FedCG"
    assert _chosen(True, fedcg=[0.796] * 10, local=low, fedavg=low, auto=auto) == "FedCG"
    assert _chosen(True, fedcg=[0.79] * 10, local=low, fedavg=low, auto=auto) == "auto"
    assert _chosen(True, fedcg=auto, tuned=[0.9] * 10, local=low, fedavg=low, auto=auto) == "FedAvg, fine-tuned"
    high = [9.0] * 10
    assert _chosen(True, lower=True, fedcg=[0.79] * 10, local=high, fedavg=high, auto=auto) == "FedCG"


@pytest.mark.parametrize(
    ("shift", "groups", "recommended"), [(None, 2, "fedcg"), ("rotation", 4, "auto"), ("swap", 2, "auto")]
)
def test_fedcg_is_tried_where_the_answers_differ_and_not_the_inputs(
    shift: Literal["rotation", "swap"] | None, groups: int, recommended: str
) -> None:
    """Every second client puts its ten digits into five classes of its own: no other names for the same classes."""
    population: Population = build("rotated-digits", seed=5, groups=groups if shift else 1, clients=24, shift=shift)
    if recommended == "fedcg":
        own = {}
        for number, client in enumerate(population.ids):
            train, test = population.client(client).train, population.client(client).test
            many = 2 if number % 2 else 1
            own[client] = (train.x.numpy(), train.y.numpy() // many, test.x.numpy(), test.y.numpy() // many)
        population = coterie.from_arrays(own)
    model = partial(build_model, "digits-mlp", tuple(population.shape), population.classes)
    found = advise(population, model, training={"lr": 0.1}, options=RunOptions(seed=5))
    assert found.groups == groups
    assert ("FedCG" in {choice.name for choice in found.choices}) == (recommended == "fedcg")
    assert found.recommended.method == recommended
    assert any("other names" in remark for remark in found.remarks) == (shift == "swap")
    assert ("how classes are named" in found.apart) == (shift == "swap")
    if recommended == "fedcg":
        assert found.recommended.settings == {"domains": 2}
        assert found.command == 'coterie.run(coterie.method("fedcg", domains=2), population, model)'
        assert any("docs/privacy.md" in remark for remark in found.remarks)


@pytest.mark.parametrize("odd", [(), (4,), (4, 5)])
def test_only_classes_that_look_alike_are_said_to_have_other_names(odd: tuple[int, ...]) -> None:
    """Every second client swaps 0 with 1 and 6 with 7, and has some digits mirrored: these are no matter of names.

    With one digit mirrored auto still trains one network for both groups; with two it does not.
    """
    plain = build("rotated-digits", seed=8, groups=1, clients=16, samples=100, shift=None)
    swapped = torch.tensor([1, 0, 2, 3, 4, 5, 7, 6, 8, 9])
    own = {}
    for number, client in enumerate(plain.ids):
        arrays = []
        for samples in (plain.client(client).train, plain.client(client).test):
            x, y = samples.x.clone(), samples.y
            if number % 2:
                mirrored = torch.isin(y, torch.tensor(odd, dtype=y.dtype))
                x[mirrored] = x[mirrored].flip(2)
                y = swapped[y]
            arrays += [x.numpy(), y.numpy()]
        own[client] = tuple(arrays)
    population = coterie.from_arrays(own)  # type: ignore[arg-type]
    model = partial(build_model, "digits-mlp", tuple(population.shape), population.classes)
    found = advise(population, model, training={"lr": 0.1}, options=RunOptions(seed=8))
    assert found.groups == 2
    remark = next(each for each in found.remarks if "other names" in each)
    assert "its '0' is '1' there, '1' is '0' there, '6' is '7' there, '7' is '6' there." in remark
    assert ("Group 1 sees what group 0 does and gives it" in remark) == (not odd)
    assert ("how classes are named." in found.apart) == (not odd)
    listed = ", ".join(f"'{digit}'" for digit in odd)
    assert (f"Names are not all that differs: no class there looks like its {listed}." in remark) == bool(odd)
    assert ("auto trains one network for both" in remark) == (len(odd) < 2)


def test_groups_that_are_not_clear_must_gain_beside_fine_tuning() -> None:
    """Parts of writers gain 5 points over all together, and nothing over all together fine-tuned."""

    def run_of(plain: float, tuned: float) -> Any:
        noise = [0.001 * (number % 3) for number in range(20)]
        scores = {"per_client_score": [plain + each for each in noise], "client_ids": [str(i) for i in range(20)]}
        return SimpleNamespace(
            **scores, per_client_finetuned_score=[tuned - each for each in noise], lower_is_better=False
        )

    runs = {GROUPS: run_of(0.95, 0.97), FEDAVG: run_of(0.90, 0.97)}
    assert _gain_by_groups(runs, tuned=False).sure
    assert not _gain_by_groups(runs, tuned=True).sure
    runs[GROUPS].per_client_finetuned_score = []
    assert _gain_by_groups(runs, tuned=True).sure, "where nobody was fine-tuned, as they are"


def test_clear_groups_are_groups_though_what_they_gain_is_not_sure() -> None:
    """Two rotations, a short trial on 16 clients: the looks are sure, the gain is not."""
    population = build("rotated-digits", seed=5, groups=2, clients=16)
    model = partial(build_model, "digits-mlp", tuple(population.shape), population.classes)
    found = advise(population, model, options=RunOptions(seed=5))
    assert not found.evidence.sure
    assert found.groups == 2
    assert "may be chance" in found.verdict
    assert [found.clients[client] for client in sorted(found.clients)] in ([0, 1] * 8, [1, 0] * 8)


@pytest.mark.parametrize(("lr", "learnt"), [(1e-9, False), (0.1, True)])
def test_a_trial_that_learns_nothing_says_so(lr: float, learnt: bool) -> None:
    population = build("rotated-digits", seed=5, groups=1, clients=8)
    model = partial(build_model, "digits-mlp", tuple(population.shape), population.classes)
    found = advise(population, model, training={"lr": lr}, options=RunOptions(seed=5))
    assert any("Nothing was learnt" in remark for remark in found.remarks) is not learnt


def test_a_scenario_whose_rate_is_too_low_is_tried_at_one_that_a_test_finds() -> None:
    """By 1e-6 nothing is learnt. A rate that the user has set is the user's, and a good one is not doubted."""
    population = build("rotated-digits", seed=5, groups=1, clients=8)
    model = partial(build_model, "digits-mlp", tuple(population.shape), population.classes)
    slow = replace(population, training={**population.training, "lr": 1e-6})
    said: list[str] = []
    found = advise(slow, model, options=RunOptions(seed=5), note=said.append)
    rate = found.recommended.settings["lr"]
    assert 0.01 <= rate <= 1
    assert {choice.settings["lr"] for choice in found.choices} == {rate}
    assert f"lr={rate!r}" in found.command
    assert [remark for remark in found.remarks if "lr = 1e-06" in remark and f"A test finds lr = {rate:g}" in remark]
    assert not any("Nothing was learnt" in remark for remark in found.remarks)
    assert sum("trying FedAvg" in line for line in said) == 2
    for known in (advise(slow, model, training={"lr": 1e-6}, options=RunOptions(seed=5)),
                  advise(population, model, options=RunOptions(seed=5))):  # fmt: skip
        assert "lr" not in known.recommended.settings
        assert not any("A test finds" in remark for remark in known.remarks)


def test_a_method_that_refuses_the_network_is_left_out() -> None:
    """FedCG cannot put domains into a network that reads a layer's weight by itself; advice is given all the same."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(64, 32), nn.Linear(32, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.linear(self.first(x.flatten(1)).relu(), self.last.weight, self.last.bias)

    said: list[str] = []
    population = build("rotated-digits", seed=5, groups=2, clients=16, shift="swap")
    found = advise(population, Own, options=RunOptions(seed=5), note=said.append)
    assert any(text.startswith("FedCG is left out: ") for text in said)
    assert found.recommended.method == "auto"


def test_where_there_are_none_it_is_fedavg_unless_the_trial_is_sure_of_something_else() -> None:
    together, waver = [0.80] * 10, [0.83, 0.78] * 5
    assert _chosen(False, local=waver, fedavg=together, tuned=waver, auto=waver) == "FedAvg"
    assert _chosen(False, local=[0.9] * 10, fedavg=together, tuned=[0.92] * 10, auto=waver) == "FedAvg, fine-tuned"
    # of errors the lower is better: half a percent of 0.80 is nothing
    others = {"fedavg": together, "auto": waver}
    assert _chosen(False, lower=True, local=[0.9] * 10, tuned=[0.7] * 10, **others) == "FedAvg, fine-tuned"
    assert _chosen(False, lower=True, local=[0.803] * 10, tuned=waver, **others) == "local training"

"""The learning rate where none is known: found by a test, kept in the configuration, shared by a comparison."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes, load_digits, load_wine
from torch import nn

import coterie
from coterie.core.cohort import Cohort
from coterie.core.evaluation import evaluate
from coterie.core.optimiser import Optimiser
from coterie.core.states import spread
from coterie.core.task import Task
from coterie.data import from_arrays
from coterie.methods.rate_trial import alone_losses, trial_clients
from coterie.runs import rates
from coterie.runs.rates import RATES, found_rate

from ..conftest import Command


def parts(x: Any, y: Any, clients: int = 5) -> dict[str, tuple[Any, Any]]:
    order = np.random.default_rng(0).permutation(len(x))
    return {f"c{i}": (x[rows].astype(np.float32), y[rows]) for i, rows in enumerate(np.array_split(order, clients))}


def network(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, outputs))


def like_har(clients: int = 5) -> dict[str, tuple[Any, Any]]:
    """As UCI-HAR: 561 features in [-1, 1], six activities, every subject a little different."""
    g = np.random.default_rng(0)
    centres, mixing = g.normal(size=(6, 12)), g.normal(size=(12, 561)) / 3
    made = {}
    for client in range(clients):
        y = g.integers(0, 6, 100)
        hidden = centres[y] + 0.7 * g.normal(size=(100, 12)) + 0.5 * g.normal(size=12)
        made[f"s{client}"] = (np.tanh(hidden @ mixing).astype(np.float32), y)
    return made


DIGITS, WINE = load_digits(return_X_y=True), load_wine(return_X_y=True)


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize(
    ("clients", "normalise", "inputs", "outputs", "least"),
    [
        (parts(*DIGITS), "none", 64, 10, 0.93),  # 0 to 16: SGD at 0.1 diverges
        (parts(*DIGITS), "auto", 64, 10, 0.93),
        (parts(*WINE), "auto", 13, 3, 0.9),
        (like_har(), "auto", 561, 6, 0.85),
    ],
    ids=["digits as they are", "digits", "wine", "like HAR"],
)
def test_fedavg_learns_fast_at_the_rate_that_is_found(
    clients: Any, normalise: Any, inputs: int, outputs: int, least: float, optimiser: str
) -> None:
    population = from_arrays(clients, normalise=normalise)
    method = coterie.method("fedavg", optimiser=optimiser)
    result = coterie.run(method, population, lambda: network(inputs, outputs), rounds=8, evaluate_every=8)
    assert result.accuracy >= least


def test_a_regression_too() -> None:
    """On the diabetes data a linear model explains about half of the variance; half of that is learnt in 8 rounds."""
    x, y = load_diabetes(return_X_y=True, scaled=False)
    population = from_arrays(parts(x, y.astype(np.float32)), task="regression")
    task = Task.of(lambda: network(10, 1), population, task="regression")
    found = found_rate(task, population, Optimiser(5, 32, None, 0.9), 0)
    assert found.after < 0.8 * found.before


def test_the_same_seed_finds_the_same_rate_in_any_order_of_clients() -> None:
    clients = parts(*WINE)
    there, back = (from_arrays(given) for given in (clients, dict(reversed(clients.items()))))
    found = [
        found_rate(Task.of(lambda: network(13, 3), population), population, Optimiser(5, 32, None, 0.9), 3)
        for population in (there, there, back)
    ]
    assert found[0] == found[1] == found[2]
    assert found[0].rate in RATES
    assert found[0].clients == 5


def test_a_rate_that_some_clients_cannot_bear_is_lowered() -> None:
    """By hand: of 2.0 one client gains 1.8 at both rates; the other dies at the larger one (0.2 of 1.0 is left to it).

    Its share is 0.2 there and 1 at the smaller one, so the mean of both rises from 0.6 to 1. The next smaller rate
    gains less for both, by half, and is not taken; nor is one that learnt nothing in the first part of the test.
    """
    alone = {0.0: [2.0, 2.0], 0.1: [0.2, 1.8], 0.03: [0.2, 1.0], 0.01: [1.1, 1.5]}
    asked: list[list[float]] = []

    def trained(at: list[float]) -> torch.Tensor:
        asked.append(at)
        return torch.tensor([[alone[rate][client] for rate in at] for client in range(2)])

    after = {0.3: float("nan"), 0.1: 1.0, 0.03: 1.2, 0.01: 1.6}
    found = rates._found(Optimiser(5, 32, None, 0.9), 2.0, after, 2, trained)
    assert (found.rate, found.after, found.clients) == (0.03, 1.2, 2)
    assert asked == [[0.0, 0.1, 0.03], [0.0, 0.03, 0.01]]
    assert rates._found(Optimiser(5, 32, None, 0.9), 2.0, {**after, 0.03: 2.1}, 2, trained).rate == 0.1


@pytest.mark.parametrize(
    ("losses", "lower"),
    [
        ([[2.0, 0.2, 0.2], [2.0, 1.8, 1.0]], True),  # shares 1 and 0.2, then 1 and 1
        ([[2.0, 0.2, 0.2]] * 7 + [[2.0, 1.6, 1.0]], True),  # one of eight has 0.4: the mean rises by 0.075 only
        ([[2.0, 0.0, 0.1]] * 7 + [[2.0, 1.6, 1.0]], True),  # ... and though the others get less far by 0.05
        ([[2.0, 0.0, 0.5]] * 7 + [[2.0, 1.6, 1.0]], False),  # by 0.25 is too much for the sake of one
        ([[2.0, float("inf"), 1.0], [2.0, float("nan"), 1.9]], True),
        ([[2.0, 1.0, 1.0]], False),
        ([[2.0, 2.5, 2.5]], False),  # learns at neither
        ([], False),  # nobody has told
    ],
)
def test_what_speaks_for_the_smaller_of_two_rates(losses: list[list[float]], lower: bool) -> None:
    assert rates._bears_less(torch.tensor(losses).reshape(-1, 3), one_is_enough=True) is lower


def test_for_a_second_step_most_clients_must_gain() -> None:
    """Shares by hand: 0.5 and 1 of each client; then of the first alone, while the others have 1 and 0.95."""
    assert rates._bears_less(torch.tensor([[2.0, 1.5, 1.0]] * 3), one_is_enough=False)
    assert not rates._bears_less(torch.tensor([[2.0, 1.9, 1.0]] + [[2.0, 1.0, 1.05]] * 3), one_is_enough=False)
    assert not rates._bears_less(torch.tensor([[2.0, 1.9, 1.0]]), one_is_enough=False)


@pytest.mark.parametrize("clients", [1, 2, 3, 4, 12])
def test_one_client_that_lies_lowers_the_rate_by_one_step_at_most(clients: int) -> None:
    """The others gain 1 - exp(-60 r) of 1.8: at 0.03 nearly as much as at 0.1, at 0.01 half of it."""
    asked: list[float] = []

    def trained(at: list[float]) -> torch.Tensor:
        asked.append(at[-1])
        honest = [2.3 - 1.8 * (1 - math.exp(-60 * rate)) for rate in at]
        return torch.tensor([honest] * (clients - 1) + [[2.3, 2.3, 0.0]])

    after = {rate: 2.3 - 1.8 * (1 - math.exp(-60 * rate)) if rate <= 0.1 else math.inf for rate in RATES}
    assert rates._found(Optimiser(5, 32, None, 0.9), 2.3, after, clients, trained).rate in (0.1, 0.03)
    assert asked[:1] == [0.03]


def test_at_rate_0_a_network_with_batchnorm_is_the_untrained_one() -> None:
    population = from_arrays(parts(DIGITS[0], DIGITS[1], 2))

    def normalised() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))

    task = Task.of(normalised, population)
    data = tuple(population.client(client) for client in population.ids)
    trial, opt = Cohort(tuple(population.ids), task, data, 0, 1), Optimiser(1, 32, None, 0.9)
    untrained = evaluate(trial, spread(task.init(1), len(trial)), "train").loss
    assert torch.equal(alone_losses(trial, opt, [0.0, 0.1], 2)[:, 0], untrained.double())


def test_clients_of_another_kind_lower_the_rate_though_they_do_not_train_with_the_first() -> None:
    """Digits in [0, 1], and four clients with twelve times that, who are not among the four of the first part."""
    x, y = DIGITS
    small = {name: (own / 16, labels) for name, (own, labels) in parts(x[:800], y[:800], 4).items()}
    large = {f"large {name}": (12 * own / 16, labels) for name, (own, labels) in parts(x[800:], y[800:], 4).items()}
    clients = {**small, **large}
    seed = next(seed for seed in range(99) if not set(large) & set(trial_clients(list(clients), seed)))
    each, trained = [], Optimiser(5, 32, None, 0.9)
    for given in (small, clients):
        population = from_arrays(given, normalise="none")
        each.append(found_rate(Task.of(lambda: network(64, 10), population), population, trained, seed))
    assert each[1].rate < each[0].rate


def test_without_a_rate_that_learns_the_usual_one_is_taken() -> None:
    """Without any signal in the inputs nothing can be learnt: all are 0 and the labels are even."""
    x, y = np.zeros((40, 2), np.float32), np.arange(40) % 2
    population = from_arrays({"a": (x, y, x, y)})

    def still() -> nn.Module:
        made = nn.Linear(2, 2)
        nn.init.zeros_(made.bias)
        return made

    found = found_rate(Task.of(still, population), population, Optimiser(1, 40, None, 0.0), 0)
    assert found.rate == 0.01
    assert "set lr yourself" in found.said


@pytest.fixture
def own(tmp_path: Path) -> Path:
    for client, (x, y) in parts(WINE[0], WINE[1], 4).items():
        rows = "\n".join(f"{','.join(map(str, row))},kind {label}" for row, label in zip(x, y, strict=True))
        (tmp_path / "wine").mkdir(exist_ok=True)
        (tmp_path / "wine" / f"{client}.csv").write_text(f"{','.join(f'f{i}' for i in range(13))},y\n{rows}\n")
    (tmp_path / "model.py").write_text(
        "from torch import nn\n\n\ndef build():\n"
        "    return nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 3))\n"
    )
    return tmp_path


def lr_of(folder: Path) -> Any:
    return tomllib.loads((folder / "config.toml").read_text()).get("settings", {}).get("lr")


def test_a_comparison_shares_one_rate_and_goes_on_with_it(own: Path, coterie: Command) -> None:
    command = ["compare", "fedavg", "local", "--data", own / "wine", "--model", f"{own / 'model.py'}:build", "--rounds"]
    said = coterie(*command, 2, "--seeds", "0,1", "--set", "local.momentum=0.5", "--out", own / "runs")
    assert said.code == 0, said.err
    rates = {
        name: lr_of(own / "runs" / name) for name in ("fedavg-seed0", "fedavg-seed1", "local-seed0", "local-seed1")
    }
    assert rates["fedavg-seed0"] == rates["fedavg-seed1"] in RATES
    assert rates["local-seed0"] == rates["local-seed1"] in RATES
    again = coterie(*command, 2, "--seeds", "0,1", "--set", "local.momentum=0.5", "--out", own / "runs")
    assert again.code == 0, again.err


def test_a_run_writes_the_rate_to_its_configuration_and_says_it(own: Path, coterie: Command) -> None:
    command = ["run", "fedavg", "--data", own / "wine", "--model", f"{own / 'model.py'}:build", "--rounds", 2]
    said = coterie(*command, "--set", "lr=auto", "--out", own / "run")
    assert said.code == 0, said.err
    assert f"lr = {lr_of(own / 'run'):g}, found by a test on 4 clients" in said.out + said.err
    said = coterie(*command, "--set", "lr=0.02", "--out", own / "set")
    assert lr_of(own / "set") == 0.02
    assert "found by a test" not in said.out + said.err


def test_named_scenarios_keep_their_rates(coterie: Command, tmp_path: Path) -> None:
    said = coterie("run", "fedavg", "--clients", 4, "--rounds", 1, "--out", tmp_path / "run")
    assert said.code == 0, said.err
    assert "found by a test" not in said.out + said.err
    assert lr_of(tmp_path / "run") is None


@pytest.mark.parametrize("asked", ["lr=auto", "optimiser=adam"])
def test_a_scenario_is_tested_too_where_it_is_asked_for_or_trains_with_another_optimiser(
    asked: str, coterie: Command, tmp_path: Path
) -> None:
    """The scenario's rate is for its own optimiser; what was found is said, written, and kept when it is resumed."""
    small = ["--clients", 4, "--set", asked, "--set", "finetune_epochs=0"]
    said = coterie("run", "fedavg", *small, "--rounds", 1, "--out", tmp_path / "run")
    assert said.code == 0, said.err
    found = lr_of(tmp_path / "run")
    assert found in RATES
    assert f"lr = {found:g}, found by a test on 4 clients" in said.out + said.err
    assert coterie("resume", tmp_path / "run", "--rounds", 2).code == 0
    assert lr_of(tmp_path / "run") == found
    said = coterie("compare", "fedavg", "local", *small, "--rounds", 1, "--seeds", "0,1", "--out", tmp_path / "all")
    assert said.code == 0, said.err
    assert {lr_of(folder) for folder in (tmp_path / "all").glob("*-seed*")} == {found}


def test_adam_learns_on_a_scenario_whose_rate_is_for_sgd() -> None:
    """Adam's usual 0.001 is too small for its few steps; the same in Python, where lr may be auto as well."""
    population = coterie.build("rotated-digits", seed=0, groups=1, clients=8)

    def accuracy(**settings: Any) -> float:
        method = coterie.method("fedavg", optimiser="adam", finetune_epochs=0, **settings)
        return coterie.run(
            method, population, lambda: nn.Sequential(nn.Flatten(), network(64, 10)), rounds=4, evaluate_every=4
        ).accuracy

    assert accuracy() == accuracy(lr="auto") > accuracy(lr=0.001) + 0.1

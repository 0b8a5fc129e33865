"""Presets: one mechanism for all methods, with what a paper says of each scenario."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from coterie import method
from coterie.cli.listing import settings
from coterie.core.errors import CoterieError
from coterie.core.settings import from_settings
from coterie.data import SCENARIOS
from coterie.methods import METHODS
from coterie.methods.embedding.method import Embedding
from coterie.methods.local_training import LocalTraining
from coterie.methods.md_icfl.method import MDICFL
from coterie.runs.config import from_tables
from coterie.runs.experiment import defaults_of

TRAINING = {f.name for f in dataclasses.fields(LocalTraining)} - {"aggregate", "personalise", "finetune_epochs"}
PRESETS = [(name, preset) for name, kind in METHODS.items() for preset in kind.presets]


def on(scenario: str, name: str, **chosen: Any) -> Any:
    """A method as `coterie run --scenario SCENARIO --set ...` makes it."""
    config = from_tables({"method": name, "scenario": {"name": scenario}, "settings": chosen})
    return config.build_method(defaults_of(config))


@pytest.mark.parametrize(("name", "preset"), PRESETS)
def test_every_preset_fits_its_method_and_knows_its_scenarios(name: str, preset: str) -> None:
    kind = METHODS[name]
    assert set(kind.scenario_presets) <= set(kind.presets)
    assert set(kind.scenario_presets.get(preset, {})) <= set(SCENARIOS)
    for scenario in ("", *SCENARIOS):
        from_settings(kind, kind.expand({"preset": preset}, scenario), name)


@pytest.mark.parametrize(("name", "preset"), [each for each in PRESETS if each[1] == "paper"])
@pytest.mark.parametrize("scenario", ["", *SCENARIOS])
def test_a_paper_that_says_how_clients_train_says_all_of_it(name: str, preset: str, scenario: str) -> None:
    """All fields of local training or none: a rate without its optimiser meets the scenario's (Adam at 0.1)."""
    said = TRAINING & set(METHODS[name].expand({"preset": preset}, scenario))
    assert said in (set(), TRAINING)


@pytest.mark.parametrize(("name", "preset"), [each for each in PRESETS if each[1] == "paper"])
def test_the_papers_average_plainly(name: str, preset: str) -> None:
    """Robust averages are ours; no paper of the four has one."""
    assert METHODS[name].presets[preset]["aggregate"] == "mean"


def test_on_rotated_mnist_the_paper_of_md_icfl_does_not_train_with_adam() -> None:
    """That scenario recommends Adam; the paper has SGD 0.1, batches of 50 and two epochs."""
    assert SCENARIOS["rotated-mnist"].training["optimiser"] == "adam"
    paper = on("rotated-mnist", "md-icfl", preset="paper")
    assert (paper.optimiser, paper.lr, paper.momentum, paper.batch, paper.epochs) == ("sgd", 0.1, 0.0, 50, 2)


@pytest.mark.parametrize(
    ("scenario", "epochs"),
    [("swapped-rotated-mnist", 2), ("multi-source-digits", 3), ("swapped-rotated-cifar10", 1), ("rotated-digits", 2)],
)
def test_the_epochs_of_md_icfl_are_those_of_its_section_5_2(scenario: str, epochs: int) -> None:
    """E = 2 on rotated MNIST, 3 on multi-source digits, 1 on swapped-rotated CIFAR-10; what else is set wins."""
    assert on(scenario, "md-icfl", preset="paper").epochs == epochs
    assert MDICFL.preset("paper", scenario).epochs == epochs
    assert method("md-icfl", scenario=scenario, preset="paper").epochs == epochs
    assert on(scenario, "md-icfl", preset="paper", epochs=7).epochs == 7
    assert on(scenario, "md-icfl").epochs == SCENARIOS[scenario].training["epochs"]


@pytest.mark.parametrize("scenario", ["rotated-mnist", "rotated-digits"])
def test_panm_trains_the_same_in_all_experiments(scenario: str) -> None:
    """Its section 4.2, whatever the scenario recommends; tau is that of its Table 6, the only one it names."""
    paper = on(scenario, "panm", preset="paper")
    assert (paper.optimiser, paper.lr, paper.lr_decay, paper.momentum) == ("sgd", 0.08, 0.99, 0.9)
    assert (paper.batch, paper.epochs, paper.t1, paper.tau, paper.l, paper.k) == (128, 3, 100, 10, 10, 5)
    assert on(scenario, "panm", preset="paper", lr=0.5).lr == 0.5


@pytest.mark.parametrize(("scenario", "batch", "clients"), [("femnist", 10, 5), ("celeba", 5, 10)])
def test_fedcg_trains_on_leaf_as_its_section_4_says(scenario: str, batch: int, clients: int) -> None:
    """LEAF's own rate of 0.01, which the scenario has, is not the paper's; elsewhere the paper says nothing."""
    paper = on(scenario, "fedcg", preset="paper")
    assert (paper.lr, paper.batch, paper.epochs, paper.fraction) == (0.001, batch, 1, clients)
    assert on("rotated-digits", "fedcg", preset="paper").lr == SCENARIOS["rotated-digits"].training["lr"]


def test_own_data_are_no_scenario_of_a_paper() -> None:
    """Their table still has the default name of a scenario, which is not theirs."""
    tables = {"method": "md-icfl", "settings": {"preset": "paper"}}
    config = from_tables({**tables, "scenario": {"name": "multi-source-digits", "data": "my-clients"}})
    assert config.build_method({}).epochs == 2


def test_the_paper_of_embedding_clustering() -> None:
    """Table I: 5, 1, 3 and 1 local epochs; 50, 50, 75 and 20 clients a round; least sizes 10, 10, 100, 5."""
    names = ("rotated-mnist", "cycled-cifar10", "femnist", "pacs")
    made = [on(name, "embedding", preset="paper") for name in names]
    assert all(isinstance(each, Embedding) and each.rule == "paper" and each.flip == 0.1 for each in made)
    assert [each.epochs for each in made] == [5, 1, 3, 1]
    assert [each.fraction for each in made] == [0.5, 0.5, 75, 0.5]
    assert [each.min_size for each in made] == [10, 10, 100, 5]
    assert {(each.optimiser, each.lr, each.batch) for each in made} == {("adam", 0.001, 32)}


def test_the_list_shows_what_a_preset_says_on_a_scenario() -> None:
    words = list(settings("md-icfl").columns[2].cells)
    assert "on multi-source-digits: epochs=3" in words


def test_a_method_without_presets_says_so() -> None:
    with pytest.raises(CoterieError, match="no preset of ifca 'paper', and there are no others; leave it out"):
        method("ifca", preset="paper")

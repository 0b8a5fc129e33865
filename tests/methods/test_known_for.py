"""What a method is known for stands in its class: title, needs, local training on a scenario."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from coterie.core.errors import CoterieError
from coterie.core.samples import Population
from coterie.data import build
from coterie.data.scenarios import SCENARIOS
from coterie.methods import METHODS, Method, chosen_method
from coterie.methods.fedavg import FedAvg
from coterie.methods.local_training import LocalTraining
from coterie.methods.scaffold import Scaffold
from coterie.report.formatting import method_title
from coterie.runs.config import from_tables
from coterie.runs.experiment import check
from coterie.runs.rates import with_scenario_rate

from ..tiny import made

OWN = """
from dataclasses import dataclass
from typing import ClassVar
from coterie import FedAvg

@dataclass(frozen=True)
class Tilted(FedAvg):
    name: ClassVar[str] = "tilted"
    title: ClassVar[str] = "Tilted averaging"
"""


def rate(method: Method, population: Population) -> float:
    """The learning rate of a run's first round, as `run` takes it."""
    driven = with_scenario_rate(method, population)
    assert isinstance(driven, LocalTraining)
    return driven.opt.rate(0)


def test_every_method_has_a_title_of_its_own() -> None:
    """Titles are spelt for people, all different, and are what reports show."""
    titles = [kind.title for kind in METHODS.values()]
    assert len(set(titles)) == len(METHODS)
    assert all(title and title != name for title, name in zip(titles, METHODS, strict=True))
    assert {name: method_title(name) for name in METHODS} == dict(zip(METHODS, titles, strict=True))


def test_every_method_says_when_to_use_it_and_when_not() -> None:
    """Each in words of its own; a method that derives from another must not inherit that one's."""
    for words in ([kind.use_when for kind in METHODS.values()], [kind.avoid_when for kind in METHODS.values()]):
        assert all(words)
    assert len({(kind.use_when, kind.avoid_when) for kind in METHODS.values()}) == len(METHODS)


def test_an_own_method_has_its_title_in_reports(tmp_path: Path) -> None:
    """Not the title of the method that it derives from, where it says none."""
    (tmp_path / "mine.py").write_text(OWN)
    assert chosen_method(f"{tmp_path / 'mine.py'}:Tilted").name == "tilted"
    assert method_title("tilted") == "Tilted averaging"

    @dataclass(frozen=True)
    class Plain(FedAvg):
        name: ClassVar[str] = "plain-average"

    assert (Plain.title, method_title("plain-average")) == ("plain-average", "plain-average")
    assert method_title("never-heard-of") == "never-heard-of"


@pytest.mark.parametrize(
    ("name", "settings"), [("oracle", {}), ("fedcg", {"find": "oracle"}), ("gossip", {"partners": "oracle"})]
)
def test_what_needs_true_groups_is_refused_where_there_are_none(
    name: str, settings: dict[str, str], tmp_path: Path
) -> None:
    """Two clients of a folder have no groups; each of these methods with other settings does not need them."""
    assert made(name, **settings).needs_groups
    for client in ("a", "b"):
        np.savez(tmp_path / f"{client}.npz", x=np.random.default_rng(0).random((20, 3)), y=np.arange(20) % 2)
    tables = {"method": name, "settings": settings, "scenario": {"data": str(tmp_path)}}
    with pytest.raises(CoterieError, match="needs the true groups"):
        check([from_tables(tables)])


def test_only_these_need_true_groups_or_a_validation_part() -> None:
    """By default the oracle alone is told the groups, and FedFomo alone chooses by held-out samples."""
    assert [name for name in METHODS if made(name).needs_groups] == ["oracle"]
    assert [name for name, kind in METHODS.items() if kind.needs_validation] == ["fedfomo"]


def test_a_methods_own_rate_on_a_scenario_counts_in_python_too() -> None:
    """SCAFFOLD trains rotated-digits at 0.5 and everything else at the scenario's rate; what is set wins."""
    digits = build("rotated-digits", seed=0, clients=4)
    assert not any("." in key for scenario in SCENARIOS.values() for key in scenario.training)
    assert [rate(method, digits) for method in (Scaffold(), FedAvg())] == [0.5, 0.1]
    assert rate(Scaffold(lr=0.2), digits) == 0.2

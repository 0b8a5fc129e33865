"""Settings: the same names and values in Python, in TOML and on the command line."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.core.errors import CoterieError
from coterie.core.settings import (
    changed_fields,
    from_settings,
    split_assignments,
    to_toml,
)
from coterie.methods import METHODS
from coterie.runs.config import from_tables, merge


@dataclass(frozen=True)
class Example:
    whole: int = 1
    number: float = 0.5
    flag: bool = False
    word: str = ""
    choice: Literal["a", "b"] = "a"
    maybe: int | None = None
    pairs: tuple[tuple[int, float], ...] = ()
    several: tuple[int, ...] = ()
    either: int | tuple[str, ...] | None = None


def test_text_and_values_are_read_alike() -> None:
    expected = Example(3, 0.25, True, "x", "b", 7, ((5, 4.0), (9, 2.0)), (1, 2))
    text = {
        "whole": "3", "number": "0.25", "flag": "yes", "word": "x", "choice": "b", "maybe": "7", "pairs": "5:4,9:2",
        "several": "1,2",
    }  # fmt: skip
    values = {
        "whole": 3, "number": 0.25, "flag": True, "word": "x", "choice": "b", "maybe": 7, "pairs": [[5, 4], [9, 2]],
        "several": [1, 2],
    }  # fmt: skip
    assert from_settings(Example, text, "example") == expected
    assert from_settings(Example, values, "example") == expected
    as_in_toml = text | {"pairs": "[[5, 4], [9, 2]]", "several": "[1, 2]"}
    assert from_settings(Example, as_in_toml, "example") == expected
    assert from_settings(Example, {"either": '["a, b", "c"]'}, "example").either == ("a, b", "c")
    assert from_settings(Example, {"either": "[a,c]"}, "example").either == ("[a", "c]")  # no list of TOML
    assert from_settings(Example, {"maybe": "none", "number": 2, "whole": 3.0}, "example") == Example(3, 2.0)


@given(
    st.builds(
        Example,
        st.integers(-(2**60), 2**60),
        st.floats(allow_nan=False, allow_infinity=False),
        st.booleans(),
        st.text(st.characters(codec="utf-8"), max_size=10),
        st.sampled_from(["a", "b"]),
        st.none() | st.integers(0, 99),
        st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9).map(float)), max_size=3).map(tuple),
        st.lists(st.integers(0, 9), max_size=3).map(tuple),
    )
)
def test_toml_brings_back_what_was_written(example: Example) -> None:
    tables = tomllib.loads(to_toml({"top": 1, "example": changed_fields(example)}))
    assert from_settings(Example, tables.get("example", {}), "example") == example


def test_assignments_are_split_at_the_first_equals_sign() -> None:
    assert split_assignments(["a=1", " b.c = x=y "]) == {"a": "1", "b.c": "x=y"}
    for bad in ("a", "=3", ""):
        with pytest.raises(CoterieError, match="--set takes key=value"):
            split_assignments([bad])


def test_where_an_assignment_goes() -> None:
    tables = {"method": "ifca", "rounds": 5, "settings": {"k": 2}}
    merged = merge(
        tables,
        {"rounds": "7", "k": "3", "ifca.batch": "8", "settings.lr": "1", "faults.nan": "0.1", "scenario.clients": "6"},
        "ifca",
    )
    assert merged == {
        "method": "ifca",
        "rounds": "7",
        "settings": {"k": "3", "batch": "8", "lr": "1"},
        "faults": {"nan": "0.1"},
        "scenario": {"clients": "6"},
    }
    assert tables["settings"] == {"k": 2}, "the file's own tables are left alone"


def test_a_configuration_is_its_own_toml() -> None:
    config = from_tables(
        {
            "method": "ifca",
            "rounds": 3,
            "dtype": "float64",
            "scenario": {"name": "rotated-digits", "clients": 8, "drift": [[2, 0.5]]},
            "settings": {"k": "3", "score_batch": 8},
            "faults": {"dropout": 0.1, "joins": "2:3"},
            "engine": {"workers": 1, "kernel": False},
        }
    )
    assert from_tables(tomllib.loads(config.to_toml())) == config
    assert config.settings == {"k": 3, "score_batch": 8}


def test_a_scenarios_training_gives_way_to_the_user_and_to_the_method() -> None:
    defaults = {"lr": 0.02, "momentum": 0.5, "epochs": 9, "unheard_of": 1}
    fedavg = from_tables({"method": "fedavg", "settings": {"epochs": 2}}).build_method(defaults)
    assert (fedavg.lr, fedavg.momentum, fedavg.epochs) == (0.02, 0.5, 2)
    scaffold = from_tables({"method": "scaffold"}).build_method(defaults)
    assert scaffold.momentum == 0.0, "what a method sets for a reason stays"


def test_a_rate_belongs_to_its_optimiser() -> None:
    """Adam's own default is 0.001; what a scenario says for SGD is not for Adam; what the user sets always counts."""
    sgd, adam = {"lr": 0.1, "momentum": 0.9}, {"optimiser": "adam", "lr": 0.002}

    def rate(scenario: dict[str, Any], **settings: Any) -> float:
        return from_tables({"method": "fedavg", "settings": settings}).build_method(scenario).opt.rate(0)

    assert rate({}) == 0.01
    assert rate({}, optimiser="adam") == 0.001
    assert rate(sgd) == 0.1
    assert rate(sgd, optimiser="sgd") == 0.1
    assert rate(sgd, optimiser="adam") == 0.001
    assert rate(sgd, optimiser="adam", lr=0.1) == 0.1
    assert rate(adam) == 0.002
    assert rate(adam, optimiser="sgd") == 0.01
    assert METHODS["fedavg"](optimiser="adam").opt.rate(0) == 0.001
    assert replace(METHODS["fedavg"](), optimiser="adam").opt.rate(0) == 0.001
    assert from_tables({"method": "scaffold"}).build_method(sgd).opt.rate(0) == 0.5, "it says so of rotated-digits"
    assert from_tables({"method": "scaffold", "settings": {"lr": 0.2}}).build_method(sgd).opt.rate(0) == 0.2
    elsewhere = from_tables({"method": "scaffold", "scenario": {"name": "rotated-mnist"}})
    assert elsewhere.build_method(sgd).opt.rate(0) == 0.1


def test_what_is_not_set_is_not_written() -> None:
    config = from_tables({"method": "fedavg", "settings": {"lr": "none", "epochs": 2}})
    assert tomllib.loads(config.to_toml())["settings"] == {"epochs": 2}


@pytest.mark.parametrize(
    ("given", "read"),
    [("10", 10), (10, 10), ("cat, dog", ("cat", "dog")), (["a", "b"], ("a", "b")), ("none", None), ("", None)],
)
def test_a_number_or_names(given: Any, read: Any) -> None:
    assert from_settings(Example, {"either": given}, "example").either == read
    config = from_tables({"method": "fedavg", "scenario": {"data": "x", "classes": given}})
    assert config.scenario.classes == read
    assert from_tables(tomllib.loads(config.to_toml())) == config

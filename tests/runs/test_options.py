"""The options of a run are listed once."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path

import numpy as np
import pytest

import coterie
from coterie import CoterieError, Population
from coterie.report.run import RunKeywords
from coterie.runs.config import RunConfig, from_tables
from coterie.runs.options import RunOptions
from coterie.runs.simulate import simulate
from tests.tiny import small_net


def test_python_and_toml_have_the_same_options_and_defaults() -> None:
    parameters = inspect.signature(coterie.run).parameters
    config = from_tables({"method": "fedavg"})
    assert isinstance(config, RunOptions)
    for field in dataclasses.fields(RunOptions):
        given = str(parameters[field.name].default).removeprefix("torch.")
        assert given == str(field.default) == str(getattr(config, field.name)), field.name


def test_run_and_compare_take_every_option_of_a_run_and_of_the_simulator() -> None:
    """The keywords of the two are typed in one place; they are the run's options and what `simulate` takes by name."""
    of_a_run = {field.name for field in dataclasses.fields(RunOptions)}
    of_the_simulator = {
        name for name, each in inspect.signature(simulate).parameters.items() if each.kind is each.KEYWORD_ONLY
    }
    own = {"seed", "out", "resume"}  # a comparison has seeds and a folder for each, and resumes by itself
    assert set(RunKeywords.__annotations__) == (of_a_run | of_the_simulator) - own
    assert set(RunKeywords.__annotations__) | own < set(inspect.signature(coterie.run).parameters)


def test_names_that_are_no_option_are_refused_as_python_does(digits: Population, tmp_path: Path) -> None:
    """`from_arrays(clients, tset="all")` was taken without a word."""
    data, model = {"a": (np.zeros((4, 2), np.float32), np.zeros(4, np.int64))}, small_net
    for call in (
        lambda: coterie.run("fedavg", digits, model, rond=2),  # type: ignore[call-arg]
        lambda: coterie.compare(["fedavg"], digits, model, rond=2),  # type: ignore[call-arg]
        lambda: coterie.from_arrays(data, rond=2),  # type: ignore[call-arg]
        lambda: coterie.from_frames({}, rond=2),  # type: ignore[call-arg]
        lambda: coterie.from_table({}, rond=2),  # type: ignore[call-arg]
        lambda: coterie.from_datasets({}, rond=2),  # type: ignore[call-arg]
        lambda: coterie.from_path(tmp_path, rond=2),  # type: ignore[call-arg]
    ):
        with pytest.raises(TypeError, match=r"^(run|compare|from_\w+)\(\) got an unexpected keyword argument 'rond'"):
            call()


@pytest.mark.parametrize(
    "wrong",
    [{"rounds": 0}, {"seed": -1}, {"evaluate_every": 0}, {"evaluate_clients": 0}],
    ids=lambda each: next(iter(each)),
)
def test_bad_options_are_refused_in_python_as_in_toml(wrong: dict[str, int]) -> None:
    """`coterie.run(evaluate_every=0)` was a ZeroDivisionError after the first round."""
    with pytest.raises(CoterieError, match="must be at least"):
        RunOptions(**wrong)  # type: ignore[arg-type]
    with pytest.raises(CoterieError, match="must be at least"):
        RunConfig(method="fedavg", **wrong)  # type: ignore[arg-type]

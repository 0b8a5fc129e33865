"""The options of a run are listed once."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

import coterie
from coterie import CoterieError
from coterie.runs.config import RunConfig, from_tables
from coterie.runs.options import RunOptions


def test_python_and_toml_have_the_same_options_and_defaults() -> None:
    parameters = inspect.signature(coterie.run).parameters
    config = from_tables({"method": "fedavg"})
    assert isinstance(config, RunOptions)
    for field in dataclasses.fields(RunOptions):
        given = str(parameters[field.name].default).removeprefix("torch.")
        assert given == str(field.default) == str(getattr(config, field.name)), field.name


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

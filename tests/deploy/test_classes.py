"""Other classes at the start of a run: its configuration decides, or most clients do, and everybody is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coterie.core.errors import CoterieError
from coterie.deploy.hello import Hello
from coterie.runs.classes import brought_alone, check_said, common_classes, odd_classes
from coterie.runs.config import RunConfig, from_tables
from coterie.runs.spec import agree, alone, odd_ones

from .processes import Command, free_port

TOLD = Hello("a", (4,), 3, "float32", 10, (0.0,), (1.0,))


def told(**classes: int | tuple[str, ...]) -> dict[str, Hello]:
    """Clients with so many classes, or with these words."""
    return {
        name: replace(TOLD, name=name, classes=said)
        if isinstance(said, int)
        else replace(TOLD, name=name, classes=len(said), names=said)
        for name, said in classes.items()
    }


def config(**scenario: object) -> RunConfig:
    return from_tables({"method": "fedavg", "model": "mlp", "scenario": {"data": "own", **scenario}})


WORDS = ("ill", "well")
MANY = tuple(f"word {n}" for n in range(29))


@pytest.mark.parametrize(
    ("there", "odd"),
    [
        ({"a": 3, "b": 3, "c": 3, "o": 29}, ["o"]),
        ({"a": 3, "b": 3, "c": 3, "o": 6}, []),  # twice: labels may be skewed
        ({"a": 3, "b": 3, "c": 3, "o": 7}, ["o"]),
        ({"a": 1, "b": 1, "c": 1, "o": 4}, []),
        ({"a": 3, "b": 3, "c": 3, "o": 29, "p": 29}, ["o", "p"]),
        ({"a": 3, "b": 3, "c": 3, "o": 90, "p": 29}, ["o", "p"]),
        ({"a": 3, "b": 3, "o": 29, "p": 29}, []),  # half of them: who is odd?
        ({"a": 3, "o": 29}, []),
        ({"a": 2, "b": 4, "c": 6, "d": 9, "e": 10}, []),  # skewed labels
        ({"a": WORDS, "b": WORDS, "c": ("well",), "o": MANY}, ["o"]),
        ({"a": WORDS, "b": WORDS, "c": WORDS, "o": ("dead", "well")}, []),
        ({"a": WORDS, "b": WORDS, "c": WORDS, "o": MANY, "p": tuple(f"x{n}" for n in range(29))}, ["o", "p"]),
        ({"a": 3, "b": 3, "c": ("1", "2"), "o": ("2", "40")}, ["o"]),  # whole numbers, told as words
        ({"a": ("2019", "2020"), "b": ("2019", "2020"), "c": ("2020", "2021")}, []),
        ({}, []),
    ],
)
def test_a_minority_does_not_give_everybody_its_classes(
    there: dict[str, int | tuple[str, ...]], odd: list[str]
) -> None:
    assert sorted(odd_classes(None, told(**there))) == odd


def test_the_configuration_decides_where_it_says_the_classes() -> None:
    numbers, words = config(classes=29), config(classes="well,ill")
    there = told(a=3, b=3, c=3, o=29)
    assert odd_ones(numbers, there) == {}
    assert agree(numbers, there).classes == 29
    assert alone(numbers, there) == {}
    assert odd_ones(config(classes=3), told(a=3, o=4)) == {"o": "it has a label 3, the run is about 3 classes (0 to 2)"}
    there = told(a=WORDS, b=("well",), o=("dead", "well"), n=3)
    odd = odd_ones(words, there)
    assert sorted(odd) == ["n", "o"]
    assert odd["o"] == "it has the label 'dead', the run is about 2 classes (ill, well)"
    assert odd["n"] == "its labels are numbers, those of the run are words"
    assert agree(words, there).class_names == ("ill", "well")
    # where all clients have words and the run numbers, nobody fits: the server says so and waits
    assert sorted(odd_ones(numbers, told(a=WORDS, b=WORDS))) == ["a", "b"]
    assert sorted(odd_classes(("1", "2"), told(a=3, o=4, p=("1", "9")))) == ["o", "p"]
    assert common_classes(("10", "9"), {}) == (("9", "10"), 2)


def test_who_alone_brings_classes_is_said() -> None:
    assert brought_alone(told(a=3, b=3, o=5)) == {"o": "the classes 3 to 4"}
    assert brought_alone(told(a=3, b=3, o=4)) == {"o": "the class 3"}
    assert brought_alone(told(a=3, b=4, c=4)) == {}
    assert brought_alone(told(a=3)) == {}
    assert brought_alone(told(a=WORDS, b=WORDS, o=("dead", "well"))) == {"o": "the class 'dead'"}
    assert brought_alone(told(a=("x",), b=("y",), o=("z",))) == {}  # all have something of their own: skewed labels
    there = told(a=3, o=4)
    assert alone(config(), there)["o"].startswith("the class 3, which the model of every client has because of it")


def test_a_peer_does_not_believe_in_other_classes_than_its_own_configuration_says() -> None:
    check_said(None, 7, ())
    check_said(3, 3, ())
    check_said(("a", "b"), 2, ("a", "b"))
    for said, classes, names in ((3, 4, ()), (("a", "b"), 3, ("a", "b", "c")), (2, 2, ("a", "b"))):
        with pytest.raises(CoterieError, match=r"scenario\.classes says others"):
            check_said(said, classes, names)


@pytest.fixture
def running() -> Iterator[list[Command]]:
    commands: list[Command] = []
    yield commands
    for command in commands:
        command.stop()


def test_one_odd_client_does_not_widen_the_model_of_all(tmp_path: Path, running: list[Command]) -> None:
    """29 classes of one client became those of three others who have 3, and nobody was told. Real processes."""
    g = np.random.default_rng(0)
    for name, classes in (("ann", 3), ("bob", 3), ("cyd", 3), ("odd", 29)):
        labels = np.arange(58) % classes
        rows = "".join(f"{g.normal(y):.3f},{g.normal(-y):.3f},{y}\n" for y in labels)
        (tmp_path / f"{name}.csv").write_text(f"u,v,y\n{rows}")
    (tmp_path / "run.toml").write_text(
        'method = "fedavg"\nmodel = "mlp"\nrounds = 2\n[scenario]\ndata = "our clinics"\n[settings]\nlr = 0.1\n'
    )
    port = free_port()
    server = Command(
        tmp_path, "server", "serve", "--config", "run.toml", "--port", port, "--clients", 3, "--out", "run"
    )
    running.append(server)
    join = ("join", "--server", f"127.0.0.1:{port}")
    odd = Command(tmp_path, "odd", *join, "--name", "odd", "--data", "odd.csv")
    running.append(odd)
    server.says("odd is there")
    for name in ("ann", "bob", "cyd"):
        running.append(Command(tmp_path, name, *join, "--name", name, "--data", f"{name}.csv"))
    server.says("odd is not admitted: it has 29 classes, all of the others together 3")
    odd.says("you are not admitted to this run: it has 29 classes, all of the others together 3")
    server.ends()
    assert json.loads((tmp_path / "run/schema.json").read_text())["classes"] == 3
    assert json.loads((tmp_path / "run/result.json").read_text())["clients"] == 3

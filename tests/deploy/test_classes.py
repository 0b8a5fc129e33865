"""Other classes at the start of a run: its configuration decides, or most clients do, and everybody is told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coterie.core.errors import CoterieError
from coterie.deploy.fitting import unlike
from coterie.deploy.hello import Hello
from coterie.deploy.protocol import to_text
from coterie.runs import peer_terms
from coterie.runs.classes import brought_alone, check_said, common_classes, odd_classes
from coterie.runs.config import RunConfig, from_tables
from coterie.runs.serve import _FittingClients
from coterie.runs.spec import agree, alone, odd_ones
from coterie.runs.view import NotesOnly

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
    numbers, words = config(classes=29), config(classes="well, ill")
    there = told(a=3, b=3, c=3, o=29)
    assert odd_ones(numbers, there) == {}
    assert agree(numbers, there).classes == 29
    assert alone(numbers, there) == {}
    odd = odd_ones(config(classes=3), told(a=3, o=4, n=("-1", "1")))
    assert odd["o"] == "it has the label 3, the run is about 3 classes (0 to 2)"
    assert odd["n"] == "it has the label -1, the run is about 3 classes (0 to 2)"
    there = told(a=WORDS, b=("well",), o=("dead", "well"), n=3)
    odd = odd_ones(words, there)
    assert sorted(odd) == ["n", "o"]
    assert odd["o"] == "it has the label 'dead', the run is about 2 classes (ill, well)"
    assert odd["n"] == "its labels are numbers, those of the run are words"
    assert agree(words, there).class_names == ("ill", "well")
    # where all clients have words and the run numbers, nobody fits: the server says so and waits
    assert sorted(odd_ones(numbers, told(a=WORDS, b=WORDS))) == ["a", "b"]
    assert common_classes(("10", "9"), {}) == (("9", "10"), 2)


def test_a_client_with_a_label_below_the_first_is_odd_before_the_start() -> None:
    """It was admitted, counted, and refused in every round: of numbers only the highest was looked at."""
    found = odd_classes(("1", "2", "3"), {**told(a=3, o=9, p=("1", "9")), "f": replace(TOLD, classes=4, lowest=1)})
    assert found["a"] == "it has the label 0, the run is about 3 classes (1, 2, 3)"
    assert sorted(found) == ["a", "o", "p"]
    spec = agree(config(), told(a=("1", "2"), b=("1", "2")))
    assert unlike(replace(TOLD, classes=2), spec) == "it has the label 0, the run is about 2 classes (1, 2)"
    assert unlike(replace(TOLD, classes=3, lowest=1), spec) == ""
    assert "it has the label 'x'" in unlike(told(x=("x", "y"))["x"], agree(config(), told(a=WORDS, b=WORDS)))


def test_who_alone_brings_classes_is_said() -> None:
    assert brought_alone(told(a=3, b=3, o=5)) == {"o": "alone has the labels 3 to 4"}
    assert brought_alone(told(a=3, b=3, o=4)) == {"o": "alone has the label '3'"}
    assert brought_alone(told(a=3, b=3, o=("-1", "0", "1"))) == {"o": "alone has the label '-1'"}
    assert brought_alone(told(a=3, b=4, c=4)) == {}
    assert brought_alone(told(a=3)) == {}
    assert brought_alone(told(a=3, o=9)) == {"o": "alone has the labels 3 to 8"}
    assert brought_alone(told(a=WORDS, b=WORDS, o=("dead", "well"))) == {"o": "alone has the label 'dead'"}
    assert brought_alone(told(a=("x",), b=("y",), o=("z",))) == {}  # all have something of their own: skewed labels
    half = brought_alone(told(a=3, b=3, o=29, p=29))
    assert half == dict.fromkeys("op", "is one of those who alone have labels above 2")
    there = told(a=3, o=4)
    assert alone(config(), there)["o"].startswith("alone has the label '3', and every model has a class for that")


def test_what_is_odd_is_named_as_it_is() -> None:
    """A client with labels 8 and 9 was told that it has 10 classes; one with 10^18, to set 10^18 + 1 of them."""
    why = odd_classes(None, told(a=2, b=2, c=3, o=10))["o"]
    assert why == (
        "it has the label 9, those of the others go up to 2; if that is right, say classes = 10 under [scenario] where "
        "the run is configured"
    )
    assert "say classes = [all labels]" in odd_classes(None, told(a=2, b=2, c=3, o=("0", "1", "1" + "0" * 18)))["o"]


def test_a_peer_does_not_believe_in_other_classes_than_its_own_configuration_says() -> None:
    check_said(None, 7, ())
    check_said(3, 3, ())
    check_said(("a", "b"), 2, ("a", "b"))
    for said, classes, names in ((3, 4, ()), (("a", "b"), 3, ("a", "b", "c")), (2, 2, ("a", "b"))):
        with pytest.raises(CoterieError, match=r"scenario\.classes says others"):
            check_said(said, classes, names)


RUN = 'method = "fedavg"\nmodel = "mlp"\nrounds = 2\n[scenario]\ndata = "our clinics"\n[settings]\nlr = 0.1\n'


def write(folder: Path) -> None:
    """Three clients with three classes, and one with 29."""
    g = np.random.default_rng(0)
    for name, classes in (("ann", 3), ("bob", 3), ("cyd", 3), ("odd", 29)):
        rows = "".join(f"{g.normal(y):.3f},{g.normal(-y):.3f},{y}\n" for y in np.arange(58) % classes)
        (folder / f"{name}.csv").write_text(f"u,v,y\n{rows}")


def test_one_odd_client_does_not_widen_the_model_of_all(tmp_path: Path, running: list[Command]) -> None:
    """29 classes of one client became those of three others who have 3, and nobody was told. Real processes."""
    write(tmp_path)
    (tmp_path / "run.toml").write_text(RUN)
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
    server.says("odd is not admitted: it has the label 28, those of the others go up to 2")
    odd.says("you are not admitted to this run (odd: it has the label 28, those of the others go up to 2")
    server.ends()
    assert json.loads((tmp_path / "run/schema.json").read_text())["classes"] == 3
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert (result["clients"], result["failures"]) == (3, 0)
    assert "odd is not admitted: it has the label 28" in result["warnings"][0]
    assert "odd is not admitted" in (tmp_path / "run/report.html").read_text()
    assert "(3 of 3)" in server.text
    assert "(4 of 3)" not in server.text
    assert server.text.count("odd is not admitted") == 1
    assert "coterie: odd took no part in the run, since the server says: you are not admitted to this run" in odd.ends(
        2
    )


def test_one_odd_peer_does_not_part_the_others(tmp_path: Path, running: list[Command]) -> None:
    """It left when it saw that it is odd: one of the others had counted it and began alone, one never began."""
    write(tmp_path)
    (tmp_path / "run.toml").write_text(RUN.replace("fedavg", "gossip"))
    ports = {name: free_port() for name in ("ann", "bob", "odd", "cyd")}
    seeds = ",".join(f"127.0.0.1:{ports[name]}" for name in ("ann", "bob"))

    def start(name: str) -> Command:
        own = ("--name", name, "--data", f"{name}.csv", "--listen", f"127.0.0.1:{ports[name]}")
        running.append(
            Command(
                tmp_path,
                name,
                "peer",
                "--config",
                "run.toml",
                *own,
                "--seeds",
                seeds,
                "--peers",
                3,
                "--out",
                f"runs/{name}",
            )
        )
        return running[-1]

    first = [start(name) for name in ("ann", "bob", "odd")]
    assert "This peer does not fit the others: it has the label 28" in first[2].ends(2)
    for one in first[:2]:
        one.says("odd is not counted: it has the label 28")
    last = start("cyd")
    for one in (*first[:2], last):
        one.ends()
    for name in ("ann", "bob", "cyd"):
        assert json.loads((tmp_path / f"runs/{name}/schema.json").read_text())["classes"] == 3
        metrics = (tmp_path / f"runs/{name}/metrics.csv").read_text()
        assert len(metrics.splitlines()) == 3


def test_who_is_not_alone_any_more_is_told_so() -> None:
    """With a second client like it, one that was odd is taken after all, and everybody hears of both."""
    told_to: list[tuple[str, str]] = []
    notes: list[str] = []

    class Transport:
        def tell(self, client: str, text: str) -> None:
            told_to.append((client, text))

    fitting = _FittingClients(config(), Transport(), NotesOnly(notes.append))  # type: ignore[arg-type]
    assert sorted(fitting(told(a=3, b=3, o=29))) == ["a", "b"]
    assert fitting.others().startswith(" (not admitted: o, it has the label 28")
    there = told(a=3, b=3, o=29, p=29)
    assert sorted(fitting(there)) == ["a", "b", "o", "p"]
    assert fitting.others() == ""
    assert told_to[-1] == ("o", "you are admitted to this run after all")
    assert fitting.notices(there)[0].startswith(
        "o is one of those who alone have labels above 2, and every model has a class for that"
    )
    assert [client for client, _ in told_to] == ["o", "o", "o", "p"]
    assert len(notes) == 4
    for _ in range(100):  # one that comes and goes
        fitting(told(a=3, b=3, o=29))
        fitting(told(a=3, b=3, o=3))
    assert len(told_to) < 30


class Network:
    """A connection whose peers say what the test wants."""

    name = "me"

    def __init__(self, hellos: dict[str, Hello], agreements: dict[str, str] | None = None) -> None:
        self.said, self.agreements = hellos, agreements or {}

    def hellos(self, names: Sequence[str]) -> dict[str, Hello]:
        return {name: self.said[name] for name in names}

    def ask(self, what: str, names: Sequence[str]) -> dict[str, str]:
        return {name: self.agreements[name] for name in names if name in self.agreements}


def nobody_leaves(name: str, why: str) -> None:
    raise AssertionError(f"{name} leaves: {why}")


def peers() -> RunConfig:
    return from_tables({"method": "gossip", "model": "mlp", "scenario": {"data": "own"}})


def test_a_peer_that_comes_back_with_other_data_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(told(a=3, x=29))
    fitting = peer_terms.FittingPeers(peers(), network, {"me": TOLD}, print, nobody_leaves)
    assert fitting({"a", "x"}) == {"a"}
    assert fitting.notices() == [f"x is not counted: {fitting._odd['x']}"]
    network.said = told(a=3, x=3)
    monkeypatch.setattr(peer_terms, "_HELLO_SECONDS", -1.0)
    assert fitting({"a", "x"}) == {"a", "x"}
    assert fitting.notices() == []
    network.said = {**told(a=3), "x": replace(TOLD, shape=(5,))}
    assert fitting({"a", "x"}) == {"a"}
    assert fitting({"x"}) == set()
    assert "none is that of most" in fitting.others()


@pytest.mark.parametrize("word", ["nonsense", "29 classes"])
def test_one_peers_word_is_not_that_of_a_network(word: str) -> None:
    """A hostile peer says what the run is about before anybody has begun: everybody counted, or took its classes."""
    config_, there = peers(), told(a=3, b=3, evil=29)
    mine = {**told(a=3, b=3), "me": TOLD}
    text = word if word == "nonsense" else to_text(replace(agree(config_, mine), classes=29))
    network, notes = Network(there, {"evil": text}), list[str]()
    fitting = peer_terms.FittingPeers(config_, network, {"me": TOLD}, notes.append, nobody_leaves)
    assert fitting({"a", "b", "evil"}) == {"a", "b"}
    spec = peer_terms.run_specs(config_, network, {"a", "b", "evil", "me"}, {"me": TOLD}, notes.append)[0]["me"]
    assert spec.classes == 3
    assert any("not believed" in note for note in notes)
    everyone = {name: to_text(spec) for name in ("a", "b", "evil")}
    assert peer_terms.FittingPeers(config_, Network(there, everyone), {"me": TOLD}, print, nobody_leaves)(
        {"a", "b", "evil"}
    ) == {"a", "b", "evil"}


def test_who_has_other_classes_than_the_configuration_says_has_no_vote_on_the_form() -> None:
    wide = {f"w{n}": replace(TOLD, name=f"w{n}", shape=(5,), classes=10) for n in range(3)}
    there = {**told(a=3, b=3), **wide}
    odd = odd_ones(config(classes=3), there)
    assert sorted(odd) == ["w0", "w1", "w2"]
    assert odd["w0"] == "it has the label 9, the run is about 3 classes (0 to 2)"
    assert sorted(odd_ones(config(classes=3), wide)) == sorted(wide)

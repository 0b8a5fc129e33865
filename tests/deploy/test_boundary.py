"""No text, name or number from another machine gets past the boundary unless it is what it should be."""

from __future__ import annotations

import json
import random
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie.core import wire
from coterie.core.errors import CoterieError
from coterie.core.samples import Normalise
from coterie.core.terminal import harmless
from coterie.core.wire import WireError
from coterie.data.own import OwnPopulation
from coterie.deploy.boundary import (
    LONGEST_TEXT,
    blamed,
    check,
    check_name,
    checked,
    place,
    unbounded,
    whole_number,
)
from coterie.deploy.hello import Hello, pooled
from coterie.deploy.memory import DiskMemory
from coterie.deploy.presence import Presence
from coterie.deploy.protocol import Order, RunSpec, to_text
from coterie.runs.checkpoint import sealed, unsealed
from coterie.runs.config import RunConfig, from_tables
from coterie.runs.folder import RunFolder
from coterie.runs.health import Health
from coterie.runs.spec import agree, odd_ones

from ..tiny import made
from .wiring import devices, run_spec

HELLO = Hello("a", (1, 8, 8), 10, "uint8", 10, (0.5,), (0.3,))
ORDER = Order(
    RunSpec("run", "fedavg", "{}", "digits-mlp", (1, 8, 8), 10, Normalise(), "float64", 1),
    action="train",
    session="aa",
    round=0,
    era=1,
    safe=0,
    each=False,
)


def own_data() -> RunConfig:
    return from_tables({"method": "fedavg", "scenario": {"data": "clinics"}, "model": "digits-mlp"})


@pytest.mark.parametrize("kind", [Hello, Order, RunSpec])
def test_every_field_that_crosses_has_a_range(kind: type) -> None:
    """A new field without one fails here, before anybody sends it. (A normalisation has one rule for all of it.)"""
    assert [path for path in unbounded(kind) if ".normalise." not in path] == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("samples", int("9" * 400)),
        ("samples", 0),
        ("samples", -5),
        ("classes", 10**8),
        ("classes", 10**6),
        ("classes", 0),
        ("mean", []),
        ("mean", [1e300]),
        ("mean", [int("9" * 400)]),
        ("mean", [float("nan")]),
        ("mean", [-0.5]),
        ("deviation", [float("inf")]),
        ("deviation", [-1.0]),
        ("deviation", [1.01]),
        ("mean", [0.5] * 100_000),
        ("shape", []),
        ("shape", [1, 65536, 65536]),
        ("shape", [0, 8, 8]),
        ("shape", [[[8]]]),
        ("dtype", "complex128"),
        ("name", "../../etc/passwd"),
        ("name", "\x1b[2J"),
        ("name", "a\nb"),
        ("name", ""),
        ("name", "x" * 65),
    ],
)
def test_an_introduction_out_of_range_is_refused_in_one_short_line(field: str, value: Any) -> None:
    """All of them were believed, or ended the server: OverflowError, ZeroDivisionError, IndexError, 51 GB."""
    assert checked(Hello, to_text(HELLO)) == HELLO
    with pytest.raises(WireError) as caught:
        checked(Hello, json.dumps({**json.loads(to_text(HELLO)), field: value}))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


def test_a_text_is_measured_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json, "loads", lambda _: pytest.fail("parsed"))
    with pytest.raises(WireError, match="longer than the 131072 allowed"):
        checked(Hello, " " * (LONGEST_TEXT + 1))


def test_a_header_is_measured_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A header of 60 MB took 1.8 GB and 12 s to parse."""
    long = wire.encode({"a": torch.ones(1)}) + bytes(1 << 21)
    claimed = (wire.HEADER_LIMIT + 1).to_bytes(8, "little") + long[8:]
    monkeypatch.setattr(json, "loads", lambda _: pytest.fail("parsed"))
    with pytest.raises(WireError, match="more than the 1048576 that are allowed"):
        wire.layout_of(claimed)
    with pytest.raises(WireError, match="more than the 1048576 that are allowed"):
        wire.decode(claimed, dict[str, torch.Tensor])


def test_mutated_texts_are_read_or_refused() -> None:
    """2,000 mutated introductions and orders: a value within its ranges, or a WireError; nothing else comes out."""
    generator = random.Random(17)
    alphabet = '0123456789eE+-.,:[]{}"\\ntrufalsNaInity\x00\u202e'
    for kind, text in ((Hello, to_text(HELLO)), (Order, to_text(ORDER))):
        for _ in range(1000):
            letters = list(text)
            for _ in range(generator.randrange(1, 6)):
                at = generator.randrange(len(letters))
                letters[at : at + generator.randrange(3)] = generator.choices(alphabet, k=generator.randrange(4))
            try:
                check(kind, checked(kind, "".join(letters)), "again")
            except WireError:
                continue


def test_what_still_fails_is_the_failure_of_who_sent_it() -> None:
    with pytest.raises(WireError, match=r"^its reply: ZeroDivisionError: division by zero\.$"), blamed("its reply"):
        raise ZeroDivisionError("division by zero")
    with pytest.raises(KeyboardInterrupt), blamed("its reply"):
        raise KeyboardInterrupt


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "/a", "x/../../VICTIM", "a\0", "-rf", ".hidden", "é" * 40])
def test_no_name_leads_out_of_its_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(WireError):
        place(tmp_path, name)
    with pytest.raises(WireError):
        DiskMemory(tmp_path, name)
    with pytest.raises(WireError):
        DiskMemory(tmp_path, "run").keep(name, 1, {"x": torch.ones(1)}, 0)
    assert list(tmp_path.rglob("*.safetensors")) == []


@pytest.mark.parametrize("name", ["\u3164", "0\u3164", "\uff10", "a\u034fb", "\ufb01", "a\ufe0f"])
def test_names_that_cannot_be_told_apart_are_refused(name: str) -> None:
    with pytest.raises(CoterieError, match="cannot be a name"):
        check_name(name, "The name")


def test_a_server_does_not_name_a_run_as_a_file_of_the_device(digits: OwnPopulation, tmp_path: Path) -> None:
    """`questions`, `models` and `result.json` became folders, and the device could not count or save any more."""
    for run in ("questions", "models", "result.json", "memory"):
        DiskMemory(tmp_path, run).keep("session", 1, {"x": torch.ones(1)}, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["memory"]
    (tmp_path / "memory" / "models").rename(tmp_path / "earlier")
    assert DiskMemory(tmp_path, "earlier").recall("session", 2), "where older versions kept it"


def test_a_server_cannot_write_outside_a_clients_memory(digits: OwnPopulation, tmp_path: Path) -> None:
    """`run="."` and a session with `..` in it once wrote wherever the server liked."""
    device = devices(digits, tmp_path / "memory")[digits.ids[0]]
    spec = run_spec(made("scaffold"), digits)
    payload = b""
    for run, session in ((".", "x/../../../../VICTIM/model"), ("..", "aa"), ("ok", "../aa")):
        with pytest.raises(WireError, match="cannot be a name"):
            device.perform(to_text(replace(ORDER, agreement=replace(spec, run=run), session=session)), payload)
    assert not list(tmp_path.rglob("*.safetensors"))


def test_an_order_cannot_end_a_client(digits: OwnPopulation, tmp_path: Path) -> None:
    """Well-formed orders whose message, settings or round make the client's own code fail: refused, in one line."""
    device = devices(digits, tmp_path)[digits.ids[0]]
    spec = run_spec(made("fedavg"), digits)
    empty = wire.encode({"models": {}})
    for order in (
        replace(ORDER, agreement=spec, each=True),
        replace(ORDER, agreement=spec, common=("no", "such")),
        replace(ORDER, agreement=replace(spec, settings="[]")),
        replace(ORDER, agreement=replace(spec, settings='{"lr": 1e999}')),
        replace(ORDER, agreement=replace(spec, settings='{"epochs": "x"}')),
        replace(ORDER, agreement=replace(spec, normalise=Normalise((0.0,) * 7, (1.0,) * 7))),
    ):
        with pytest.raises(CoterieError) as caught:
            device.perform(to_text(order), empty)
        assert str(caught.value).isprintable()


def test_a_memory_is_private_bounded_and_under_a_digest(tmp_path: Path) -> None:
    memory = DiskMemory(tmp_path / "mine", "run")
    for era in range(1, 60):
        memory.keep("aa", era, {"x": torch.full((2,), float(era))}, 0)  # a server that never says that it is safe
    files = sorted(memory.path.iterdir())
    assert [int(file.name[:8]) for file in files] == list(range(52, 60))
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)
    assert stat.S_IMODE(memory.path.stat().st_mode) == stat.S_IMODE((tmp_path / "mine").stat().st_mode) == 0o700
    memory.keep("aa", 59, {"x": torch.zeros(2)}, 58)  # the same era again, and a checkpoint at 58
    assert [int(file.name[:8]) for file in sorted(memory.path.iterdir())] == [57, 58, 59]
    assert torch.equal(memory.recall("aa", 59)["x"], torch.zeros(2))  # type: ignore[arg-type]
    newest = max(memory.path.iterdir())
    data = bytearray(newest.read_bytes())
    data[-1] ^= 1
    newest.write_bytes(bytes(data))
    with pytest.raises(CoterieError, match="it is damaged"):
        memory.recall("aa", 59)


def test_every_flipped_bit_of_what_a_run_goes_on_from_is_noticed(tmp_path: Path) -> None:
    """All bits of a small checkpoint's latest.json: 20 of 300 flips once went unnoticed."""
    folder = RunFolder.create(tmp_path / "run", "")
    folder.checkpoint.save(
        method="m", state={"x": torch.ones(1)}, next_round=3, seconds=1.5, failures=2,
        ledger=({"train": 5}, {"train": 6}), memory={}, touched=[], health=Health(valid=1),
    )  # fmt: skip
    latest = tmp_path / "run" / "checkpoint" / "latest.json"
    whole = latest.read_bytes()
    assert folder.checkpoint.load("m", dict[str, torch.Tensor])[0].next_round == 3
    for bit in range(len(whole) * 8):
        latest.write_bytes(bytes(b ^ (1 << bit % 8) if at == bit // 8 else b for at, b in enumerate(whole)))
        try:
            read = folder.checkpoint.load("m", dict[str, torch.Tensor])[0]
        except CoterieError:
            continue
        assert sealed(read.__dict__) == whole, f"bit {bit}"  # only what means the same (1.5, 15e-1) may pass
    old = json.loads(whole)
    del old["digest"]  # a checkpoint from before there were digests
    latest.write_text(json.dumps(old))
    assert folder.checkpoint.load("m", dict[str, torch.Tensor])[0].next_round == 3
    with pytest.raises(WireError):
        unsealed(b"[]")


def test_a_finished_run_without_a_report_says_how_to_make_one(tmp_path: Path) -> None:
    from coterie.runs.folder import finished

    assert str(finished(tmp_path)).endswith(f"has no report yet; write it: coterie report {tmp_path}")
    (tmp_path / "report.html").write_text("")
    assert str(finished(tmp_path)).endswith(f"is finished; see {tmp_path / 'report.html'}.")


def test_text_for_a_terminal_is_shown_and_not_obeyed() -> None:
    assert harmless("ward 3: näher, 10 % ± 2") == "ward 3: näher, 10 % ± 2"
    assert harmless("\x1b[2Ja\nround 1/9: all fine\u202e") == "\\x1b[2Ja\\nround 1/9: all fine\\u202e"


def test_the_odd_one_at_the_start_is_left_out_and_the_majority_decides() -> None:
    """One client with another shape, floats among bytes, or a million classes: the others begin without it."""
    own = own_data()
    honest = {name: replace(HELLO, name=name) for name in ("a", "b", "c")}
    odd = {
        "shape": replace(HELLO, name="o", shape=(1, 9, 9)),
        "floats": replace(HELLO, name="o", dtype="float32"),
        "classes": replace(HELLO, name="o", classes=60_000),
    }
    alone = agree(own, honest)
    for what, hello in odd.items():
        assert list(odd_ones(own, {**honest, "o": hello})) == ["o"], what
        assert replace(agree(own, {**honest, "o": hello}), run=alone.run) == alone, what
    assert odd_ones(own, {**honest, "few": replace(HELLO, name="few", classes=2)}) == {}
    named = from_tables({"method": "fedavg", "scenario": {"name": "rotated-digits"}})
    assert list(odd_ones(named, {"a": HELLO, "o": odd["shape"]})) == ["o"]  # two forms: the scenario's size decides
    assert list(odd_ones(named, {"a": HELLO, "o": replace(HELLO, classes=11)})) == ["o"]


def test_one_client_does_not_decide_the_common_normalisation() -> None:
    """A claim of 10^9 samples counts ten medians: (0.5 * 30 + 0 * 100) / 130 for three clients of 10 samples."""
    honest = {name: replace(HELLO, name=name) for name in ("a", "b", "c")}
    liar = replace(HELLO, name="l", samples=10**9, mean=(0.0,), deviation=(0.0,))
    assert pooled({**honest, "l": liar}).mean == pytest.approx((0.5 * 30 / 130,))
    flat = {name: replace(HELLO, name=name, mean=(0.5,), deviation=(1e-4,)) for name in ("a", "b")}
    assert pooled(flat).std == (1.0,)


def test_what_a_peer_knows_of_others_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.deploy.presence._MOST_NAMES", 3)
    heard: list[str] = []
    there = Presence(["me"], heard.append)
    assert not there.claim("../x")
    assert "turned away a peer that calls itself '../x'" in heard[0]
    assert [there.claim(name) for name in ("a", "b", "c", "d")] == [True, True, True, False]
    for name in "abcd":
        there.admit(name)
    assert there.others() == {"a", "b", "c"}
    for text in (b"9" * 50 + b";1", b"x;1", b"5", b"-7;3", "²;1".encode(), b"1;" + b"9" * 40):
        there.take_progress("a", text)
    assert there.progress("me")["a"] == -1
    there.take_progress("a", b"7;2")
    there.take_progress("a", b"3;1")  # heard again
    assert there.progress("me")["a"] == 7
    assert whole_number("1_0", 0, 99) == 10

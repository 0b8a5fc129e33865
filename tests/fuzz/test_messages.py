"""Mutated messages between machines: a value, or one short error; nothing else comes out, and nothing is touched."""

from __future__ import annotations

import mmap
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import torch

from coterie.core import wire
from coterie.core.errors import CoterieError
from coterie.data.own import OwnPopulation

from . import doors, guard, learning_doors
from .door import Door
from .guard import LONGEST_ERROR, CaughtError, judged, watched

MESSAGES, PIECES, EVENTS = 600, 500, 500
ORDERS, REPLIES = 70, 30
FEWER_ORDERS, FEWER_REPLIES = 15, 6


def drive(door: Door, cases: int, folder: Path, seed: int = 17) -> int:
    """Many mutated cases of a door; the seeds themselves must be taken. How many were."""
    random, taken = Random(f"{seed} {door.name}"), 0
    with watched(folder):
        for data in door.seeds:
            assert judged(door.open, data, f"{door.name}, as it should be"), f"{door.name} refuses what is right"
        for number in range(cases):
            data = random.choice(door.seeds)
            for _ in range(random.choice((1, 1, 1, 2))):
                try:
                    data = door.mutate(random, data)
                except Exception:
                    break  # a mutation of a mutation that is none any more
            taken += judged(door.open, data, f"{door.name}, case {number} of seed {seed}")
    return taken


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The one folder that may be written to, with code in it that nobody may run."""
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "evil.py").write_text("open('../pwned', 'w')\ndef build():\n    open('../pwned', 'w')\n")
    monkeypatch.chdir(inside)
    return inside


def test_texts(place: Path) -> None:
    for door in doors.texts():
        assert drive(door, MESSAGES, place) < MESSAGES


def test_the_one_format(place: Path) -> None:
    for door in doors.messages():
        assert drive(door, MESSAGES, place) < MESSAGES


def test_orders_of_a_server(digits: OwnPopulation, place: Path) -> None:
    for door in learning_doors.clients(digits, place):
        drive(door, ORDERS if _is_old(door) else FEWER_ORDERS, place)


def test_replies_of_a_client(digits: OwnPopulation, place: Path) -> None:
    for clients in (2, 3):
        for door in learning_doors.servers(digits, place, clients):
            cases = REPLIES if _is_old(door) else FEWER_REPLIES
            assert drive(door, cases, place) == cases, "a client has ended a round"


def _is_old(door: Door) -> bool:
    return door.name.split()[1].rstrip(",") in learning_doors.OLDEST


def test_pieces_of_flower(place: Path) -> None:
    pytest.importorskip("flwr")
    for door in doors.flower():
        drive(door, PIECES, place)


def test_words_of_peers(digits: OwnPopulation, place: Path) -> None:
    pytest.importorskip("zenoh")
    for door in doors.peers(digits):
        drive(door, EVENTS, place)


def _slow(_: bytes) -> None:
    until = time.process_time() + 0.6
    while time.process_time() < until:
        pass


def _greedy(data: bytes) -> None:
    """700 MB of memory that is new to the process: what it had before, it could take without growing."""
    with mmap.mmap(-1, 700 << 20) as block:
        for page in range(0, len(block), mmap.PAGESIZE):
            block[page] = 1


def _raises(error: Exception) -> Callable[[bytes], object]:
    def fail(data: bytes) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("broken", "found"),
    [
        (_raises(KeyError("x")), "KeyError came out"),
        (_raises(RecursionError()), "RecursionError came out"),
        (_raises(CoterieError("y" * (LONGEST_ERROR + 1))), "an error of 1001 characters"),
        (_raises(CoterieError("")), "an error of 0 characters"),
        (_greedy, "MB"),
        (lambda data: Path("../outside").write_text("x"), "it touched open"),
        (lambda data: os.mkdir("../outside"), "it touched os.mkdir"),
        (lambda data: subprocess.run(["true"], check=True), "it touched subprocess.Popen"),
        (_slow, "it took 0.6"),
    ],
)
def test_a_broken_door_is_found_out(
    broken: Callable[[bytes], object], found: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What this folder looks for, each done on purpose."""
    monkeypatch.setattr(guard, "CPU_SECONDS", 0.5)
    with pytest.raises(CaughtError, match=found), watched(place):
        judged(broken, b"", "broken")


def test_a_decoder_without_its_checks_is_found_out(place: Path) -> None:
    """The same drive as above, over a decoder that lets one kind of error through."""

    def careless(data: bytes) -> object:
        try:
            return wire.decode(data, dict[str, torch.Tensor])
        except wire.WireError as error:
            if isinstance(error.__cause__, KeyError):
                raise error.__cause__ from None
            raise

    good = next(door for door in doors.messages() if door.name == "wire dict")
    with pytest.raises(CaughtError, match="KeyError came out"):
        drive(Door("careless", good.seeds, good.mutate, careless), 500, place)


def test_what_is_well_formed_is_taken(place: Path) -> None:
    with watched(place):
        assert judged(lambda data: (place / "x").write_bytes(data), b"fine", "inside")

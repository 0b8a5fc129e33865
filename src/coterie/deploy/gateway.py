"""Several clients in one process, behind one connection: each with its data, its memory, its secret and its own say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from coterie.core.errors import CoterieError
from coterie.deploy.bundle import MOST_CLIENTS, Letter, bundled, unbundled
from coterie.deploy.client import Device
from coterie.deploy.consent import Withheld


class Member(Protocol):
    """What answers at one end of a connection: a client, or several."""

    @property
    def name(self) -> str:
        """How it is called in messages to its user."""

    @property
    def outbox(self) -> Path:
        """Where a long answer lies until it has arrived."""

    def introduce(self) -> tuple[str, bytes | None]:
        """What it says of itself, as it is sent: a `Hello`, or a bundle of them."""

    def answer(self, text: str, payload: bytes, limit: int) -> tuple[str, bytes]:
        """What it answers to an order, as it is sent."""


class Gateway:
    """Clients that share a process and a connection, and nothing else.

    They work one after the other, each as it would alone: what one refuses, or cannot do, is its own failure.
    """

    def __init__(self, devices: Sequence[Device]) -> None:
        names = [device.name for device in devices]
        if len(set(names)) < len(names):
            raise CoterieError("Two clients of this gateway have the same name; give each its own.")
        if not 1 <= len(names) <= MOST_CLIENTS:
            raise CoterieError(f"A gateway has 1 to {MOST_CLIENTS} clients, not {len(names)}; start several.")
        self._devices = dict(zip(names, devices, strict=True))
        self.outbox = devices[0].outbox
        self.name = f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else names[0]

    def introduce(self) -> tuple[str, bytes | None]:
        """The introductions of all."""
        said = {name: device.introduce()[0].encode() for name, device in self._devices.items()}
        return "", bundled({name: Letter(payload=text) for name, text in said.items()})

    def answer(self, text: str, payload: bytes, limit: int) -> tuple[str, bytes]:
        """The answers of those that the order is for."""
        answers: dict[str, Letter] = {}
        room = limit
        for name, letter in unbundled(payload, limit).items():
            answers[name] = self._answer(name, text, letter, limit, room)
            room -= len(answers[name].payload or b"")
        return "", bundled(answers)

    def _answer(self, name: str, text: str, letter: Letter, limit: int, room: int) -> Letter:
        """One client's answer, or why there is none."""
        try:
            if name not in self._devices:
                raise CoterieError(f"{name} is not a client of this gateway.")
            own, answer = self._devices[name].answer(text, letter.payload or b"", limit)
        except CoterieError as error:
            return Letter(str(error), withheld=isinstance(error, Withheld))
        if len(answer) > room:
            return Letter(f"with those of the clients before it, its answer is longer than the {limit} bytes allowed")
        return Letter(own, answer)

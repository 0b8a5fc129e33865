"""What a server can order of a client, and what a client can answer: whole steps of several methods."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import coterie.methods
from coterie.core.federation import Failure, Purpose
from coterie.data.own import OwnPopulation
from coterie.deploy.client import Device
from coterie.deploy.hello import Hello
from coterie.deploy.protocol import Order, Returned, to_text
from coterie.deploy.server import RemoteFederation
from coterie.methods.auto import groups
from coterie.methods.auto.messages import Groups, SplitQuestion
from coterie.methods.base import ServerMethod

from ..deploy.wiring import run_spec, task_of
from ..tiny import made
from .door import Door
from .mutations import (
    other_numbers,
    spoilt_json,
    spoilt_wire,
)

_LOSSES = ("nan", "-inf", "1e308", "-1e308", "", "9" * 40, "no number")
_LITTLE: dict[str, dict[str, Any]] = {
    "ifca": {"k": 2},
    "fedsem": {"k": 2},
    "fedsoft": {"k": 2},
    "fedcg": {"domains": 2},
    "embedding": {"encoder_rounds": 1, "encoder_steps": 2},
    "md-icfl": {"k": 2, "steps": 2, "warm_steps": 1, "generator_steps": 2, "generator_warm_steps": 1},
}
METHODS: dict[str, dict[str, Any]] = {
    name: _LITTLE.get(name, {})
    for name, kind in coterie.methods.METHODS.items()
    if issubclass(kind, ServerMethod) and name != "oracle"  # which only the simulator has
}
"""Every method with a server."""
OLDEST = ("fedavg", "scaffold", "ifca", "fedcg", "ladd", "embedding", "md-icfl")
"""Those with a form of message each; the others are driven less long."""


class _Recorder:
    """Carries one round of a method to clients in this process, and keeps what was sent and answered."""

    def __init__(self, devices: Mapping[str, Device]) -> None:
        self.devices, self.sent = devices, list[tuple[str, bytes, bytes]]()
        self.answer: bytes | None = None

    def look(self) -> Mapping[str, Hello]:
        return {name: device.hello for name, device in self.devices.items()}

    def deliver(
        self, purpose: Purpose, order: Order, payloads: Mapping[str, bytes], **_: int
    ) -> dict[str, Returned | Failure]:
        answers: dict[str, Returned | Failure] = {}
        for name, payload in payloads.items():
            answers[name] = returned = self.devices[name].perform(to_text(order), payload)
            self.sent.append((to_text(order), payload, returned.payload))
        return answers

    def overdue(self) -> tuple[dict[str, Returned | Failure], frozenset[str]]:
        return {}, frozenset()

    def tell(self, client: str, text: str) -> None: ...

    def close(self) -> None: ...


def clients(population: OwnPopulation, folder: Path) -> list[Door]:
    """What a server can order of a client: a real order with its message, for several methods."""
    name = population.ids[0]
    doors = []
    for method, settings in METHODS.items():
        learnt = made(method, **{"epochs": 1, **settings})
        recorder = _Recorder({name: Device(name, population, folder / "recorded") for name in population.ids[:2]})
        spec = run_spec(learnt, population)
        fed = RemoteFederation(task_of(spec), spec, recorder, patience=0.0)
        state, _ = learnt.step(learnt.init(fed), fed)
        learnt.assess(state, fed, fed.ids)
        kinds = {json.loads(order)["action"]: _pair(order.encode(), payload) for order, payload, _ in recorder.sent}
        device = Device(name, population, folder / "memory" / method)
        doors.append(Door(f"client {method}", tuple(kinds.values()), _spoilt_pair, _performing(device)))
    return doors


def _performing(device: Device) -> Callable[[bytes], object]:
    def perform(data: bytes) -> bytes:
        order, payload = _unpaired(data)
        return device.perform(order.decode(errors="replace"), payload, limit=1 << 22).payload

    return perform


def _pair(first: bytes, second: bytes) -> bytes:
    return struct.pack("<I", len(first)) + first + second


def _unpaired(data: bytes) -> tuple[bytes, bytes]:
    length = int.from_bytes(data[:4], "little")
    return data[4 : 4 + length], data[4 + length :]


def _spoilt_pair(random: Random, data: bytes) -> bytes:
    order, payload = _unpaired(data)
    how = random.random()
    if how < 0.3:  # what the method is set to
        found = json.loads(order)
        settings = json.loads(found["agreement"]["settings"])
        settings[random.choice(list(settings))] = random.choice((1 << 10, 1 << 20, 10**9, -1, 0, 1, 0.5, 1e9, "x", []))
        found["agreement"]["settings"] = json.dumps(settings)
        return _pair(json.dumps(found).encode(), payload)
    if how < 0.65:
        return _pair(spoilt_json(random, order), payload)
    return _pair(order, spoilt_wire(random, payload))


def _lying(random: Random, data: bytes) -> bytes:
    """Spoilt bytes, or a well-formed reply with other numbers, another shape or another dtype."""
    return spoilt_wire(random, data) if random.random() < 0.4 else other_numbers(random, data)


class _Forger(_Recorder):
    """The same, but one client's answer to one question is replaced by a forged one."""

    def __init__(self, devices: Mapping[str, Device], whose: str) -> None:
        super().__init__(devices)
        self.whose, self.replies = whose, dict[tuple[str, bytes], bytes]()

    def deliver(
        self, purpose: Purpose, order: Order, payloads: Mapping[str, bytes], **_: int
    ) -> dict[str, Returned | Failure]:
        answers: dict[str, Returned | Failure] = {}
        for name, payload in payloads.items():
            known = (f"{name} {order.action}", payload)
            if known not in self.replies:
                self.replies[known] = self.devices[name].perform(to_text(order), payload).payload
            forged = self.answer is not None and name == self.whose
            reply = self.answer if forged and self.answer is not None else self.replies[known]
            answers[name] = Returned.of(_LOSSES[len(reply) % len(_LOSSES)] if forged else "0.5", reply)
            self.sent.append((order.action, payload, self.replies[known]))
        return answers


def _begun(learnt: Any, fed: RemoteFederation, liar: str) -> list[Any]:
    """States from which a step asks for all that the method ever asks for in training."""
    start = learnt.init(fed)
    if not isinstance(start, Groups):
        return [start]
    once, _ = learnt.step(start, fed)
    everyone = {client: number % 2 for number, client in enumerate(sorted(once.cluster))}
    unsure = {client: replace(known, unsettled=client == liar) for client, known in once.known.items()}
    asked = replace(once, question=SplitQuestion(0, everyone, {}, {}, 3.0, 0))
    return [start, asked, replace(groups.split(once, 0, everyone), known=unsure)]


def servers(population: OwnPopulation, folder: Path, clients: int) -> list[Door]:
    """What a client can answer a server: a whole step of the method, with one of so many clients lying."""
    doors = []
    for method, settings in METHODS.items():
        learnt = made(method, **{"epochs": 1, **settings})
        names = population.ids[:clients]
        forger = _Forger({name: Device(name, population, folder / method) for name in names}, names[0])
        spec = run_spec(learnt, population)
        fed = RemoteFederation(task_of(spec), spec, forger, patience=0.0)
        for number, start in enumerate(_begun(learnt, fed, names[0])):
            forger.sent.clear()
            learnt.step(start, fed)
            seeds = {action: reply for action, _, reply in forger.sent}

            def step(
                data: bytes, learnt: Any = learnt, fed: Any = fed, forger: Any = forger, start: Any = start
            ) -> None:
                fed.begin(fed.round + 300)  # a client that had broken the rules is asked again
                fed.failures.clear()
                forger.answer = data
                learnt.step(start, fed)
                forger.answer = None

            if seeds:  # local asks for nothing in a step
                doors.append(Door(f"reply {method} {number}, 1 of {clients}", tuple(seeds.values()), _lying, step))
    return doors

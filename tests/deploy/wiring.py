"""What the deployment tests share: clients in this process behind a transport that is a function call."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode

from coterie.core import wire
from coterie.core.errors import CoterieError
from coterie.core.federation import Failure, Purpose
from coterie.core.samples import ClientId
from coterie.core.task import Task
from coterie.data.own import OwnPopulation
from coterie.deploy.client import Device
from coterie.deploy.consent import Withheld
from coterie.deploy.flower.content import answer
from coterie.deploy.gateway import Member
from coterie.deploy.hello import Hello
from coterie.deploy.protocol import Order, Returned, RunSpec, settings_of, to_text
from coterie.deploy.server import RemoteFederation
from coterie.methods.base import ServerMethod

MODEL = "digits-mlp"
Answer = Callable[[ClientId, bytes], bytes | Failure]


class Here:
    """Clients in this process. `tamper` may change what they answer; `absent` ones are not there."""

    def __init__(self, devices: Mapping[ClientId, Device], tamper: Answer = lambda _, data: data) -> None:
        self.devices, self.tamper = dict(devices), tamper
        self.absent: set[ClientId] = set()
        self.payloads: list[bytes] = []
        self.told: list[tuple[ClientId, str]] = []

    def look(self) -> Mapping[ClientId, Hello]:
        return {name: device.hello for name, device in self.devices.items() if name not in self.absent}

    def deliver(
        self, purpose: Purpose, order: Order, payloads: Mapping[ClientId, bytes], **_: int
    ) -> dict[ClientId, Returned | Failure]:
        answers: dict[ClientId, Returned | Failure] = {}
        for client, payload in payloads.items():
            self.payloads.append(payload)
            try:
                honest = self.devices[client].perform(to_text(order), payload)
                changed = self.tamper(client, honest.payload)
                answers[client] = (
                    changed if isinstance(changed, Failure) else dataclasses.replace(honest, payload=changed)
                )
            except CoterieError as error:
                answers[client] = Failure("withheld" if isinstance(error, Withheld) else "crashed", str(error))
        return answers

    def overdue(self) -> tuple[dict[ClientId, Returned | Failure], frozenset[ClientId]]:
        return {}, frozenset()

    def tell(self, client: ClientId, text: str) -> None:
        self.told.append((client, text))

    def close(self) -> None: ...


class Grid:
    """Flower's grid with devices behind it, in this process."""

    def __init__(self, devices: Mapping[int, Member]) -> None:
        self.devices, self.replies = dict(devices), dict[str, Message]()
        self.withheld = dict[str, Message]()
        self.silent: set[int] = set()
        self.broken: set[int] = set()
        self.error = ErrorCode.CLIENT_APP_CRASHED

    def get_node_ids(self) -> Iterable[int]:
        return list(self.devices)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        names: list[str] = []
        for message in messages:
            node = message.metadata.dst_node_id
            name = f"{len(self.replies) + len(self.withheld)}-{node}-{len(names)}"
            message.metadata.__dict__["_message_id"] = name
            reply = answer(self.devices[node], message)
            if node in self.broken:
                reply = Message(Error(code=self.error, reason="broken"), reply_to=message)
            (self.withheld if node in self.silent else self.replies)[name] = reply
            names.append(name)
        return names

    def pull_messages(self, wanted: Iterable[str]) -> list[Message]:
        return [self.replies[name] for name in wanted if name in self.replies]


def run_spec(method: ServerMethod[Any], population: OwnPopulation, **changes: Any) -> RunSpec:
    """What the members of a test's run hold in common."""
    spec = RunSpec(
        run="test",
        method=method.name,
        settings=settings_of(method),
        model=MODEL,
        shape=tuple(population.shape),
        classes=population.classes,
        normalise=population.normalise,
        dtype="float64",
        seed=11,
    )
    return dataclasses.replace(spec, **changes)


def task_of(spec: RunSpec) -> Task:
    """The task of a run, as a client builds it."""
    return spec.build_method().task(dataclasses.replace(spec.build_task(), tests_alike=True))  # own data


def devices(population: OwnPopulation, root: Path) -> dict[ClientId, Device]:
    """Every client of a population with its memory in a folder of its own."""
    return {name: Device(name, population, root / name) for name in population.ids}


def federation(
    method: ServerMethod[Any], population: OwnPopulation, transport: Here, **options: Any
) -> RemoteFederation:
    """A federation of clients in this process."""
    spec = run_spec(method, population)
    return RemoteFederation(task_of(spec), spec, transport, **{"patience": 0.0, **options})


def poisoned(data: bytes, change: Callable[[str, torch.Tensor], torch.Tensor]) -> bytes:
    """A reply with some of its tensors changed, well-formed all the same."""
    import safetensors.torch

    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    tensors = {name: change(name, tensor) for name, tensor in safetensors.torch.load(data).items()}
    return safetensors.torch.save(tensors, metadata=header["__metadata__"])


__all__ = ["Grid", "Here", "devices", "federation", "poisoned", "run_spec", "task_of", "wire"]

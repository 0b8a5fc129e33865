"""What a method holds lies in memory as its own encoding would give it back: for every method.

The last bits of a matrix product depend on the order of rows and columns in memory and on where they begin. A state
from `torch.linalg.solve` is column by column; read from a checkpoint it is row by row, and on some processors the next
round then differs. So everything is laid out before it is used.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from coterie import run
from coterie.core import wire
from coterie.core.cohort import Memory
from coterie.core.message import Message
from coterie.data.own import OwnPopulation
from coterie.methods import METHODS
from coterie.methods.fedavg import FedAvg
from coterie.methods.p2p.base import PeerMethod
from coterie.runs.loop import RoundLoop
from coterie.runs.options import RunOptions
from coterie.simulation.faults import Faults
from coterie.simulation.simulator import EngineOptions, Simulator

from ..deploy.wiring import Here, devices, federation
from ..tiny import driven, made, small_net

EVERY = sorted(METHODS)
SERVED = [name for name in EVERY if not issubclass(METHODS[name], PeerMethod) and name != "oracle"]


def tensors(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor of an object as it lies in memory (`wire.pack` would lay it out)."""
    if isinstance(value, Tensor):
        yield path, value
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from tensors(getattr(value, field.name), f"{path}/{field.name}")
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from tensors(part, f"{path}/{key}")
    elif isinstance(value, list | tuple):
        for number, part in enumerate(value):
            yield from tensors(part, f"{path}/{number}")


def layout(value: Any) -> dict[str, tuple[tuple[int, ...], int]]:
    """Strides and alignment of every tensor."""
    return {path: (tensor.stride(), tensor.data_ptr() % 64) for path, tensor in tensors(value)}


def assert_as_decoded(value: Any, kind: Any = None) -> None:
    assert layout(value) == layout(wire.decode(wire.encode(value), kind or type(value)))


class Watch:
    """Looks at every message that a client opens, every reply a method gets and every state it begins from."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.seen = {"message": 0, "reply": 0, "state": 0}
        opened, kind = Message.open, type(driven(name))

        def open_and_look(packed: Message) -> Any:
            message = opened(packed)
            self.look("message", message)
            return message

        step = kind.step

        def look_and_step(method: Any, state: Any, fed: Any) -> Any:
            self.look("state", state)
            ask = fed.ask

            def asked(*question: Any, **how: Any) -> Any:
                replies = ask(*question, **how)
                self.look("reply", replies.value)
                return replies

            fed.ask = asked
            try:
                return step(method, state, fed)
            finally:
                del fed.ask

        monkeypatch.setattr(Message, "open", open_and_look)
        monkeypatch.setattr(kind, "step", look_and_step)

    def look(self, what: str, value: Any) -> None:
        if value is not None:
            self.seen[what] += 1
            assert_as_decoded(value)


@pytest.mark.parametrize("name", EVERY)
def test_states_messages_and_memories_lie_as_their_encoding_gives_them(
    name: str, digits: OwnPopulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, held = Watch(monkeypatch, name), dict[str, Memory]()

    class Remembering(Simulator):
        def close(self) -> None:
            held.update(self.memory)
            super().close()

    monkeypatch.setattr(import_module("coterie.runs.simulate"), "Simulator", Remembering)
    faults = Faults(joins=((1, 2.0),), nan=0.1)
    method = made(name, epochs=1)
    result = run(method, digits, small_net, rounds=2, seed=7, faults=faults, engine=EngineOptions(workers=1))
    assert watch.seen["state"] == 2
    assert watch.seen["message"] > 0
    assert_as_decoded(result.state, driven(name).state_type)
    for memory in held.values():
        assert_as_decoded(memory, Memory)


@pytest.mark.parametrize("name", SERVED)
def test_devices_open_messages_that_lie_as_the_simulators_do(
    name: str, digits: OwnPopulation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    watch = Watch(monkeypatch, name)
    method = made(name, epochs=1)
    RoundLoop(method, federation(method, digits, Here(devices(digits, tmp_path))), RunOptions(rounds=2)).run()
    assert watch.seen["state"] == 2
    assert watch.seen["message"] > 0


def turned() -> dict[str, Tensor]:
    """Tensors that do not lie as their encoding would: by columns, one value for all, unaligned, a last channel."""
    images = torch.zeros(3, 1, 4, 4).to(memory_format=torch.channels_last)
    assert images.is_contiguous()  # in both ways, which is why strides are compared
    assert images.stride() != (16, 16, 4, 1)
    return {
        "columns": torch.arange(6.0).view(2, 3).T,
        "spread": torch.arange(3.0).expand(4, 3),
        "unaligned": torch.arange(10.0)[1:],
        "images": images,
        "one row": torch.arange(20.0).view(2, 10)[1:2],
        "empty": torch.empty(0, 3),
        "number": torch.tensor(2.0),
    }


def test_laid_out_is_what_decoding_gives() -> None:
    odd = turned()
    expected = wire.decode(wire.encode(odd), dict[str, Tensor])
    assert layout(odd) != layout(expected)
    assert layout(wire.laid_out(odd)) == layout(expected)
    assert layout(wire.pack(odd)[1]) == layout(expected)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in wire.laid_out(odd).items())


def test_what_lies_well_is_not_copied() -> None:
    """Nothing moves in a round where nothing has to: the object is the same, so are the tensors of a message."""

    @dataclasses.dataclass(frozen=True)
    class Holds:
        model: dict[str, Tensor]
        rows: tuple[Tensor, ...]
        clusters: dict[str, int]

    well = Holds({"w": torch.zeros(3, 5)}, (torch.ones(2),), {"a": 1})
    assert wire.laid_out(well) is well
    mixed = dataclasses.replace(well, rows=(torch.ones(3, 2).T,))
    assert wire.laid_out(mixed).model is well.model
    assert wire.pack(well)[1]["model/w"] is well.model["w"]


def test_a_state_turned_by_a_method_is_turned_back(digits: OwnPopulation, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop over rounds hands a method its state laid out, whatever `init`, `admit` and `step` return."""
    kind = FedAvg
    starts, steps = kind.init, kind.step
    seen: list[bool] = []

    def by_columns(state: Any) -> Any:
        return dataclasses.replace(
            state, model={name: t.T.contiguous().T if t.dim() == 2 else t for name, t in state.model.items()}
        )

    def step(method: Any, state: Any, fed: Any) -> Any:
        seen.append(all(tensor.stride()[-1] == 1 for tensor in state.model.values()))
        after, log = steps(method, state, fed)
        return by_columns(after), log

    monkeypatch.setattr(kind, "init", lambda method, fed: by_columns(starts(method, fed)))
    monkeypatch.setattr(kind, "admit", lambda method, state, fed, new: by_columns(state))
    monkeypatch.setattr(kind, "step", step)
    run(made("fedavg"), digits, small_net, rounds=3, faults=Faults(joins=((1, 2.0),)))
    assert seen == [True, True, True]

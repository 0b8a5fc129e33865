"""What a server and a client on another machine tell each other beside the method's own messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import torch

from coterie import wire
from coterie.data.samples import Normalise
from coterie.errors import CoterieError
from coterie.experiment import builder_named
from coterie.methods import method_named
from coterie.methods.base import ServerMethod
from coterie.settings import from_settings
from coterie.task import Task

T = TypeVar("T")
HELLO = "hello"
DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Agreement:
    """What all members of one run hold in common; a client builds its part of the method from it and from nothing else.

    The method and the model are names that a client looks up in its own installation: no code crosses.
    """

    run: str
    method: str
    settings: str
    model: str
    shape: tuple[int, ...]
    classes: int
    normalise: Normalise
    dtype: str
    seed: int
    use_kernel: bool = True

    def build_method(self) -> ServerMethod[Any]:
        """The method with the settings of this run."""
        method = from_settings(method_named(self.method), json.loads(self.settings), self.method)
        if not isinstance(method, ServerMethod):
            raise CoterieError(f"{self.method} has no server; run it between peers: coterie peer --config ...")
        return method

    def build_task(self) -> Task:
        """What is learnt, before the method has its say in it (`ServerMethod.task`)."""
        return Task(
            builder_named(self.model, self.shape, self.classes),
            self.shape,
            self.classes,
            self.normalise,
            dtype=DTYPES[self.dtype],
            use_kernel=self.use_kernel,
        )


@dataclass(frozen=True)
class Order:
    """The envelope of a message: what to do with it, and which of its own memories a client may use.

    `era` counts what a server has concluded: 0 is the preparation, t + 1 is round t. A client keeps its memory per era,
    so that a server that died goes on with the memories of the round it goes on from. No era before `safe` will ever be
    asked for again.
    """

    agreement: Agreement
    action: str
    session: str
    round: int
    era: int
    safe: int
    each: bool
    common: tuple[str, ...] = ()


@dataclass(frozen=True)
class Hello:
    """How a client introduces itself: its name, the form of its data, and their moments per channel."""

    name: str
    shape: tuple[int, ...]
    classes: int
    dtype: str
    samples: int
    mean: tuple[float, ...]
    square: tuple[float, ...]


def to_text(value: Any) -> str:
    """Plain values as JSON."""
    return json.dumps(wire.pack(value)[0], separators=(",", ":"))


def from_text(kind: type[T], text: str) -> T:
    """JSON as the expected dataclass, every key and type checked."""
    try:
        value: T = wire.unpack(kind, json.loads(text), {})
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise wire.WireError(f"This is not a whole {kind.__name__}: {error}.") from error
    return value


def settings_of(method: Any) -> str:
    """A method's settings as the agreement carries them."""
    return json.dumps(asdict(method))


def pooled(hellos: Mapping[str, Hello]) -> Normalise:
    """How inputs become those of the model: bytes by the mean and deviation of all clients together, floats as is."""
    given = list(hellos.values())
    if any(hello.dtype != "uint8" for hello in given):
        return Normalise()
    total = sum(hello.samples for hello in given)
    mean, std = [], []
    for channel in range(len(given[0].mean)):
        middle = sum(hello.samples * hello.mean[channel] for hello in given) / total
        square = sum(hello.samples * hello.square[channel] for hello in given) / total
        deviation = max(square - middle**2, 0.0) ** 0.5
        mean.append(middle)
        std.append(deviation if deviation > 0 else 1.0)  # a constant channel stays as it is
    return Normalise(tuple(mean), tuple(std), 1 / 255)

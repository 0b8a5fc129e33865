"""What a server and a client on another machine tell each other beside the method's own messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod
from typing import Annotated, Any

import torch

from coterie.core import wire
from coterie.core.errors import CoterieError
from coterie.core.samples import Normalise
from coterie.core.settings import from_settings
from coterie.core.task import Task
from coterie.data.scaling import Moments, NormaliseName, channels
from coterie.data.scaling import pooled as common_scale
from coterie.data.schema import LONGEST_NAME, MOST_NAMES
from coterie.deploy.boundary import LATEST, Between, Length, Name, OneOf, Text, blamed
from coterie.methods import method_named
from coterie.methods.base import ServerMethod
from coterie.models.named import builder_named

HELLO = "hello"
DTYPES = {"float32": torch.float32, "float64": torch.float64}
INPUTS = ("uint8", "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "bool")
_LARGEST_INPUT = 1 << 24
_MOST_CHANNELS = 1 << 12
_LONGEST_NAMES = 20_000  # characters of all names together: every order carries them
_LARGEST_WEIGHT = 10  # of a client in the common normalisation, in medians of all
_LONGEST_LOSS = 24  # characters

Shape = Annotated[tuple[Annotated[int, Between(1, 1 << 16)], ...], Length(1, 4)]
Classes = Annotated[int, Between(1, 1 << 16)]
Moment = Annotated[int, Between(0, LATEST)]
Means = Annotated[tuple[Annotated[float, Between(-1e12, 1e12)], ...], Length(1, _MOST_CHANNELS)]
Names = Annotated[tuple[Annotated[str, Text(LONGEST_NAME)], ...], Length(0, MOST_NAMES)]
Squares = Annotated[tuple[Annotated[float, Between(0, 1e24)], ...], Length(1, _MOST_CHANNELS)]


@dataclass(frozen=True)
class _Scaled:
    """A normalisation that leaves numbers of a usable size."""

    def wrong(self, value: Normalise) -> str:
        """Too many channels, or numbers out of range."""
        if not 1 <= len(value.mean) == len(value.std) <= _MOST_CHANNELS:
            return "has not as many means as deviations"
        usable = all(abs(m) <= 1e12 for m in value.mean) and all(1e-12 <= s <= 1e12 for s in value.std)
        return "" if usable and 1e-12 <= value.scale <= 1e12 else "has means, deviations or a scale out of range"


@dataclass(frozen=True)
class RunSpec:
    """What all members of one run hold in common; a client builds its part of the method from it and from nothing else.

    The method and the model are names that a client looks up in its own installation: no code crosses.
    """

    run: Name
    method: Name
    settings: Annotated[str, Text(40_000)]
    model: Annotated[str, Text(500)]
    shape: Shape
    classes: Classes
    normalise: Annotated[Normalise, _Scaled()]
    dtype: Annotated[str, OneOf(tuple(DTYPES))]
    seed: Annotated[int, Between(0, (1 << 64) - 1)]
    use_kernel: bool = True
    class_names: Names = ()
    """The labels of all clients together, in sorted order, where they are words."""

    def wrong(self) -> str:
        """Inputs that are larger than any model takes, or another number of means than of channels or features."""
        number = channels(self.shape, torch.float32)
        if len(self.normalise.mean) not in (1, number):
            return f"inputs of shape {self.shape} have {number} channels, not {len(self.normalise.mean)}"
        if len(self.class_names) not in (0, self.classes) or len(set(self.class_names)) != len(self.class_names):
            return f"{len(self.class_names)} names are not those of {self.classes} classes"
        if _too_wordy(self.class_names):
            return _too_wordy(self.class_names)
        return _too_large(self.shape)

    def build_method(self) -> ServerMethod[Any]:
        """The method with the settings of this run."""
        with blamed("The settings of the run cannot be used"):
            settings = json.loads(self.settings)
            if not isinstance(settings, dict):
                raise wire.WireError("The settings of the run are not a table.")
            method = from_settings(method_named(self.method), settings, self.method)
        if not isinstance(method, ServerMethod):
            raise CoterieError(f"{self.method} has no server; run it between peers: coterie peer --config ...")
        return method

    def build_task(self, own_model: str = "") -> Task:
        """What is learnt, before the method has its say in it (`ServerMethod.task`).

        A model that is code (`file.py:function`, `package.module:function`) is run only if the user of this machine has
        named it, too (`own_model`): what comes from others is data.
        """
        if (":" in self.model or self.model.endswith(".py")) and self.model != own_model:
            raise CoterieError(
                f"The run trains the model {self.model}, which is code of another machine's; "
                f"have the same file here and join with --model {self.model}."
            )
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

    agreement: RunSpec  # the name that is on the wire
    action: Name
    session: Name
    round: Moment
    era: Moment
    safe: Moment
    each: bool
    common: Annotated[tuple[Annotated[str, Text(200)], ...], Length(0, 100)] = ()


@dataclass(frozen=True)
class Hello:
    """How a client introduces itself: its name, the form of its data, and their moments per channel."""

    name: Name
    shape: Shape
    classes: Classes
    dtype: Annotated[str, OneOf(INPUTS)]
    samples: Annotated[int, Between(1, 10**9)]
    mean: Means
    square: Squares
    names: Names = ()
    """Its labels, where they are words."""
    columns: Names = ()
    """The columns of its inputs, where its data are a table."""

    @property
    def inputs(self) -> str:
        """What the inputs are to the model: bytes and floats, which are brought to one scale, or token ids."""
        return {"uint8": "bytes", "int64": "token ids"}.get(self.dtype, "floats")

    @property
    def moments(self) -> Moments:
        """What it says of its inputs."""
        both = zip(self.mean, self.square, strict=True)
        return Moments(self.samples, self.mean, tuple(max(square - mean**2, 0.0) ** 0.5 for mean, square in both))

    def wrong(self) -> str:
        """What does not belong together: one mean and one mean square per channel, and squares that are possible."""
        number = channels(self.shape, torch.float32)
        if len(self.mean) not in (1, number) or len(self.square) != len(self.mean):
            return f"inputs of shape {self.shape} have {number} means and mean squares, or one"
        if self.names and len(self.names) != self.classes:
            return f"{len(self.names)} names are not those of {self.classes} classes"
        if _too_wordy((*self.names, *self.columns)):
            return _too_wordy((*self.names, *self.columns))
        if any(square < middle**2 * (1 - 1e-6) - 1e-9 for middle, square in zip(self.mean, self.square, strict=True)):
            return "a mean square cannot be below the square of the mean"
        if self.inputs == "bytes" and not all(0 <= number <= 1 for number in (*self.mean, *self.square)):
            return "the means of bytes are between 0 and 1"
        return _too_large(self.shape)


@dataclass(frozen=True)
class Returned:
    """What a client sends back: its encoded reply and, beside it, the mean loss of its training if there was one.

    The loss is only shown to those who watch the run. It cannot be checked, so nothing else depends on it.
    """

    payload: bytes
    loss: float | None = None

    @property
    def text(self) -> str:
        """The loss as it travels."""
        return "" if self.loss is None else f"{self.loss:.6g}"

    @classmethod
    def of(cls, text: str, payload: bytes) -> Returned:
        """The inverse; a text that is no number says nothing."""
        try:
            return cls(payload, float(text) if 0 < len(text) <= _LONGEST_LOSS else None)
        except ValueError:
            return cls(payload)


def _too_wordy(names: tuple[str, ...]) -> str:
    fits = sum(map(len, names)) <= _LONGEST_NAMES
    return "" if fits else f"names of classes and columns have more than {_LONGEST_NAMES} characters together"


def _too_large(shape: tuple[int, ...]) -> str:
    return "" if prod(shape) <= _LARGEST_INPUT else f"an input has at most {_LARGEST_INPUT} numbers"


def to_text(value: Any) -> str:
    """Plain values as JSON."""
    return json.dumps(wire.pack(value)[0], separators=(",", ":"))


def settings_of(method: Any) -> str:
    """A method's settings as a run spec carries them."""
    return json.dumps(asdict(method))


def pooled(hellos: Mapping[str, Hello], choice: NormaliseName = "auto") -> Normalise:
    """How all clients' inputs become those of the model: as in the simulator (`data.scaling.pooled`).

    A client counts by its number of samples, which cannot be checked: at most ten times as much as the median client.
    One that does not tell its features one by one is left out where others do.
    """
    most = max(len(hello.mean) for hello in hellos.values())
    telling = [hello for hello in hellos.values() if len(hello.mean) == most]
    first, told = telling[0], [hello.moments for hello in telling]
    return common_scale(told, choice, first.shape, getattr(torch, first.dtype), most=_LARGEST_WEIGHT)

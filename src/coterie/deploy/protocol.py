"""What a server and a client on another machine tell each other beside the method's own messages."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import torch

from coterie.core import wire
from coterie.core.errors import CoterieError
from coterie.core.metrics import chosen_metric
from coterie.core.samples import Normalise, Samples
from coterie.core.settings import from_settings
from coterie.core.targets import KINDS, TargetScale, TaskKind
from coterie.core.task import Task
from coterie.core.user_code import is_code, loaded_if_code
from coterie.data.agreed import Terms
from coterie.data.scaling import channels
from coterie.deploy.boundary import LATEST, Between, Length, Name, OneOf, PlainLine, blamed
from coterie.deploy.hello import (
    MOST_CHANNELS,
    Classes,
    ColumnsTold,
    Names,
    Shape,
    TargetMeans,
    TargetSpreads,
    too_large,
    wrong_columns,
)
from coterie.methods import method_named
from coterie.methods.base import ServerMethod
from coterie.models.named import builder_named

HELLO = "hello"
NOT_ADMITTED, ADMITTED = "you are not admitted to this run", "you are admitted to this run after all"
"""How what a server tells a client begins where it is left out, and what it tells one that it then takes in."""
DTYPES = {"float32": torch.float32, "float64": torch.float64}
_LONGEST_LOSS = 24  # characters

Moment = Annotated[int, Between(0, LATEST)]
Code = Annotated[str, PlainLine(500)]


@dataclass(frozen=True)
class _Scaled:
    """A normalisation that leaves numbers of a usable size."""

    def wrong(self, value: Normalise) -> str:
        """Too many channels, or numbers out of range."""
        if not 1 <= len(value.mean) == len(value.std) <= MOST_CHANNELS:
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
    settings: Annotated[str, PlainLine(40_000)]
    model: Annotated[str, PlainLine(500)]
    shape: Shape
    classes: Classes
    normalise: Annotated[Normalise, _Scaled()]
    dtype: Annotated[str, OneOf(tuple(DTYPES))]
    seed: Annotated[int, Between(0, (1 << 64) - 1)]
    use_kernel: bool = True
    class_names: Names = ()
    """The labels of all clients together, in sorted order, where they are words."""
    columns: ColumnsTold = ()
    """The columns of all clients' tables together, in the order of the inputs."""
    tokens: bool = False
    """Whether the inputs are token ids."""
    task: Annotated[str, OneOf(("", *KINDS))] = ""
    """What is learnt; of an older run, classes."""
    target_mean: TargetMeans = ()
    target_std: TargetSpreads = ()
    """The common scale of targets that are numbers."""
    loss: Code = "auto"
    metric: Code = "auto"

    @property
    def kind(self) -> TaskKind:
        """What is learnt."""
        kinds: dict[str, TaskKind] = {kind: kind for kind in KINDS}
        return kinds.get(self.task, "binary" if self.classes == 2 else "classification")

    @property
    def terms(self) -> Terms:
        """How clients read their data."""
        return Terms(self.kind, self.classes, self.class_names, tuple(told.column for told in self.columns))

    @property
    def target_scale(self) -> TargetScale | None:
        """The scale of targets that are numbers, where there is one."""
        return TargetScale(self.target_mean, self.target_std) if self.target_mean else None

    def wrong(self) -> str:
        """Inputs that are larger than any model takes, or another number of means than of channels or features."""
        number = channels(self.shape, torch.float32)
        if len(self.normalise.mean) not in (1, number):
            return f"inputs of shape {self.shape} have {number} channels, not {len(self.normalise.mean)}"
        if len(self.class_names) not in (0, self.classes) or len(set(self.class_names)) != len(self.class_names):
            return f"{len(self.class_names)} names are not those of {self.classes} classes"
        if not len(self.target_mean) == len(self.target_std) <= self.classes or 0.0 in self.target_std:
            return "the scale of the targets is none"
        return wrong_columns(self.columns, self.shape, self.class_names) or too_large(self.shape)

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

    def build_task(self, *own: str) -> Task:
        """What is learnt, before the method has its say in it (`ServerMethod.task`).

        A model, a loss or a metric that is code (`file.py:function`, `package.module:function`) is run only if the user
        of this machine has named it, too (`own`): what comes from others is data.
        """
        for what, option in (("model", "--model "), ("loss", "--set loss="), ("metric", "--set metric=")):
            named = getattr(self, what)
            if is_code(named) and named not in own:
                raise CoterieError(
                    f"The run has the {what} {named}, which is code of another machine's; "
                    f"have the same file here and join with {option}{named}."
                )
        made = Task(
            builder_named(self.model, self.shape, self.classes),
            self.shape,
            self.classes,
            self.normalise,
            dtype=DTYPES[self.dtype],
            use_kernel=self.use_kernel,
            kind=self.kind,
            target_scale=self.target_scale,
            metric=None if self.metric == "auto" else chosen_metric(loaded_if_code(self.metric, "metric"), self.kind),
        )
        x = torch.zeros(2, *self.shape, dtype=torch.int64 if self.tokens else torch.float32)
        y = torch.zeros(2, *((self.classes,) if self.kind == "multilabel" or self.classes > 1 else ()))
        whole = self.kind in ("classification", "binary")
        return made.settled(loaded_if_code(self.loss, "loss"), Samples(x, torch.zeros(2).long() if whole else y))


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
    common: Annotated[tuple[Annotated[str, PlainLine(200)], ...], Length(0, 100)] = ()


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
        """The inverse; a text that is not a number says nothing."""
        try:
            return cls(payload, float(text) if 0 < len(text) <= _LONGEST_LOSS else None)
        except ValueError:
            return cls(payload)


def to_text(value: Any) -> str:
    """Plain values as JSON."""
    return json.dumps(wire.pack(value)[0], separators=(",", ":"))


def settings_of(method: Any) -> str:
    """A method's settings as a run spec carries them."""
    return json.dumps(asdict(method))

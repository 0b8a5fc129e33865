"""One client on its own machine: its data, its memory on its own disk, and the client functions it is asked to run."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from coterie.core import wire
from coterie.core.errors import CoterieError
from coterie.core.federation import SCORES
from coterie.core.jobs import Job, Outcome, Setting, client_function, cohort_of, perform
from coterie.core.message import Message
from coterie.core.samples import ClientData, ClientId, Population, kind_of
from coterie.core.states import State, row
from coterie.core.task import Task
from coterie.core.terminal import shortly
from coterie.core.threads import one_thread
from coterie.data.agreed import agreed
from coterie.data.scaling import InputMoments, moments
from coterie.data.schema import MOST_NAMES, schema_of
from coterie.deploy.boundary import blamed, check_name, checked
from coterie.deploy.consent import Consent
from coterie.deploy.hello import Hello, short, told_column
from coterie.deploy.memory import DiskMemory
from coterie.deploy.protocol import Order, Returned, RunSpec, to_text
from coterie.methods.base import Models, RoundMethod
from coterie.methods.how_many import in_rounds
from coterie.methods.served import Examination

MOST_EPOCHS = 1000
_STEPS_PER_EPOCH = 100
_LARGEST_SETTING = 1 << 16


def check_work(method: Any, most_epochs: int) -> None:
    """Refuse settings with which one order would keep this machine busy for ever, or fill its memory.

    A server chooses how much its clients work. What counts passes over a client's data is bounded by `most_epochs`,
    what counts single steps by a hundred times as many, and any other whole number by `_LARGEST_SETTING`.
    """
    for field in dataclasses.fields(method):
        value = getattr(method, field.name)
        if not isinstance(value, int) or isinstance(value, bool):
            continue
        if field.name.endswith("epochs"):
            most, how = most_epochs, f"join with --most-epochs {shortly(value)} if that is meant"
        elif field.name.endswith("steps"):
            most, how = most_epochs * _STEPS_PER_EPOCH, "join with a larger --most-epochs if that is meant"
        else:
            most, how = _LARGEST_SETTING, "ask who runs the server"
        if value > most:
            raise CoterieError(
                f"The run sets {field.name} = {shortly(value)}, more than the {most} that this client accepts; {how}."
            )


@dataclasses.dataclass(frozen=True)
class AtEnd:
    """What a client has when a run is judged for the last time: its model, and how it does."""

    name: ClientId
    spec: RunSpec
    round: int
    setting: Setting
    model: State
    examined: Examination


class Device:
    """A client. What it answers depends on the order, its data and its memory, never on which process answers."""

    def __init__(
        self,
        name: ClientId,
        data: Population,
        memory: Path,
        model: str = "",
        *,
        code: Sequence[str] = (),
        at_end: Callable[[AtEnd], None] | None = None,
        most_epochs: int = MOST_EPOCHS,
        secret: str | None = None,
        consent: Consent | None = None,
    ) -> None:
        self.name = check_name(name, "--name")
        self._data, self._root, self._most_epochs = data, memory, most_epochs
        self._own, self._at_end = (model, *code), at_end
        self._secret, self._consent = secret, consent or Consent()
        self._settings: dict[RunSpec, Setting] = {}
        self.outbox = memory / "outbox"
        """Where a long answer lies until it has arrived."""

    @cached_property
    def hello(self) -> Hello:
        """The introduction: nothing but names, sizes and moments of the training inputs, and of targets that are
        numbers.
        """
        train, schema, kind = self._data.client(self.name).train, schema_of(self._data), kind_of(self._data)
        by_feature = train.x.dim() == 4 or self._consent.tells("features")
        told = moments(train.x if by_feature else train.x.reshape(-1, 1))
        columns = schema.columns if len(schema.columns) <= MOST_NAMES else ()
        tells = kind == "regression" and self._consent.tells("labels")
        targets = moments(train.y.double().reshape(len(train), -1)) if tells else InputMoments(0, (), ())
        return Hello(
            name=self.name,
            shape=tuple(self._data.shape),
            classes=self._data.classes,
            dtype=str(train.x.dtype).removeprefix("torch."),
            samples=len(train),
            mean=tuple(map(short, told.mean)),
            deviation=tuple(map(short, told.deviation)),
            names=schema.class_names,
            columns=tuple(told_column(column, words=by_feature) for column in columns),
            task="classification" if kind == "binary" else kind,
            lowest=_lowest(self._data.client(self.name)) if kind in ("classification", "binary") else 0,
            target_mean=targets.mean,
            target_deviation=targets.deviation,
        )

    def introduce(self) -> tuple[str, bytes | None]:
        """What it says of itself, as it is sent."""
        return to_text(self.hello), None

    def answer(self, text: str, payload: bytes, limit: int) -> tuple[str, bytes]:
        """What it answers to an order, as it is sent."""
        returned = self.perform(text, payload, limit=limit)
        return returned.text, returned.payload

    def perform(self, text: str, payload: bytes, *, limit: int = wire.DEFAULT_LIMIT) -> Returned:
        """Run the client function that an order names on its message, keep what it keeps, and encode the reply.

        Whatever goes wrong is a `CoterieError`: an order cannot end the process that it was sent to.
        """
        order = _order(text)
        with blamed(f"The order {order.action!r} failed here"):
            return self._performed(order, payload, limit)

    def _performed(self, order: Order, payload: bytes, limit: int) -> Returned:
        setting = self._setting(order.agreement)
        function = client_function(setting.method, order.action)
        self._consent.check(function, self._root)
        message = Message.read(payload, message_type(function), order.common, limit=limit)
        memory = DiskMemory(self._root, order.agreement.run)
        recalled = memory.recall(order.session, order.era)
        job = Job(order.action, order.round, (self.name,), None, (recalled,))
        outcome = perform(setting, job, message.with_axis() if order.each else message)
        if outcome.kept:
            memory.keep(order.session, order.era, {**recalled, **outcome.kept_by(0)}, order.safe)
        if function.__name__ == RoundMethod.judge_fully.__name__ and self._at_end is not None:
            with suppress(CoterieError):  # what it writes for itself is no reason not to answer
                self._at_end(self._ended(order, setting, job, outcome, message))
        loss = outcome.losses.get(self.name) if self._consent.tells(SCORES) else None
        return Returned(outcome.reply.row(0).encode(), loss)

    def _ended(self, order: Order, setting: Setting, job: Job, outcome: Outcome, message: Message) -> AtEnd:
        """What this client has once a run is over."""
        model, method = outcome.kept_by(0).get("personal"), client_function(setting.method, order.action).__self__
        cohort = cohort_of(setting, job, method)
        if not isinstance(model, dict):
            sent = message.with_axis() if order.each else message
            with one_thread():
                model = row(method.served(cohort, sent.open()).models, 0)
        setting = dataclasses.replace(setting, method=method, task=cohort.task)  # as of the part that was asked
        return AtEnd(self.name, order.agreement, order.round, setting, model, outcome.reply.open())

    def _setting(self, spec: RunSpec) -> Setting:
        if spec not in self._settings:
            self._settings = {spec: self._understood(spec)}
        return self._settings[spec]

    def _understood(self, spec: RunSpec) -> Setting:
        data = agreed(self._data, spec.terms)
        if spec.shape != tuple(data.shape):
            raise CoterieError(f"The run is about inputs of shape {spec.shape}, not {tuple(data.shape)}.")
        method, task = _learnt(spec, self._own, self._most_epochs)
        consent = self._consent
        return Setting(method, task, data, spec.seed, self._secret, consent.least_flip, consent.least_noise)


def _lowest(data: ClientData) -> int:
    """The lowest label of a client in any of its parts."""
    return min(int(part.y.min()) for part in (data.train, data.test, data.valid) if part is not None and len(part))


@lru_cache(maxsize=1)
def _order(text: str) -> Order:
    """The order in a text; the clients of a gateway are sent the same."""
    return checked(Order, text)


@lru_cache(maxsize=1)
def _learnt(spec: RunSpec, own: tuple[str, ...], most_epochs: int) -> tuple[RoundMethod[Any], Task]:
    """The method and the task of a run, which all clients of this process share."""
    settings = spec.build_method()
    check_work(settings, most_epochs)
    method = in_rounds(settings)
    return method, method.task(spec.build_task(*own))


def message_type(function: Any) -> Any:
    """The type of the message that a client function takes: that of its last parameter."""
    kind = _last_hint(function)
    if kind is not Any:
        return kind
    # every method is judged by the same functions, which take what its own `uses` takes: models, if it says nothing
    used = _last_hint(function.__self__.uses)
    return Models if used is Any else used


def _last_hint(function: Any) -> Any:
    hints = typing.get_type_hints(function)
    hints.pop("return")
    return list(hints.values())[-1]


def reply_type(function: Any) -> Any:
    """The type that a client function returns."""
    return typing.get_type_hints(function)["return"]

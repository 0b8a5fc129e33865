"""One client on its own machine: its data, its memory on its own disk, and the client functions it is asked to run."""

from __future__ import annotations

import dataclasses
import typing
from functools import cached_property
from pathlib import Path
from typing import Any

from coterie.core import wire
from coterie.core.errors import CoterieError
from coterie.core.federation import SCORES
from coterie.core.jobs import (
    Job,
    Setting,
    perform,
)
from coterie.core.message import Message
from coterie.core.samples import ClientId, Population, kind_of
from coterie.core.terminal import shortly
from coterie.data.own import agreed_labels
from coterie.data.scaling import moments
from coterie.data.schema import MOST_NAMES, schema_of
from coterie.deploy.boundary import blamed, check_name, checked
from coterie.deploy.consent import Consent
from coterie.deploy.memory import DiskMemory
from coterie.deploy.protocol import Hello, Order, Returned, RunSpec
from coterie.methods.base import Models

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


class Device:
    """A client. What it answers depends on the order, its data and its memory, never on which process answers."""

    def __init__(
        self,
        name: ClientId,
        data: Population,
        memory: Path,
        model: str = "",
        *,
        most_epochs: int = MOST_EPOCHS,
        secret: str | None = None,
        consent: Consent | None = None,
    ) -> None:
        self.name = check_name(name, "--name")
        if kind_of(data) in ("multilabel", "regression"):
            raise CoterieError(
                f"The targets are those of {kind_of(data)}; between machines only classes are learnt in this version: "
                "give integers from 0 up, or run it in the simulator (coterie run)."
            )
        self._data, self._root, self._model, self._most_epochs = data, memory, model, most_epochs
        self._secret, self._consent = secret, consent or Consent()
        self._settings: dict[RunSpec, Setting] = {}

    @cached_property
    def hello(self) -> Hello:
        """The introduction: nothing but names, sizes and moments of the training inputs."""
        train, schema = self._data.client(self.name).train, schema_of(self._data)
        by_feature = train.x.dim() == 4 or self._consent.tells("features")
        told = moments(train.x if by_feature else train.x.reshape(-1, 1))
        columns = tuple(column.name for column in schema.columns)
        return Hello(
            name=self.name,
            shape=tuple(self._data.shape),
            classes=self._data.classes,
            dtype=str(train.x.dtype).removeprefix("torch."),
            samples=len(train),
            mean=tuple(map(_short, told.mean)),
            square=tuple(_short(m**2 + d**2) for m, d in zip(told.mean, told.deviation, strict=True)),
            names=schema.class_names,
            columns=columns if len(columns) <= MOST_NAMES else (),
        )

    def perform(self, text: str, payload: bytes, *, limit: int = wire.DEFAULT_LIMIT) -> Returned:
        """Run the client function that an order names on its message, keep what it keeps, and encode the reply.

        Whatever goes wrong is a `CoterieError`: an order cannot end the process that it was sent to.
        """
        order = checked(Order, text)
        with blamed(f"The order {order.action!r} failed here"):
            return self._performed(order, payload, limit)

    def _performed(self, order: Order, payload: bytes, limit: int) -> Returned:
        setting = self._setting(order.agreement)
        function = getattr(setting.method, order.action, None)
        if function is None or not getattr(function, "on_client", False):
            raise CoterieError(f"{setting.method.name} has no client function {order.action!r}.")
        self._consent.check(function, self._root)
        message = Message.read(payload, message_type(function), order.common, limit=limit)
        memory = DiskMemory(self._root, order.agreement.run)
        recalled = memory.recall(order.session, order.era)
        job = Job(order.action, order.round, (self.name,), None, (recalled,))
        outcome = perform(setting, job, message.with_axis() if order.each else message)
        if outcome.kept:
            memory.keep(order.session, order.era, {**recalled, **outcome.kept_by(0)}, order.safe)
        loss = outcome.losses.get(self.name) if self._consent.tells(SCORES) else None
        return Returned(outcome.reply.row(0).encode(), loss)

    def _setting(self, spec: RunSpec) -> Setting:
        if spec not in self._settings:
            self._settings = {spec: self._understood(spec)}
        return self._settings[spec]

    def _understood(self, spec: RunSpec) -> Setting:
        if spec.shape != tuple(self._data.shape):
            raise CoterieError(f"The run is about inputs of shape {spec.shape}, not {tuple(self._data.shape)}.")
        method = spec.build_method()
        check_work(method, self._most_epochs)
        task = method.task(spec.build_task(self._model))
        return Setting(
            method,
            task,
            agreed_labels(self._data, spec.class_names),
            spec.seed,
            self._secret,
            self._consent.least_flip,
            self._consent.least_noise,
        )


def _short(number: float) -> float:
    """A number with as many digits as matter: of a thousand features all are sent."""
    return float(f"{number:.12g}")


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

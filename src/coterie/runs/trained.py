"""A run that is over, in use: its models, its predictions, and newcomers that it takes in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote as percent_encoded

import numpy.typing as npt
import torch
from torch import nn

from coterie.core.errors import CoterieError, unknown
from coterie.core.losses import LossChoice, LossFn
from coterie.core.samples import ClientData, ClientId
from coterie.core.settings import from_settings
from coterie.core.targets import TaskKind, chosen_kind
from coterie.core.task import Task
from coterie.data import SCENARIOS
from coterie.data.new_samples import new_samples
from coterie.data.own import OwnPopulation
from coterie.data.schema import Schema, read_schema
from coterie.methods import Method, chosen_method
from coterie.methods.base import RoundMethod
from coterie.methods.p2p.simulation import in_simulator
from coterie.models.named import builder_named
from coterie.runs.config import from_tables, read_tables
from coterie.runs.experiment import defaults_of
from coterie.runs.folder import RunFolder, RunKind, holds_comparison, home_of
from coterie.runs.newcomer import Newcomer, group_of
from coterie.runs.options import dtype_named
from coterie.runs.predictions import Predictor
from coterie.runs.records import CONFIG_FILE, Row
from coterie.runs.result import Result
from coterie.runs.saved import ReadyModel, filled, load_model
from coterie.simulation.simulator import EngineOptions, Simulator

Builder = nn.Module | Callable[[], nn.Module]
_NEWCOMER = "newcomer"
_OF_ONE = (RunKind.PEER, RunKind.CLIENT)
_OF_SEVERAL = (RunKind.NETWORK, RunKind.HOST)


def load(
    path: Path | str, model: Builder | None = None, *, method: Method | None = None, loss: LossChoice | LossFn = "auto"
) -> TrainedRun:
    """A finished run, ready for use, from its folder.

    A run of the command line says itself which network it has. One that was begun in Python must be given it again:
    `model` builds the network, or is one; `method` is needed for a method of one's own, and `loss` for a loss of one's
    own, if newcomers are to be admitted.
    """
    folder = Path(path)
    if folder.is_dir() and holds_comparison(folder):
        names = sorted(file.parent.name for file in folder.glob("*/result.json"))
        raise CoterieError(f"{folder} holds a comparison; name one of its runs: {', '.join(names) or 'none is over'}.")
    return TrainedRun(RunFolder.of_finished(folder), model, method, loss)


class TrainedRun:
    """The folder of a finished run: who is in which group, the clients' models, and what they predict."""

    def __init__(self, folder: RunFolder, model: Builder | None, method: Method | None, loss: Any) -> None:
        self._folder, self._model, self._given, self._loss = folder, model, method, loss
        self.path = folder.path

    @cached_property
    def result(self) -> Result:
        """How the run ended."""
        return Result.of(self._folder.result)

    @property
    def history(self) -> Sequence[Row]:
        """The metrics of every round, as in metrics.csv."""
        return self._folder.metrics

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """The clients that were evaluated at the end."""
        return tuple(self.result.client_ids)

    @cached_property
    def groups(self) -> dict[ClientId, int]:
        """The group of every client that has one."""
        found = self.result.clusters or []
        known = {client: group for client, group in zip(self.clients, found, strict=False) if group >= 0}
        if self.result.clients > len(self.clients) and found:  # there were more clients than were evaluated
            known = {**getattr(self._state, "cluster", {}), **known}
        return known

    @cached_property
    def schema(self) -> Schema:
        """How the clients' data were read."""
        return read_schema(self.path if self._folder.kind not in _OF_SEVERAL else self._peer(self.clients[0]).path)

    def model(self, client: ClientId) -> ReadyModel:
        """The trained network that a client uses; it takes inputs as the client has them."""
        self._check(client)
        if self._folder.kind in _OF_SEVERAL:
            return self._peer(client).model(client)
        method, group, own = self._method, self.groups.get(client), self._own_file(client)
        if own is None:
            form, state = self._form, method.model_of(self._state, client, group)
            network = filled(self._network, state, f"the model of {client}").to(self._dtype)
            ready = ReadyModel(network, form.normalise, form.target_scale)
        else:
            ready = load_model(own, self._network)
        if type(method).ready is not RoundMethod.ready:
            ready.network = method.ready(ready.network, self._state, group, self.result.seed)
        return ready.eval()

    def _peer(self, client: ClientId) -> TrainedRun:
        """The run of one peer of a network, in the network's folder."""
        return load(home_of(self.path, client), self._model, method=self._given, loss=self._loss)

    def predict(self, client: ClientId, x: Any) -> npt.NDArray[Any]:
        """What a client's model says of inputs as the client has them: class names, or numbers in its units.

        `x` is an array or a tensor, a DataFrame with the columns of the client's table, or the path of a file.
        """
        return self.predictor(client)(x)

    def predictor(self, client: ClientId) -> Predictor:
        """The same as an object that reads the model once."""
        return Predictor(self.model(client), self.schema, self.kind, client)

    def admit(self, x: Any, y: Any = None, *, name: ClientId = _NEWCOMER) -> Newcomer:
        """Take in a client that was not there: it finds its group as the method says, and nothing is trained again.

        Its data serve to find the group (and, where clients keep a part of the model, to fit that part). The folder
        stays as it is. `x` may be a table or a file that has the targets as well.
        """
        if self._folder.kind in _OF_ONE:
            raise CoterieError(f"{self.path} has the model of {self.clients[0]} alone; admit newcomers to a whole run.")
        method = self._method
        if not method.serves_newcomers:
            raise CoterieError(
                f"{method.name} has no model for a client that did not take part; admit it to a run of another method, "
                "such as fedavg or ifca, or run again with it."
            )
        if name in self.groups or name in self.clients:
            raise CoterieError(f"{name} took part in the run in {self.path}; see run.groups, or choose another name.")
        samples = new_samples(x, y, self.schema, self.kind, name)
        population = OwnPopulation(
            {name: ClientData(samples, samples)},
            self.schema.shape,
            self.schema.classes,
            self._form.normalise,
            kind=self.kind,
            target_scale=self._form.target_scale,
        )
        plain = Task.of(self._build, population, task=self.kind, loss=self._minimised, dtype=self._dtype)
        task = method.task(plain)
        fed = Simulator(method, task, population, seed=self.result.seed, options=EngineOptions(workers=1))
        with closing(fed):
            fed.round = self.result.rounds
            # a method may let newcomers wait for a round that never comes here
            state = method.placed(method.admit(self._state, fed, [name]), fed, [name])
            fed.commit()
            group = group_of(method, state, fed, name)
            own = method.personal_models(state, fed.memory).get(name)
            model = method.model_of(state, name, group) if own is None else own
        learnt = self._trained_task(plain, lambda: state)
        network = method.ready(
            filled(learnt.model, model, f"the model for {name}").to(self._dtype), state, group, self.result.seed
        )
        ready = ReadyModel(network, task.normalise, task.target_scale).eval()
        found = None if group is None else len({group, *self.groups.values()})
        return Newcomer(group, ready, Predictor(ready, self.schema, self.kind, name), found, own is not None)

    @cached_property
    def kind(self) -> TaskKind:
        """What is predicted: classes, one of two classes, several labels, or numbers."""
        schema = self.schema
        found: Any = schema.task or ("binary" if schema.classes == 2 else "classification")
        options: Any = self._tables.get("task", "auto")
        return chosen_kind(options, found, schema.classes, squares=self._minimised == "mse")

    @property
    def _minimised(self) -> Any:
        """The loss of the run: as given now, or as its configuration names it."""
        given = isinstance(self._loss, str) and self._loss == "auto"
        return str(self._tables.get("loss", "auto")) if given else self._loss

    @cached_property
    def _tables(self) -> dict[str, Any]:
        return read_tables(self.path / CONFIG_FILE)

    @property
    def _dtype(self) -> torch.dtype:
        return dtype_named(str(self._tables.get("dtype", "float32")))

    @cached_property
    def _method(self) -> RoundMethod[Any]:
        if self._given is not None:
            return in_simulator(self._given)
        if not self._folder.from_python:
            config = from_tables(self._tables)
            return in_simulator(config.build_method(defaults_of(config)))
        name = str(self._tables.get("method"))
        try:
            kind = chosen_method(name)
        except CoterieError as error:
            raise CoterieError(
                f"The method {name} of the run in {self.path} was given in Python; pass it: "
                "coterie.load(path, method=...)."
            ) from error
        return in_simulator(from_settings(kind, self._tables.get("settings", {}), name))

    @cached_property
    def _build(self) -> Builder:
        """What builds the plain network."""
        if self._model is not None:
            return self._model
        name = self._tables.get("model", "")
        if self._folder.from_python and not name:
            raise CoterieError(
                f"The network of the run in {self.path} was given in Python; pass the function that builds it: "
                "coterie.load(path, model=build), or --model file.py:build on the command line."
            )
        scenario = self._tables.get("scenario", {})
        if not name and "data" not in scenario:
            name = SCENARIOS[scenario.get("name", "rotated-digits")].model
        return builder_named(str(name), self.schema.shape, self.schema.classes)

    @cached_property
    def _network(self) -> Builder:
        """What builds the network as the method trains it."""
        task = Task(self._build, self.schema.shape, self.schema.classes, dtype=self._dtype)
        return self._trained_task(task, lambda: self._state).model

    def _trained_task(self, task: Task, state: Callable[[], Any]) -> Task:
        """The task as the method trained it in the end."""
        method = self._method
        fixed = type(method).task_in is RoundMethod.task_in  # for most methods: no state need be read
        if fixed or self._folder.kind is RunKind.CLIENT:  # a client has no state of it
            return method.task(task)
        return method.task_in(state(), method.task(task))

    @cached_property
    def _state(self) -> Any:
        """The method's state at the end."""
        return self._folder.checkpoint.state(self._method.name, self._method.state_type)

    @cached_property
    def _form(self) -> ReadyModel:
        """Any of the run's models, for the normalisation and the scale, which are all of theirs."""
        files = self._files()
        known = next((file for file in files if file.stem != "student"), None)
        if known is None:
            raise CoterieError(f"{self.path} holds no models; run it again into a new folder.")
        return load_model(known, self._network)

    def _files(self) -> list[Path]:
        return sorted((self.path / "models").glob("*.safetensors"))

    def _own_file(self, client: ClientId) -> Path | None:
        """The file of a model that is this client's alone; None where it uses one that the server has."""
        file = self.path / "models" / f"{percent_encoded(f'client-{client}', safe='')}.safetensors"
        if file.is_file():
            return file
        if self._folder.kind is RunKind.SERVED and self._method.keeps_models:
            raise CoterieError(
                f"The model of client {client} is on its own device and not in {self.path}; the server never had it."
            )
        return None

    def _check(self, client: ClientId) -> None:
        """Refuse a client that the run did not have; of more than were evaluated not all names are known."""
        if client in self.clients or client in self.groups or self.result.clients > len(self.clients):
            return
        raise unknown("client", str(client), self.clients)

    def __repr__(self) -> str:
        return f"<run in {self.path}: {self.result}>"

    def _repr_html_(self) -> str:
        return self.result._repr_html_()

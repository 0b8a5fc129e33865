"""What methods share whose clients send a part of their models and keep the rest."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from torch import Tensor, nn

from coterie.core.aggregate import combined_one
from coterie.core.cohort import Cohort, Memory
from coterie.core.errors import CoterieError
from coterie.core.federation import Federation, on_client
from coterie.core.samples import ClientId
from coterie.core.states import Stack, State, spread
from coterie.core.task import Task
from coterie.core.training import local_sgd
from coterie.methods.base import Log, Models
from coterie.methods.fedavg import Global
from coterie.methods.local import Done
from coterie.methods.personal import PersonalMethod


@dataclass(frozen=True)
class TrainedPart:
    """The entries that a client shares, after its training, and how many samples it has."""

    models: Stack
    size: Tensor

    @property
    def model(self) -> Stack:
        """The same entries: named as in the question, a reply is checked against what was sent."""
        return self.models


@dataclass(frozen=True)
class KeepsPart(PersonalMethod):
    """Clients keep some entries of the model for themselves and share the others; subclasses say which."""

    @abstractmethod
    def kept(self, task: Task) -> Collection[str]:
        """The names of the entries that stay with the client."""

    def step(self, state: Global, fed: Federation) -> tuple[Global, Log]:
        """Send what is shared to the sampled clients, average what comes back."""
        shared = self.shared(fed.task, state.model)
        replies = fed.ask(self.train_part, fed.sample(self.fraction), same=Models(shared))
        replies = self.usable(fed, replies, spread(shared, len(replies.ids)))
        if replies.value is None:
            return state, {}
        average = combined_one(self.aggregate, replies.value.model, self.weights(replies.value.size), shared)
        return Global({**state.model, **average}), {}

    @on_client("models")
    def train_part(self, c: Cohort, sent: Models) -> TrainedPart:
        """On the client: local training of the whole model; some of it stays here."""
        trained = local_sgd(c, self.in_use(c, spread(sent.models, len(c))), self.opt)
        self.keep_part(c, trained)
        return TrainedPart(self.shared(c.task, trained), c.size)

    def personal(self, common: State, kept: Memory) -> State:
        """The shared entries as they are sent, the others as the client keeps them."""
        own = kept.get("part", {})
        assert isinstance(own, dict)
        return {**common, **own}

    def in_use(self, c: Cohort, common: Stack) -> Stack:
        """On the client: what it keeps begins as in the initial model, which every client can make for itself."""
        names = self.kept(c.task)
        if not all(name in common for name in names) and not (c.memory and all("part" in own for own in c.memory)):
            common = {**common, **spread(self.own_part(c.task, c.task.init(c.seed)), len(c))}
        return super().in_use(c, common)

    def keep_part(self, c: Cohort, models: Stack) -> None:
        """On the client: keep what is not shared."""
        own = self.own_part(c.task, models)
        if own:
            c.keep("part", own)

    def shared(self, task: Task, models: Stack) -> Stack:
        """The entries that are sent."""
        kept = set(self.kept(task))
        return {name: tensor for name, tensor in models.items() if name not in kept}

    def own_part(self, task: Task, models: Stack) -> Stack:
        """The entries that are not."""
        return {name: models[name] for name in self.kept(task)}

    def admit(self, state: Global, fed: Federation, new: Sequence[ClientId]) -> Global:
        """Newcomers train their own entries on the shared ones, which stay as they are."""
        fed.ask(self.fit_part, new, same=Models(self.shared(fed.task, state.model)))
        return state

    @on_client()
    def fit_part(self, c: Cohort, sent: Models) -> Done:
        """On the client: train what it keeps, and that alone."""
        names = self.kept(c.task)
        if names:
            start = self.in_use(c, spread(sent.models, len(c)))
            self.keep_part(c, local_sgd(c, start, self.opt, only=names, purpose="own part"))
        return Done(c.size)


@lru_cache(maxsize=64)
def head_entries(task: Task, head: str, owner: str) -> tuple[str, ...]:
    """The entries of the layers that `head` names: "last", the last layer with weights, or names joined by commas."""
    layers = {name: layer for name, layer in task.module.named_modules() if any(True for _ in _weights(layer))}
    if len(layers) < 2:
        raise CoterieError(
            f"{owner} shares all layers but the head, and this network has one layer with weights; "
            "give it another one, or take local or fedavg."
        )
    names = [list(layers)[-1]] if head == "last" else [part.strip() for part in head.split(",")]
    unknown = [name for name in names if name not in layers]
    if unknown:
        raise CoterieError(
            f"{owner}: there is no layer {unknown[0]!r} with weights; set head to last, or to some of "
            f"{', '.join(layers)}, joined by commas."
        )
    if len(set(names)) == len(layers):
        raise CoterieError(f"{owner}: the head is the whole network, so nothing is shared; name fewer layers in head.")
    of_head = {id(weight) for name in names for weight in _weights(layers[name])}
    for name, layer in layers.items():
        if name not in names and any(id(weight) in of_head for weight in _weights(layer)):
            raise CoterieError(f"{owner}: the head shares a weight with layer {name!r}; name both in head, or another.")
    return tuple(entry for entry in task.template if entry.rpartition(".")[0] in names)


def _weights(layer: nn.Module) -> Iterator[nn.Parameter]:
    return layer.parameters(recurse=False)

"""What every server method is made of: a frozen configuration, a frozen state, and a handful of functions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from coterie.core import spill, wire
from coterie.core.cohort import Cohort, Memory
from coterie.core.federation import Federation, Nothing, Replies, on_client
from coterie.core.lengths import too_long
from coterie.core.panels import Panel
from coterie.core.samples import ClientId
from coterie.core.states import Picked, Stack, State, row
from coterie.core.task import Task
from coterie.methods.local_training import LocalTraining
from coterie.methods.served import Assessment, Examination, Floors, Use, assessed, examined, finetuned, floors, use

S = TypeVar("S")


class HasModel(Protocol):
    """A reply with the model that a client has trained."""

    @property
    def model(self) -> Stack:
        """One model a client."""


R = TypeVar("R", bound=HasModel)
A = TypeVar("A")
Log = dict[str, float | int | list[float] | list[int]]


@dataclass(frozen=True)
class Models:
    """A message that carries models."""

    models: Stack


@dataclass(frozen=True)
class Trained:
    """A client's answer to "train this": its model and how many samples it has."""

    model: Stack
    size: Tensor


class RoundMethod(ABC, Generic[S]):
    """What the loop over rounds drives: a method with a server, or a peer-to-peer method in one of its adapters.

    `S`, the state between rounds, is a frozen dataclass and is the checkpoint.
    """

    state_type: ClassVar[type[Any]]
    serves_newcomers: ClassVar[bool] = True
    """Whether there is a trained model for a client that has never taken part."""

    @property
    def part(self) -> str:
        """What a method of several parts calls this one in its orders to clients."""
        return ""

    def part_named(self, name: str) -> RoundMethod[Any] | None:
        """Whose client functions are meant by such a `part`."""
        return None if name else self

    @property
    def keeps_models(self) -> bool:
        """Whether clients use models that no server has."""
        return self.training.personalise == "finetune"

    @property
    @abstractmethod
    def name(self) -> str:
        """The method's name on the command line and in checkpoints."""

    @property
    @abstractmethod
    def training(self) -> LocalTraining:
        """Who holds the settings: the method itself, or the one that an adapter drives."""

    def task(self, task: Task) -> Task:
        """The task this method really trains; a method that changes the network wraps it here."""
        return task

    def task_in(self, state: S, task: Task) -> Task:
        """The task that is trained in this state, from the one that this method trains at first."""
        return task

    @abstractmethod
    def init(self, fed: Federation) -> S:
        """The state before the first round."""

    @abstractmethod
    def step(self, state: S, fed: Federation) -> tuple[S, Log]:
        """One round."""

    @abstractmethod
    def model_for(self, state: S, ids: Sequence[ClientId]) -> tuple[Stack, list[int]]:
        """The models the server holds, and which of them each client would use now."""

    def admit(self, state: S, fed: Federation, new: Sequence[ClientId]) -> S:
        """Take in clients that have just joined."""
        return state

    def placed(self, state: S, fed: Federation, ids: Sequence[ClientId]) -> S:
        """The state in which these clients are served now: one that is in no group is put where its data fit best.

        It is for one evaluation or one newcomer, and the run goes on from `state`: who is in which group of a run is
        found in its rounds, as the method says.
        """
        return state

    def clusters(self, state: S, ids: Sequence[ClientId]) -> list[int] | None:
        """The cluster of each client, or None where the method has no clusters. -1: not known yet."""
        return None

    @abstractmethod
    def models(self, state: S) -> Mapping[str, State]:
        """The models worth saving, by name."""

    def models_in_use(self, state: S, clusters: Collection[int]) -> Mapping[str, State]:
        """Those of the models that some client uses, where the clusters that have members are these."""
        return self.models(state)

    def model_of(self, state: S, client: ClientId, group: int | None) -> State:
        """The model that the server has for one client, which is in this group, where there are groups."""
        models, rows = self.model_for(state, [client])
        return row(models, rows[0])

    def ready(self, network: nn.Module, state: S, group: int | None, seed: int) -> nn.Module:
        """The trained network as a client of this group uses it by itself, from its inputs to its answers."""
        return network

    def personal_models(self, state: S, memory: Mapping[ClientId, Memory]) -> Mapping[ClientId, State]:
        """The model that each client is served, where it is one of its own: fine-tuned, or as `own_models` says."""
        tuned = {client: own for client, kept in memory.items() if isinstance(own := kept.get("personal"), dict)}
        return {**self.own_models(state, memory), **tuned}

    def own_models(self, state: S, memory: Mapping[ClientId, Memory]) -> Mapping[ClientId, State]:
        """The models that are one client's alone, made of what the clients keep: by default what one calls "model"."""
        return {client: own for client, kept in memory.items() if isinstance(own := kept.get("model"), dict)}

    def ask_about_models(
        self, state: S, fed: Federation, ids: Sequence[ClientId], function: Callable[[Cohort, Any], A]
    ) -> Replies[A]:
        """Ask clients about the models they would use now: send what `uses` needs to find its model."""
        stack, rows = self.model_for(state, ids)
        return fed.ask(function, ids, each=Models(stack), rows=rows, purpose="evaluation")

    def uses(self, c: Cohort, sent: Any) -> Use:
        """On the client: the model it would use now; by default the one that is sent (`Models`).

        The type of `sent` is that of the message of `ask_about_models`: devices read messages by it.
        """
        return use(c, sent.models)

    def assess(self, state: S, fed: Federation, ids: Sequence[ClientId]) -> Replies[Assessment]:
        """Have clients judge, on their test part, the model they would use now."""
        return self.ask_about_models(state, fed, ids, self.judge)

    def examine(self, state: S, fed: Federation, ids: Sequence[ClientId]) -> Replies[Examination]:
        """The same at the end of a run, with all metrics and with the model that is fine-tuned on the client."""
        return self.ask_about_models(state, fed, ids, self.judge_fully)

    def floor(self, fed: Federation, ids: Sequence[ClientId]) -> float | None:
        """The mean score of constant answers, where the clients themselves must be asked for theirs.

        It is one number a client, once a run, and not booked: the bytes of a run are those of the simulator's.
        """
        value = fed.ask(self.tell_floor, ids, same=Nothing(), purpose="evaluation", counted=False).value
        known = [] if value is None else [one for one in value.floor.tolist() if isfinite(one)]
        return sum(known) / len(known) if known else None

    @on_client("scores")
    def tell_floor(self, c: Cohort, sent: Nothing) -> Floors:
        """On the client: the score of its most frequent class, or of its mean."""
        return floors(c)

    @on_client("scores")
    def judge(self, c: Cohort, sent: Any) -> Assessment:
        """On the client: the model it would use, on its own test part."""
        return assessed(self.served(c, sent))

    @on_client("scores")
    def judge_fully(self, c: Cohort, sent: Any) -> Examination:
        """On the client: all metrics, and the fine-tuned model beside; a client that is served that one keeps it."""
        served, training = self.served(c, sent), self.training
        if training.personalise == "finetune":
            c.keep("personal", served.models)
            return examined(served, served)
        return examined(served, finetuned(served, training.tuning(c.round)) if training.finetune_epochs else None)

    def served(self, c: Cohort, sent: Any) -> Use:
        """On the client: the model it would use, fine-tuned if the run says so."""
        found = self.uses(c, sent)
        return finetuned(found, self.training.tuning(c.round)) if self.training.personalise == "finetune" else found

    def panels(self, state: S, ids: Sequence[ClientId], truth: Sequence[int] | None) -> list[Panel]:
        """Pictures of this method for the report."""
        return []


def without(replies: Replies[R], places: Collection[int]) -> Replies[R]:
    """The replies but for those in these places."""
    assert replies.value is not None
    kept = [place for place in range(len(replies.ids)) if place not in places]
    skeleton, tensors = wire.pack(replies.value)
    value: R = wire.unpack(type(replies.value), skeleton, spill.taken(tensors, torch.tensor(kept)))
    return Replies(tuple(replies.ids[place] for place in kept), value, replies.failed)


@dataclass(frozen=True)
class ServerMethod(LocalTraining, RoundMethod[S], Generic[S]):
    """A method with a server. Its fields are its settings: the same names in Python, in TOML and on the command line.

    Subclasses are frozen dataclasses.
    """

    fraction: float = field(default=1.0, metadata={"help": "clients per round: a fraction (<= 1) or a number (> 1)"})

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.fraction > 0, "fraction", "be above 0")

    def usable(
        self, fed: Federation, replies: Replies[R], sent: Stack | Picked, models: Stack | None = None
    ) -> Replies[R]:
        """The replies without those whose update no honest client makes (see `lengths.too_long`), refused by name.

        `sent` holds the model that each reply began with; `models` is what to look at if not the replies' models.
        """
        if replies.value is None:
            return replies
        far = {} if self.aggregate == "mean" else too_long(replies.value.model if models is None else models, sent)
        for place, times in far.items():
            fed.refuse(replies.ids[place], f"its update is {times:.3g} times as long as the median of this round")
        if not far:
            return replies
        return without(replies, far)

    @property
    @override
    def training(self) -> LocalTraining:
        return self

"""What every server method is made of: a frozen configuration, a frozen state, and a handful of functions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

from coterie.core import spill, wire
from coterie.core.aggregate import Rule
from coterie.core.cohort import Cohort, Memory
from coterie.core.errors import CoterieError, unknown
from coterie.core.federation import Federation, Replies, on_client
from coterie.core.lengths import too_long
from coterie.core.optimiser import DEFAULT_RATES, Optimiser, OptimiserName
from coterie.core.panels import Panel
from coterie.core.samples import ClientId
from coterie.core.states import Picked, Stack, State, row
from coterie.core.task import Task
from coterie.methods.served import Assessment, Examination, Use, assessed, examined, finetuned, use

S = TypeVar("S")


class HasModel(Protocol):
    """A reply with the model that a client has trained."""

    @property
    def model(self) -> Stack:
        """One model a client."""


R = TypeVar("R", bound=HasModel)
A = TypeVar("A")
Personalise = Literal["none", "finetune"]
_TUNING_RATE = 0.2
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


TITLES: dict[str, str] = {}
"""The title of every method that is defined in this process, the user's own too, by its name."""


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains, with a server or with peers: the settings that all methods share."""

    epochs: int = field(default=5, metadata={"help": "local epochs per round"})
    batch: int = field(default=32, metadata={"help": "batch size; 0 is the whole training set"})
    lr: float | None = field(
        default=None,
        metadata={
            "help": "learning rate; auto: the scenario's, and for own data one found by a short test before the run",
            "shown": f"auto; in deployment {', '.join(f'{name}: {r}' for name, r in DEFAULT_RATES.items())}",
        },
    )
    momentum: float = field(default=0.9, metadata={"help": "momentum of the local SGD"})
    weight_decay: float = field(default=0.0, metadata={"help": "weight decay of the local optimiser"})
    lr_decay: float = field(default=1.0, metadata={"help": "the learning rate of round t is lr * lr_decay^t"})
    optimiser: OptimiserName = field(default="sgd", metadata={"help": "local optimiser: sgd or adam"})

    aggregate: Rule = field(
        default="clipped",
        metadata={"help": "how replies are averaged: mean, clipped, median, trimmed, krum or geometric"},
    )

    personalise: Personalise = field(
        default="none",
        metadata={"help": "none, or finetune: clients use the model they train a little more on their own data"},
    )
    finetune_epochs: int = field(
        default=5, metadata={"help": "epochs of that training, at a fifth of the rate; 0: none, nor its column"}
    )

    name: ClassVar[str]
    title: ClassVar[str] = ""
    """The name as the paper spells it, for people; a class that says none is called by its name."""
    paper: ClassVar[str]
    summary: ClassVar[str]
    needs_validation: ClassVar[bool] = False
    """Whether it chooses by a validation part of the clients' data (scenario.validation)."""
    scenario_training: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Local training that suits this method better on a named scenario than the scenario's own; the user's wins."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Settings that belong together, by name: `preset=NAME` on the command line and in TOML.

    A paper's preset that says how clients train says all of it (every field of `LocalTraining`), so that nothing of it
    is left to the scenario.
    """
    scenario_presets: ClassVar[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {}
    """What a preset says otherwise on a scenario: preset name, scenario name, settings."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if isinstance(vars(cls).get("name"), str):
            cls.title = vars(cls).get("title") or cls.name  # never that of the method it derives from
            TITLES[cls.name] = cls.title

    def __post_init__(self) -> None:
        if self.lr == "auto":  # type: ignore[comparison-overlap]  # as on the command line
            object.__setattr__(self, "lr", None)
        self._require(self.epochs >= 1, "epochs", "be at least 1")
        self._require(self.batch >= 0, "batch", "be at least 0")
        self._require(self.lr is None or self.lr > 0, "lr", "be above 0")
        self._require(0 <= self.momentum < 1, "momentum", "lie in [0, 1)")
        self._require(self.weight_decay >= 0, "weight_decay", "be at least 0")
        self._require(0 < self.lr_decay <= 1, "lr_decay", "lie in (0, 1]")
        self._require(self.finetune_epochs >= (self.personalise == "finetune"), "finetune_epochs", "be at least 1 or 0")

    @classmethod
    def expand(cls, settings: Mapping[str, Any], scenario: str = "") -> dict[str, Any]:
        """Settings with those of the preset they name, on that scenario; these give way to what else is set."""
        own = dict(settings)
        preset = own.pop("preset", None)
        if preset is None:
            return own
        if preset not in cls.presets:
            raise unknown(f"preset of {cls.name}", str(preset), cls.presets)
        return {**cls.presets[preset], **cls.scenario_presets.get(preset, {}).get(scenario, {}), **own}

    @classmethod
    def preset(cls, name: str, scenario: str = "", /, **changes: Any) -> Self:
        """The method with a preset's settings, as on a scenario, and some others: `MDICFL.preset("paper", k=3)`."""
        return cls(**cls.expand({"preset": name, **changes}, scenario))

    def _require(self, fine: bool, key: str, what: str) -> None:
        if not fine:
            raise CoterieError(f"{self.name}: {key} must {what}, not {getattr(self, key)}.")

    def _require_clients(self, fed: Federation, k: int, what: str = "clusters") -> None:
        """Refuse more clusters than there are clients."""
        if k > len(fed.ids):
            raise CoterieError(
                f"{self.name}: k = {k} {what} need at least as many clients, but there are {len(fed.ids)}."
            )

    @property
    def needs_classes(self) -> bool:
        """Whether it looks at the classes of the targets, so that it cannot learn numbers or several labels at once."""
        return False

    def check_classes(self, task: Task) -> None:
        """Refuse a task without classes, if it needs them, and name methods that do not."""
        if self.needs_classes and task.kind in ("multilabel", "regression"):
            raise CoterieError(
                f"{self.name} needs classes, and {task.kind} has none; take a method that needs none, such as fedavg, "
                "ifca, cfl, fedsem, ditto, gossip, pens or panm."
            )

    @property
    def needs_groups(self) -> bool:
        """Whether it must be told the true groups of the clients, which only the simulator knows."""
        return False

    @property
    def opt(self) -> Optimiser:
        """The local training."""
        return Optimiser(
            self.epochs, self.batch, self.lr, self.momentum, self.weight_decay, self.lr_decay, self.optimiser
        )

    def tuning(self, round: int) -> Optimiser:
        """The training that makes a client's model its own: a few epochs at a fifth of the round's rate.

        With that rate it cost no client more than a point of accuracy where we tried it, and helped most of them.
        """
        return replace(self.opt, epochs=self.finetune_epochs, lr=_TUNING_RATE * self.opt.rate(round), lr_decay=1.0)


class RoundMethod(ABC, Generic[S]):
    """What the loop over rounds drives: a method with a server, or a peer-to-peer method in one of its adapters.

    `S`, the state between rounds, is a frozen dataclass and is the checkpoint.
    """

    state_type: ClassVar[type[Any]]
    serves_newcomers: ClassVar[bool] = True
    """Whether there is a trained model for a client that has never taken part."""

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
        kept = [place for place in range(len(replies.ids)) if place not in far]
        skeleton, tensors = wire.pack(replies.value)
        value: R = wire.unpack(type(replies.value), skeleton, spill.taken(tensors, torch.tensor(kept)))
        return Replies(tuple(replies.ids[place] for place in kept), value, replies.failed)

    @property
    def training(self) -> LocalTraining:
        """This method."""
        return self

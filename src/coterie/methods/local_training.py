"""How a client trains: the settings that all methods share, with a server or with peers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self

from coterie.core.aggregate import Rule
from coterie.core.errors import CoterieError, unknown
from coterie.core.federation import Federation
from coterie.core.optimiser import Optimiser, OptimiserName
from coterie.core.settings import AUTO, left_open
from coterie.core.task import Task

Personalise = Literal["none", "finetune"]
_TUNING_RATE = 0.2
TITLES: dict[str, str] = {}
"""The title of every method that is defined in this process, the user's own too, by its name."""


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains, with a server or with peers: the settings that all methods share."""

    epochs: int = field(default=5, metadata={"help": "local epochs per round"})
    batch: int = field(default=32, metadata={"help": "batch size; 0 is the whole training set"})
    lr: float | Literal["auto"] | None = field(
        default=None,
        metadata={
            "help": "learning rate; not set: the scenario's for this optimiser, and where there is none (own data), or "
            "with auto, one found by a short test before the run",
            "shown": "not set",
            AUTO: AUTO,
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
        default=5, metadata={"help": "epochs of that training, at a fifth of the rate; 0: no fine-tuning"}
    )

    name: ClassVar[str]
    title: ClassVar[str] = ""
    """The name as the paper spells it, for people; a class that says none is called by its name."""
    paper: ClassVar[str]
    summary: ClassVar[str]
    use_when: ClassVar[str] = ""
    avoid_when: ClassVar[str] = ""
    """Where it was measured to serve well and badly (docs/methods.md), as the ends of sentences."""
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
        for name, value in left_open(self).items():
            object.__setattr__(self, name, value)
        self._require(self.epochs >= 1, "epochs", "be at least 1")
        self._require(self.batch >= 0, "batch", "be at least 0")
        self._require(self.lr is None or self.lr == "auto" or self.lr > 0, "lr", "be above 0")
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
        lr = None if self.lr == "auto" else self.lr
        return Optimiser(self.epochs, self.batch, lr, self.momentum, self.weight_decay, self.lr_decay, self.optimiser)

    @property
    def has_rate(self) -> bool:
        """Whether its rate is a number; without one, it is to be found by a test (`runs.rates`)."""
        return self.lr is not None and self.lr != "auto"

    def tuning(self, round: int) -> Optimiser:
        """The training that makes a client's model its own: a few epochs at a fifth of the round's rate.

        `core.personal` has each client keep the model it had where its own samples are not sure of a gain.
        """
        return replace(self.opt, epochs=self.finetune_epochs, lr=_TUNING_RATE * self.opt.rate(round), lr_decay=1.0)

"""What auto keeps between rounds, and what passes between its server and its clients."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from coterie.core.federation import Federation
from coterie.core.states import Stack, State, count
from coterie.core.wire import LATER


@dataclass(frozen=True)
class Look:
    """What a client has shown (`looks`): per half of its data the pulls of its classes, [2, kinds, blocks, width].

    `counts` [2, kinds] are the samples of each kind in the halves; `fresh` says that nothing was parted by it yet.
    `appearance` [2, kinds, answers] is what each kind looks like to networks that nobody has trained (`renamings`).
    """

    sketch: Tensor
    counts: Tensor
    fresh: bool = True
    appearance: Tensor = field(default_factory=lambda: torch.zeros(0), metadata={LATER: True})

    @property
    def shares(self) -> Tensor:
        """How often the client has each class, [kinds]."""
        total = self.counts.sum(0)
        return total / total.sum().clamp_min(1.0)


@dataclass(frozen=True)
class Known:
    """What the server knows of a client: its visits, its samples, and its loss on arrival (a running mean)."""

    visits: int
    size: float
    loss: float
    unsettled: bool = False


@dataclass(frozen=True)
class SplitQuestion:
    """A partition of one group that its members are judging.

    `part` is the part that each member would be in, `gain` what those who have answered gained by it (in loss),
    `before` their loss in the whole group. `evidence` is the t of the directions, `since` the round of the question.
    """

    group: int
    part: dict[str, int]
    gain: dict[str, float]
    before: dict[str, float]
    evidence: float
    since: int


@dataclass(frozen=True)
class Event:
    """Something that happened to the groups, in one sentence."""

    round: int
    text: str


@dataclass(frozen=True)
class Pace:
    """How fast a group trains (`pace`): the share of the rate, by how much losses have risen, and its last good model.

    `rises` are of the members that have come since this was last judged. Where `good` is empty it is that of before;
    `restored` says that the group has just gone back to it, `doubted` that most have lost by what came after it.
    `waited` counts the bad rounds after which it has gone on.
    """

    share: float
    rises: list[float]
    good: State
    restored: bool = False
    doubted: bool = field(default=False, metadata={LATER: True})
    waited: int = field(default=0, metadata={LATER: True})


@dataclass(frozen=True)
class Renaming:
    """A group that sees what another does and names it otherwise: its class c is `labels[c]` there (`renamings`)."""

    root: int
    labels: list[int]


@dataclass(frozen=True)
class Groups:
    """The groups so far. Each client that has been met is in exactly one.

    `before` holds the groups' models before the last round, `latest` every client's latest update of its group's model.
    `choices` is what each client's own data say about its model (`personal`). `visits` and `extra` count the downloads
    of one model that every participant has, and those beyond it. `clear` says that the looks alone make the groups,
    `denied` how many visits there had been when a question was last answered with no, `all_labels` that clients will be
    asked for labels that they do not have.
    """

    models: Stack
    before: Stack
    cluster: dict[str, int]
    known: dict[str, Known]
    looks: dict[str, Look]
    latest: dict[str, Tensor]
    choices: dict[str, Tensor]
    question: SplitQuestion | None = None
    visits: int = 0
    extra: int = 0
    clear: bool = False
    denied: int = 0
    all_labels: bool = True
    paces: dict[str, Pace] = field(default_factory=dict, metadata={LATER: True})
    arrived: list[str] = field(default_factory=list, metadata={LATER: True})
    """Clients that have not been sent the model of their present group yet: what they lost was of another."""
    steady: Stack = field(default_factory=dict, metadata={LATER: True})
    """What clients use in place of `models` (`steady`); empty where it would be the same."""
    renamed: dict[str, Renaming] = field(default_factory=dict, metadata={LATER: True})
    first_loss: float = field(default=0.0, metadata={LATER: True})
    """The median loss of the model that all began with, by those who came first; 0 before the first round."""
    events: list[Event] = field(default_factory=list)

    def root(self, group: int) -> int:
        """The group whose network a group trains: its own, or that of which it only names the classes otherwise."""
        return self.renamed[str(group)].root if str(group) in self.renamed else group

    @property
    def pace(self) -> Tensor:
        """The share of the rate at which each group trains, [K]."""
        own = [self.paces.get(str(self.root(group))) for group in range(count(self.models))]
        return torch.tensor([pace.share if pace else 1.0 for pace in own], dtype=torch.float64)


def told(state: Groups, fed: Federation, text: str) -> Groups:
    """The state with something that has happened, which is also said."""
    fed.note(f"auto, round {fed.round + 1}: {text}")
    return replace(state, events=[*state.events, Event(fed.round, text)])


@dataclass(frozen=True)
class Paced:
    """A model, and how fast it is trained: a share of the rate, [K]."""

    models: Stack
    pace: Tensor


@dataclass(frozen=True)
class GroupModels:
    """The groups' models, the label shares of those who made them, and how fast they are trained, [K]."""

    models: Stack
    shares: Tensor
    pace: Tensor


@dataclass(frozen=True)
class Pair:
    """Two models of a client's fellows: in the whole group, and in the part proposed; `shares` [C, 2, classes]."""

    whole: Stack
    part: Stack
    shares: Tensor
    pace: Tensor


@dataclass(frozen=True)
class Visit:
    """A client's answer to "train this": its model, its samples, and the loss of the model that it was sent."""

    model: Stack
    size: Tensor
    loss: Tensor


@dataclass(frozen=True)
class Looked:
    """The same after a look (`looks`): `sketch` in units of `scale`, `counts` and `appearance`."""

    model: Stack
    size: Tensor
    loss: Tensor
    sketch: Tensor
    scale: Tensor
    counts: Tensor
    appearance: Tensor


@dataclass(frozen=True)
class Tried:
    """The same after a trial on halves: also what these say of personal models (`personal`), [C, m]."""

    model: Stack
    size: Tensor
    loss: Tensor
    trials: Tensor


@dataclass(frozen=True)
class Weighed:
    """A client's model after training, and its losses of all the models that it was sent, [C, m]."""

    model: Stack
    size: Tensor
    losses: Tensor


@dataclass(frozen=True)
class Prepared:
    """The model that a client would use now, and how it is made personal (`personal`), [C]."""

    models: Stack
    choice: Tensor
    pace: Tensor

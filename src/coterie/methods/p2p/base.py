"""What peer-to-peer methods are made of: no server, every peer asks some others for their models and learns from them.

A method says whom a peer asks (`choose`), how like it takes those who answered to be (`measure`), and which of the
answers it aggregates (`select`). It sees nothing but the peer's own node, what it knows of the network (`PeerView`) and
what arrived (`Inbox`), always with a leading axis of peers. Two adapters run it: `Simulated` all peers in one machine,
`Deployed` one real peer. Peers are named by keys (see `topology`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from coterie.core import wire
from coterie.core.aggregate import Rule, combined_bags
from coterie.core.cohort import Cohort
from coterie.core.rng import rng
from coterie.core.rows import RowMath
from coterie.core.samples import ClientId
from coterie.core.states import Stack, State
from coterie.core.task import Task
from coterie.core.training import local_sgd
from coterie.methods.local_training import LocalTraining
from coterie.methods.p2p.topology import NO_PEER, Keys, Topology, draw, peer_key

N = TypeVar("N")


@dataclass(frozen=True)
class Answers:
    """What peers send when asked: their model after local training, the one they began it with where the asker wants
    the change, and keys of peers they know (hearsay, `NO_PEER` where there are fewer)."""

    model: Stack
    start: Stack | None
    heard: Tensor


@dataclass(frozen=True)
class Sketched:
    """What peers send to those who do not want their model yet: its sketch, and hearsay as in `Answers`."""

    sketch: Tensor
    heard: Tensor


@dataclass(frozen=True)
class Inbox:
    """What arrived at each of C peers: row `index` of the pool of distinct answers came from peer `keys`.

    `index` is -1 where no peer answered. `own` is the peer's own answer, what it would send itself. `known` is how many
    others the peer knows. Where sketches are asked for before models, they are in `sketches` [answers, K, length], and
    `stride` is how far the peer's own local training has gone, [C].
    """

    pool: Answers
    own: Tensor
    keys: Tensor
    index: Tensor
    known: Tensor
    sketches: Tensor | None = None
    stride: Tensor | None = None

    @property
    def mask(self) -> Tensor:
        """Which answers arrived, [C, m]."""
        return self.index >= 0


@dataclass(frozen=True)
class PeerView:
    """What peers know of the network in a round: who they are and whom each can reach now."""

    ids: tuple[ClientId, ...]
    round: int
    seed: int
    everyone: Keys
    """All peers that are there, sorted."""
    known: tuple[Keys, ...] | None = None
    """For each peer those of them it can reach; None: everyone."""
    allies: tuple[Keys, ...] | None = None
    """For the oracle alone: for each peer those of its true group."""

    def __len__(self) -> int:
        return len(self.ids)

    def reachable(self, index: int) -> Keys:
        """Whom a peer can ask (it may stand in the list itself)."""
        return self.everyone if self.known is None else self.known[index]

    def sees(self, index: int, keys: Keys) -> Keys:
        """Those of the keys that the peer can reach."""
        among = self.reachable(index)
        place = np.searchsorted(among, keys).clip(max=max(len(among) - 1, 0))
        return keys[among[place] == keys] if len(among) else keys[:0]

    def draw(self, index: int, number: int, *, among: Keys | None = None, without: Sequence[int] | Keys = ()) -> Keys:
        """Up to so many different peers at random, never the peer itself: keyed by (seed, round, id) alone."""
        client = self.ids[index]
        barred = [*np.asarray(without).tolist(), peer_key(client)]
        purpose = "candidates" if among is None else "partners"
        pool = self.reachable(index) if among is None else np.sort(among)
        return draw(rng(self.seed, purpose, self.round, client), pool, number, barred)


@dataclass(frozen=True)
class Request:
    """What peers ask for in a round: the answers of those in `keys` [C, m], and whether these tell also where
    the local training began, `starts` [C]. Peers that look first, `looks` [C], ask for sketches, and then for the
    models that they select."""

    keys: Tensor
    starts: Tensor
    looks: Tensor

    @classmethod
    def models(cls, keys: Tensor) -> Request:
        """Trained models alone."""
        none = torch.zeros(len(keys), dtype=torch.bool)
        return cls(keys, none, none)


@dataclass(frozen=True)
class PeerMethod(LocalTraining, ABC, Generic[N]):
    """A peer-to-peer method as one peer runs it. `N`, the node, is a frozen dataclass of tensors [C, ...]: what a peer
    keeps between rounds beside its model. Like every method's, its fields are its settings; `fraction` and those from
    `topology` on shape a simulated network, and between real peers they stay as they are."""

    fraction: float = field(default=1.0, metadata={"help": "clients per round: a fraction (<= 1) or a number (> 1)"})
    l: int = field(default=10, metadata={"help": "candidates a peer asks in a round (l)"})  # noqa: E741
    k: int = field(default=5, metadata={"help": "models a peer aggregates with its own (k)"})
    topology: Topology = field(
        default="full", metadata={"help": "whom a peer can reach at the start: full, random, ring or islands"}
    )
    degree: int = field(default=10, metadata={"help": "how many others a peer knows at the start, unless full"})
    bridges: int = field(default=2, metadata={"help": "links from each island to the next (topology islands)"})
    hearsay: int = field(default=0, metadata={"help": "peers that an answer tells the asker about, unless full"})

    node_type: ClassVar[type[Any]]
    finds_groups: ClassVar[bool] = True
    """Whether the neighbours say who is like whom."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.fraction > 0, "fraction", "be above 0")
        self._require(self.l >= 1, "l", "be at least 1")
        self._require(self.k >= 1, "k", "be at least 1")
        self._require(self.degree >= 1, "degree", "be at least 1")
        self._require(self.bridges >= 0, "bridges", "be at least 0")
        self._require(self.hearsay >= 0, "hearsay", "be at least 0")

    @abstractmethod
    def start(self, c: Cohort) -> N:
        """The nodes before the first round."""

    @abstractmethod
    def choose(self, node: N, view: PeerView) -> Request:
        """Whom each peer asks in this round, and for what."""

    def measure(self, c: Cohort, node: N, inbox: Inbox) -> Tensor:
        """How like each sender is, [C, m]; 0 where nothing came or nothing is measured."""
        return torch.zeros(inbox.index.shape, dtype=torch.float64)

    @property
    def measures_data(self) -> bool:
        """Whether `measure` looks at the peer's own data; if not, it looks at the answers alone."""
        return True

    def sketch(self, task: Task, seed: int, ends: Stack, begins: Stack) -> Tensor | None:
        """What is told of models before they are asked for, whole numbers [C, K, length]; None: nothing is."""
        return None

    @property
    def watches_strides(self) -> bool:
        """Whether `select` looks at how far the peer's own training has gone."""
        return False

    def restarts(self, node: N) -> Tensor | None:
        """Which peers go back to the common initial model after `select`, [C]; None: none."""
        return None

    @abstractmethod
    def select(self, c: Cohort, node: N, inbox: Inbox, similarity: Tensor) -> tuple[N, Tensor]:
        """The nodes after the round, and which answers each peer aggregates [C, m]."""

    @abstractmethod
    def neighbours(self, node: N) -> Tensor:
        """Each peer's present neighbours: keys [C, w]."""

    def train(self, c: Cohort, models: Stack) -> Stack:
        """Local training, from the peers' own models."""
        return local_sgd(c, models, self.opt)

    def update(self, c: Cohort, node: N, inbox: Inbox) -> tuple[Stack, N, Tensor]:
        """After the answers have come: the new models and nodes, and whose models are in them.

        Trained models are averaged with equal weights, 1 / (k + 1), the peer's own among them.
        """
        new, chosen = self.select(c, node, inbox, self.measure(c, node, inbox))
        return aggregate(inbox, chosen, c.task.row_math, self.aggregate), new, chosen

    def restarted(self, models: Stack, node: N, origin: State) -> Stack:
        """The models, with the common initial one where a peer restarts."""
        back = self.restarts(node)
        if back is None or not bool(back.any()):
            return models
        return {
            name: torch.where(back.view(-1, *[1] * (tensor.dim() - 1)), origin[name], tensor)
            for name, tensor in models.items()
        }

    def unpack_node(self, parts: Mapping[str, Tensor]) -> N:
        """The inverse of `pack_node`."""
        node: N = self.node_type(**parts)
        return node


def pack_node(node: object) -> dict[str, Tensor]:
    """A node as tensors by name."""
    return wire.pack(node)[1]


def aggregate(inbox: Inbox, chosen: Tensor, math: RowMath | None = None, rule: Rule = "mean") -> Stack:
    """Every peer's own trained model and the chosen ones, averaged by a rule."""
    others = torch.where(chosen, inbox.index, -1)
    return combined_bags(rule, inbox.pool.model, inbox.own, others, math)


def best(scores: Tensor, keys: Tensor, usable: Tensor, number: int) -> Tensor:
    """The `number` highest scores of each row among the usable ones, [C, m]; ties go to the lower key."""
    chosen = torch.zeros_like(usable)
    for row, (score, key, fine) in enumerate(zip(scores.numpy(), keys.numpy(), usable.numpy(), strict=True)):
        order = np.lexsort((key, -score))
        chosen[row, torch.from_numpy(order[fine[order]][:number])] = True
    return chosen


def only(inbox: Inbox, peers: Tensor) -> Inbox:
    """The inbox as if nothing had come to the other peers."""
    return replace(inbox, index=torch.where(peers[:, None], inbox.index, -1))


def renewed(fresh: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """Lists [C, m]: the new ones where `fresh` [C, 1], else the old ones, all as wide as the wider."""
    width = max(new.shape[1], old.shape[1])
    fill = NO_PEER if new.dtype == torch.int64 else 0
    wide = [torch.nn.functional.pad(lists, (0, width - lists.shape[1]), value=fill) for lists in (new, old)]
    return torch.where(fresh, wide[0], wide[1])

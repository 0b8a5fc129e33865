"""PANM: peers that find their own neighbours (Li et al., "Mining Latent Relationships among Clients: Peer-to-peer
Federated Learning with Adaptive Neighbor Matching")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from coterie.core.cohort import Cohort
from coterie.methods.p2p.base import (
    Inbox,
    PeerMethod,
    PeerView,
    Request,
    best,
    only,
    renewed,
)
from coterie.methods.p2p.similarity import LossScore, by_direction, by_loss
from coterie.methods.p2p.topology import (
    NOBODY,
    Keys,
    as_rows,
    draw,
    members,
)
from coterie.methods.panm.em import Rules, same_group

Stage = Literal["initialise", "match", "gossip"]


@dataclass(frozen=True)
class Matching:
    """A peer's neighbours N_i [C, w], its rounds so far [C], and whom it measured last with what result [C, m]."""

    neighbours: Tensor
    age: Tensor
    scored: Tensor
    similarity: Tensor


@dataclass(frozen=True)
class PANM(PeerMethod[Matching]):
    """Algorithm 1. Stage one, t1 rounds: the k most similar of l random peers and the last neighbours (confident
    neighbour initialisation, eq. 8). Stage two: gossip with k of the neighbours; every tau rounds the list is matched
    again by hard EM on the similarities of l neighbours and l others (heuristic neighbour matching, eq. 14-18).

    A peer counts its own rounds, so that one that joins late goes through stage one too.
    """

    t1: int = field(default=10, metadata={"help": "rounds of stage one (T1)"})
    tau: int = field(default=2, metadata={"help": "in stage two neighbours are matched every tau rounds"})
    metric: Literal["grad", "loss"] = field(
        default="grad",
        metadata={"help": "similarity by directions of learning (grad) or by loss on the peer's own data"},
    )
    alpha: float = field(default=0.5, metadata={"help": "weight of the last update's direction in grad (alpha)"})
    weigh: Literal["fixed", "fisher", "late"] = field(
        default="late",
        metadata={
            "help": "alpha is fixed, or the most that the last update weighs, as far as it tells neighbours: always "
            "(fisher), or in stage two (late)"
        },
    )
    loss_score: LossScore = field(
        default="inverse", metadata={"help": "similarity in loss: 1 / F (inverse) or -F (negative)"}
    )
    guard: float = field(
        default=1.5,
        metadata={
            "help": "a matching changes the list only if the groups' means are this many deviations apart; 0: always"
        },
    )
    monotone: bool = field(
        default=True,
        metadata={"help": "a similarity above the larger mean always matches, one below the smaller never"},
    )
    least_sigma: float = field(
        default=1e-3,
        metadata={"help": "least deviation of a group in the matching, as a share of the similarities' range; 0: none"},
    )
    fill: bool = field(
        default=True, metadata={"help": "with fewer than l neighbours, match with more candidates: 2 l models in all"}
    )

    name: ClassVar[str] = "panm"
    paper: ClassVar[str] = "Li et al., Mining latent relationships among clients: peer-to-peer FL (PANM)"
    summary: ClassVar[str] = "peers find their like by how they learn, without a server or a number of groups"
    node_type: ClassVar[type[Matching]] = Matching
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {
            "weigh": "fixed",
            "guard": 0.0,
            "monotone": False,
            "least_sigma": 0.0,
            "fill": False,
            "aggregate": "mean",
        }
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.t1 >= 0, "t1", "be at least 0")
        self._require(self.tau >= 1, "tau", "be at least 1")
        self._require(0 <= self.alpha <= 1, "alpha", "lie in [0, 1]")
        self._require(self.guard >= 0, "guard", "be at least 0")
        self._require(0 <= self.least_sigma <= 1, "least_sigma", "lie in [0, 1]")

    def start(self, c: Cohort) -> Matching:
        """No neighbours yet: N_i is empty."""
        none = torch.empty(len(c), 0, dtype=torch.int64)
        return Matching(none, torch.zeros(len(c), dtype=torch.int64), none, none.double())

    def _measuring(self, node: Matching, keys: Tensor) -> Tensor:
        """Who measures similarities this round, [C]: in stage one, when matching, and when a stranger is asked."""
        stranger = (keys != NOBODY) & ~_listed(keys, node.neighbours)
        return stranger.any(1) | (node.age < self.t1) | ((node.age + 1) % self.tau == 0)

    def choose(self, node: Matching, view: PeerView) -> Request:
        """Stage one: N and l others. Matching: l of N and l others. Gossip: k of N."""
        wanted = []
        for peer, age in enumerate(node.age.tolist()):
            near = view.sees(peer, members(node.neighbours[peer]))
            stage = self.stage(age, near)
            if stage == "gossip":
                wanted.append(view.draw(peer, self.k, among=near))
                continue
            others = self.l
            if stage == "match":
                known = near if len(near) <= self.l else view.draw(peer, self.l, among=near)
                others += self.l - len(known) if self.fill else 0
            else:
                known = near
            others_of = view.draw(peer, others, without=members(node.neighbours[peer]))
            wanted.append(np.concatenate([np.sort(known), others_of]))
        keys = as_rows(wanted)
        # the change of a model is needed wherever its direction is measured
        return Request(keys, self._measuring(node, keys) & (self.metric == "grad" and self.alpha > 0))

    def stage(self, age: int, near: Sequence[int] | Keys) -> Stage:
        """What a peer does in its round number `age` (from 0); one without neighbours in reach looks for new ones."""
        if age < self.t1 or not len(near):
            return "initialise"
        return "match" if (age + 1) % self.tau == 0 else "gossip"

    @property
    def measures_data(self) -> bool:
        """Only the loss is that on the peer's own data."""
        return self.metric == "loss"

    def measure(self, c: Cohort, node: Matching, inbox: Inbox) -> Tensor:
        """Equations 3 and 6, where others than neighbours were asked."""
        asked = only(inbox, self._measuring(node, inbox.keys))
        if self.metric == "loss":
            return by_loss(c, asked, self.loss_score)
        return by_direction(c, asked, self.alpha, self._compared(node, _listed(inbox.keys, node.neighbours)))

    def select(self, c: Cohort, node: Matching, inbox: Inbox, similarity: Tensor) -> tuple[Matching, Tensor]:
        """Renew the list where similarities were measured, and say whom to aggregate."""
        known = _listed(inbox.keys, node.neighbours)
        measuring = self._measuring(node, inbox.keys)
        top = best(similarity, inbox.keys, inbox.mask, self.k)
        initialise = measuring & ((node.age < self.t1) | ~known.any(1))
        matched = torch.from_numpy(same_group(similarity.numpy(), inbox.mask.numpy(), known.numpy(), self._rules))
        lists, chosen = [], torch.zeros_like(inbox.mask)
        for peer in range(len(c)):
            old, keys, came = members(node.neighbours[peer]), inbox.keys[peer].numpy(), inbox.mask[peer].numpy()
            if bool(initialise[peer]):
                lists.append(self._confident(old, keys[top[peer].numpy()]))
                chosen[peer] = top[peer]
            elif bool(measuring[peer]):
                same = matched[peer].numpy() if matched[peer].any() else known[peer].numpy() & came
                lists.append(_matched(old, keys[came & known[peer].numpy()], keys[same & came]))
                chosen[peer] = self._partners(c, peer, keys, same & came)
            else:
                lists.append(old)
                chosen[peer] = inbox.mask[peer]
        room = max(node.neighbours.shape[1], self.k) + inbox.keys.shape[1]
        return Matching(
            neighbours=as_rows(lists, room),
            age=node.age + 1,
            scored=renewed(measuring[:, None], torch.where(inbox.mask, inbox.keys, NOBODY), node.scored),
            similarity=renewed(measuring[:, None], similarity, node.similarity),
        ), chosen

    def _compared(self, node: Matching, known: Tensor) -> Tensor | None:
        """The neighbours by whom alpha is weighed; None: alpha is fixed, as in the paper.

        "late": none in stage one, where the noise of theta1 has its use: by theta2 alone, who was averaged once stays
        the most similar for good, and a group falls into cliques.
        """
        if self.weigh == "fixed":
            return None
        return known & (node.age >= self.t1)[:, None] if self.weigh == "late" else known

    @property
    def _rules(self) -> Rules:
        return Rules(self.guard, self.monotone, self.least_sigma)

    def _confident(self, old: Keys, top: Keys) -> Keys:
        """The k most similar; where fewer came, silent old neighbours fill the list."""
        silent = [key for key in old.tolist() if key not in set(top.tolist())]
        return np.array([*top.tolist(), *silent[: max(0, self.k - len(top))]], dtype=np.int64)

    def _partners(self, c: Cohort, peer: int, keys: Keys, fine: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Tensor:
        """k of the matched peers, whose models are at hand."""
        taken = draw(c.rng(peer, "matched"), np.sort(keys[fine]), self.k)
        return torch.from_numpy(np.isin(keys, taken) & fine)

    def neighbours(self, node: Matching) -> Tensor:
        """N_i."""
        return node.neighbours


def _listed(keys: Tensor, lists: Tensor) -> Tensor:
    """Which keys [C, m] stand in the same row of `lists` [C, w]."""
    return (keys[:, :, None] == lists[:, None, :]).any(2) & (keys != NOBODY)


def _matched(old: Keys, asked: Keys, same: Keys) -> Keys:
    """Equation 18, N <- (N - S) + H; the list never becomes empty."""
    kept = [key for key in old.tolist() if key not in set(asked.tolist())]
    new = sorted({*kept, *same.tolist()})
    return np.array(new, dtype=np.int64) if new else old

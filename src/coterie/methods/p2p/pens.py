"""PENS: peers whose models do well on a peer's own data are counted, those chosen often become neighbours
(Onoszko et al., 2021)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from coterie.core.cohort import Cohort
from coterie.methods.p2p.base import Inbox, PeerMethod, PeerView, Request, best, only, renewed
from coterie.methods.p2p.similarity import by_loss
from coterie.methods.p2p.topology import NO_PEER, Keys, as_rows, members


@dataclass(frozen=True)
class SelectionCounts:
    """How often a peer has chosen which others, [C, w]; its rounds so far, [C]; its neighbours, [C, v]."""

    seen: Tensor
    times: Tensor
    age: Tensor
    neighbours: Tensor
    scored: Tensor
    similarity: Tensor


@dataclass(frozen=True)
class PENS(PeerMethod[SelectionCounts]):
    """Stage one (t1 rounds): ask l random peers, aggregate the k whose models have the least loss on its data,
    and count them. Stage two: gossip with k of those chosen more often than chance would have it."""

    t1: int = field(default=10, metadata={"help": "rounds of stage one (T1)"})
    threshold: Literal["pens", "panm"] = field(
        default="pens",
        metadata={"help": "neighbours: count > k T1 / (n - 1) - 1 (pens) or >= ceil(T1 (l + k) / n) (panm)"},
    )
    cutoff: int = field(
        default=0, metadata={"help": "neighbours: chosen at least so many times in stage one; 0: by threshold"}
    )

    name: ClassVar[str] = "pens"
    title: ClassVar[str] = "PENS"
    paper: ClassVar[str] = "Onoszko et al. 2021, Decentralized federated learning on non-iid data"
    summary: ClassVar[str] = "peers keep those whose models often do best on their own data"
    use_when: ClassVar[str] = "there is no server, and every peer has hundreds of samples"
    avoid_when: ClassVar[str] = "samples are few: whose models do best is chance; 7 times FedAvg's bytes"
    node_type: ClassVar[type[SelectionCounts]] = SelectionCounts

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(self.t1 >= 1, "t1", "be at least 1")
        self._require(self.cutoff >= 0, "cutoff", "be at least 0")
        self._require(self.l >= self.k, "l", f"be at least k = {self.k}")

    def start(self, c: Cohort) -> SelectionCounts:
        """No peer has been chosen yet."""
        none = torch.empty(len(c), 0, dtype=torch.int64)
        return SelectionCounts(none, none, torch.zeros(len(c), dtype=torch.int64), none, none, none.double())

    def choose(self, node: SelectionCounts, view: PeerView) -> Request:
        """l random peers in stage one, then k neighbours; with no neighbour in reach, k random peers."""
        wanted = []
        for peer, age in enumerate(node.age.tolist()):
            if age < self.t1:
                wanted.append(view.draw(peer, self.l))
                continue
            near = view.sees(peer, members(node.neighbours[peer]))
            wanted.append(view.draw(peer, self.k, among=near if len(near) else None))
        return Request.models(as_rows(wanted))

    def measure(self, c: Cohort, node: SelectionCounts, inbox: Inbox) -> Tensor:
        """In stage one, by the loss on the peer's own data."""
        return by_loss(c, only(inbox, node.age < self.t1), "inverse")

    def select(
        self, c: Cohort, node: SelectionCounts, inbox: Inbox, similarity: Tensor
    ) -> tuple[SelectionCounts, Tensor]:
        """The k best of stage one's candidates are counted; stage two takes all that came."""
        first = node.age < self.t1
        chosen = torch.where(first[:, None], best(similarity, inbox.keys, inbox.mask, self.k), inbox.mask)
        age = node.age + 1
        tallies, lists = [], []
        for peer, rounds in enumerate(age.tolist()):
            taken = inbox.keys[peer][chosen[peer]].numpy()
            seen, times = _counted(node.seen[peer], node.times[peer], taken if rounds <= self.t1 else taken[:0])
            tallies.append((seen, times))
            if rounds < self.t1:
                lists.append(taken)
            elif rounds == self.t1:
                lists.append(self._often(seen, times, int(inbox.known[peer])))
            else:
                lists.append(members(node.neighbours[peer]))
        room = max(node.seen.shape[1] + self.k, node.neighbours.shape[1])
        return SelectionCounts(
            seen=as_rows([seen for seen, _ in tallies], room),
            times=as_rows([times for _, times in tallies], room),
            age=age,
            neighbours=as_rows(lists, room),
            scored=renewed(first[:, None], torch.where(inbox.mask, inbox.keys, NO_PEER), node.scored),
            similarity=renewed(first[:, None], similarity, node.similarity),
        ), chosen

    def _often(self, seen: Keys, times: Keys, known: int) -> Keys:
        """Those chosen often enough, out of `known` others."""
        if self.cutoff:
            return seen[times >= self.cutoff]
        if self.threshold == "pens":
            return seen[times > self.k * self.t1 / max(known, 1) - 1]
        return seen[times >= math.ceil(self.t1 * (self.l + self.k) / (known + 1))]

    def neighbours(self, node: SelectionCounts) -> Tensor:
        """In stage one those chosen last, then those chosen often."""
        return node.neighbours


def _counted(seen: Tensor, times: Tensor, chosen: Keys) -> tuple[Keys, Keys]:
    """The tally with one more for each chosen key, sorted by key."""
    old, counts = members(seen), members(times)
    keys, inverse = np.unique(np.concatenate([old, chosen]), return_inverse=True)
    total = np.bincount(inverse, weights=np.concatenate([counts, np.ones(len(chosen))]), minlength=len(keys))
    return keys, total.astype(np.int64)

"""PANM: peers that find their own neighbours (Li et al., "Mining Latent Relationships among Clients: Peer-to-peer
Federated Learning with Adaptive Neighbor Matching").

The paper's symbols: N_i the neighbours of peer i (`node.neighbours`), C_i its l candidates and S_i its l neighbours
that are compared (`choose`), H_i those that are found alike (`alike`, by the EM of `matching.fitted`), k the
neighbours that are averaged. What is ours is in `ours`, `looks` and `additions`, and among the settings in
`settings.PANMSettings`; with `preset=paper` none of it does anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from coterie.core.cohort import Cohort
from coterie.core.states import Stack
from coterie.core.task import Task
from coterie.methods.p2p.base import Inbox, PeerView, Request, best, only, renewed
from coterie.methods.p2p.similarity import by_loss
from coterie.methods.p2p.topology import NO_PEER, Keys, as_rows, draw, members
from coterie.methods.panm.additions import (
    alike,
    asked,
    blank,
    forgetting,
    judged,
    kept,
    many_silent,
    trained_on,
    two_sketches,
    unpacked,
    whom_to_compare,
)
from coterie.methods.panm.looks import by_sketch
from coterie.methods.panm.matching import confident, matched
from coterie.methods.panm.settings import Matching, PANMSettings
from coterie.methods.panm.similarity import by_direction

Stage = Literal["initialise", "match", "gossip"]


@dataclass(frozen=True)
class PANM(PANMSettings):
    """Algorithm 1. Stage one, t1 rounds: the k most similar of l random peers and the last neighbours (confident
    neighbour initialisation, eq. 8). Stage two: gossip with k of the neighbours; every tau rounds the list is matched
    again by hard EM on the similarities of l neighbours and l others (heuristic neighbour matching, eq. 14-18).

    A peer counts its own rounds, so that one that joins late goes through stage one too.
    """

    name: ClassVar[str] = "panm"
    title: ClassVar[str] = "PANM"
    paper: ClassVar[str] = "Li et al., Mining latent relationships among clients: peer-to-peer FL (PANM)"
    summary: ClassVar[str] = "peers find similar peers by comparing updates, without a server or a number of groups"
    use_when: ClassVar[str] = "there is no server, groups are not known, and most peers are awake"
    avoid_when: ClassVar[str] = "labels are skewed (11 to 57 points behind) or most peers are asleep"
    node_type: ClassVar[type[Matching]] = Matching

    def start(self, c: Cohort) -> Matching:
        """No neighbours yet: N_i is empty."""
        return blank(self, len(c))

    def _measuring(self, node: Matching, keys: Tensor) -> Tensor:
        """Who measures similarities this round, [C]: in stage one, when matching, and when a stranger is asked."""
        stranger = (keys != NO_PEER) & ~_listed(keys, node.neighbours)
        return stranger.any(1) | (node.age < self.t1) | ((node.age + 1) % self.tau == 0) | many_silent(self, node)

    def choose(self, node: Matching, view: PeerView) -> Request:
        """Stage one: N and l others. Matching: l of N and l others. Gossip: k of N."""
        wanted = []
        silent = many_silent(self, node).tolist()
        for peer, age in enumerate(node.age.tolist()):
            near = view.sees(peer, members(node.neighbours[peer]))
            stage = self.stage(age, near)
            if stage == "gossip" and not silent[peer]:
                wanted.append(view.draw(peer, self.k, among=near))
                continue
            others = most = asked(self, node, peer)
            if stage != "initialise":
                known = near if len(near) <= most else view.draw(peer, most, among=near)
                others += self.l - len(known) if self.fill and len(known) < self.l else 0
            else:
                known = near
            others_of = view.draw(peer, others, without=members(node.neighbours[peer]))
            wanted.append(np.concatenate([np.sort(known), others_of]))
        keys = as_rows(wanted)
        measuring = self._measuring(node, keys)
        # the change of a model is needed wherever its direction is measured
        whole = self.metric == "grad" and self.alpha > 0 and not self.sketches
        return Request(keys, measuring & whole, measuring & self.sketches)

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
        answers = only(inbox, self._measuring(node, inbox.keys))
        if self.metric == "loss":
            return by_loss(c, answers, self.loss_score, judged(self, c))
        seen = whom_to_compare(node, answers)
        known = self.compared(node, _listed(seen.keys, node.neighbours))
        if inbox.sketches is None or not self.sketches:
            return by_direction(c, answers, self.alpha, known)
        return by_sketch(inbox.sketches[inbox.own], seen, self.alpha, known)

    def select(self, c: Cohort, node: Matching, inbox: Inbox, similarity: Tensor) -> tuple[Matching, Tensor]:
        """Renew the list where similarities were measured, and say whom to aggregate."""
        measuring = self._measuring(node, inbox.keys)
        seen = whom_to_compare(node, only(inbox, measuring))
        known = _listed(seen.keys, node.neighbours)
        top = best(similarity, seen.keys, seen.valid, self.k)
        same, early = alike(self, node, inbox, similarity, seen, known)
        initialise = measuring & ((node.age < self.t1) | ~known.any(1)) & ~early
        nearest = best(similarity, seen.keys, seen.came, self.k)
        lists, chosen = [], torch.zeros_like(seen.valid)
        chosen[:, : inbox.mask.shape[1]] = inbox.mask
        for peer in range(len(c)):
            old, keys = members(node.neighbours[peer]), seen.keys[peer].numpy()
            if bool(initialise[peer]):
                lists.append(confident(old, keys[top[peer].numpy()], self.k))
                chosen[peer] = nearest[peer]
            elif bool(measuring[peer]):
                lists.append(matched(old, keys[(known & seen.valid)[peer].numpy()], keys[same[peer].numpy()]))
                chosen[peer] = self._partners(c, peer, keys, (same & seen.came)[peer].numpy())
            else:
                lists.append(old)
        room = max(node.neighbours.shape[1], self.k) + seen.keys.shape[1]
        after = Matching(
            neighbours=as_rows(lists, room),
            age=node.age + 1,
            scored=renewed(measuring[:, None], torch.where(seen.valid, seen.keys, NO_PEER), node.scored),
            similarity=renewed(measuring[:, None], similarity, node.similarity),
            **kept(node, inbox, seen, measuring),
        )
        return forgetting(self, node, after, inbox, chosen[:, : inbox.mask.shape[1]])

    def _partners(self, c: Cohort, peer: int, keys: Keys, fine: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Tensor:
        """k of the matched peers whose models came."""
        taken = draw(c.rng(peer, "matched"), np.sort(keys[fine]), self.k)
        return torch.from_numpy(np.isin(keys, taken) & fine)

    @override
    def neighbours(self, node: Matching) -> Tensor:
        return node.neighbours

    # ours, from here on

    @override
    def unpack_node(self, parts: Mapping[str, Tensor]) -> Matching:
        return unpacked(self, parts)

    @override
    def sketch(self, task: Task, seed: int, ends: Stack, begins: Stack) -> Tensor | None:
        return two_sketches(self, task, seed, ends, begins)

    @override
    def train(self, c: Cohort, models: Stack) -> Stack:
        return super().train(trained_on(self, c), models)

    @property
    @override
    def watches_strides(self) -> bool:
        return self.forget > 0

    def restarts(self, node: Matching) -> Tensor | None:
        """Those who have just forgotten what they had learnt."""
        return node.age == 0 if self.forget > 0 else None


def _listed(keys: Tensor, lists: Tensor) -> Tensor:
    """Which keys [C, m] stand in the same row of `lists` [C, w]."""
    return (keys[:, :, None] == lists[:, None, :]).any(2) & (keys != NO_PEER)

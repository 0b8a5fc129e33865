"""Gossip: every peer averages with k others, drawn at random, fixed, or of its true group (the ceiling)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import override

from coterie.core.cohort import Cohort
from coterie.methods.p2p.base import Inbox, PeerMethod, PeerView, Request, renewed
from coterie.methods.p2p.topology import NO_PEER, as_rows, members


@dataclass(frozen=True)
class Partners:
    """Whom a peer asked last, [C, k]."""

    partners: Tensor


@dataclass(frozen=True)
class Gossip(PeerMethod[Partners]):
    """The baselines Random, FixTopology and Oracle of the PANM paper."""

    partners: Literal["random", "fixed", "oracle"] = field(
        default="random", metadata={"help": "k others: random every round, fixed from the start, or of the true group"}
    )

    name: ClassVar[str] = "gossip"
    title: ClassVar[str] = "Gossip"
    paper: ClassVar[str] = "baseline"
    summary: ClassVar[str] = "peers average with k others: random, fixed, or (oracle) of the same group"
    use_when: ClassVar[str] = "there is no server and there are no groups"
    avoid_when: ClassVar[str] = "groups differ (8 to 58 points behind) or many peers are asleep"
    node_type: ClassVar[type[Partners]] = Partners
    finds_groups: ClassVar[bool] = False

    @property
    def needs_groups(self) -> bool:
        """Only the oracle is told the true groups."""
        return self.partners == "oracle"

    @override
    def start(self, c: Cohort) -> Partners:
        return Partners(torch.full((len(c), self.k), NO_PEER, dtype=torch.int64))

    def choose(self, node: Partners, view: PeerView) -> Request:
        """k others; a fixed partner that is away is not replaced."""
        wanted = []
        for peer in range(len(view)):
            partners = members(node.partners[peer])
            if self.partners == "fixed" and len(partners):
                wanted.append(view.sees(peer, partners))
            elif view.allies is not None:
                wanted.append(view.draw(peer, self.k, among=view.sees(peer, view.allies[peer])))
            else:
                wanted.append(view.draw(peer, self.k))
        return Request.models(as_rows(wanted, self.k))

    def select(self, c: Cohort, node: Partners, inbox: Inbox, similarity: Tensor) -> tuple[Partners, Tensor]:
        """Everything that came is aggregated."""
        none = (node.partners == NO_PEER).all(1, keepdim=True)
        fresh = none if self.partners == "fixed" else torch.ones_like(none)
        return Partners(renewed(fresh, inbox.keys, node.partners)), inbox.mask

    def neighbours(self, node: Partners) -> Tensor:
        """Whom the peer asked last."""
        return node.partners

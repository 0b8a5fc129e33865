"""Ours, not in the paper: PANM by sketches, what a peer remembers of those it was sent and what it makes of them.

A peer compares itself with all whom it remembers, so that those who sleep in this round are not forgotten. theta2 is
taken from the centre of all ways it remembers: that is 1 for its like and below 0 for others, however long ago a
sketch came, where the plain cosine grows with the rounds. theta1 is for those who answered now; to the others goes the
mean of theirs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coterie.methods.p2p.base import Inbox
from coterie.methods.p2p.sketch import centred, cosines
from coterie.methods.p2p.topology import NO_PEER, as_rows, members
from coterie.methods.panm.ours import discriminating

UPDATE, WAY = 0, 1
"""The two directions of a sketch: the last local update, and the way from the common initial model."""
_ENOUGH, _FARTHER = 3, 1.5  # strides
_NEARLY_ONE, _TIMES = 0.15, 5.0


@dataclass(frozen=True)
class Compared:
    """Whom peers compare themselves with: keys [C, w], which of them count, and which answered in this round."""

    keys: Tensor
    valid: Tensor
    came: Tensor
    sketches: Tensor | None = None


def compared(inbox: Inbox) -> Compared:
    """The paper: those who answered."""
    return Compared(inbox.keys, inbox.mask, inbox.mask)


def recalled(inbox: Inbox, met: Tensor, looks: Tensor) -> Compared:
    """Those who answered, and behind them those who did not and are remembered."""
    assert inbox.sketches is not None
    again = ((met[:, :, None] == inbox.keys[:, None, :]) & inbox.mask[:, None, :]).any(2)
    sleeping = (met != NO_PEER) & ~again
    came = torch.cat([inbox.mask, torch.zeros_like(sleeping)], 1)
    return Compared(
        keys=torch.cat([inbox.keys, met], 1),
        valid=torch.cat([inbox.mask, sleeping], 1),
        came=came,
        sketches=torch.cat([inbox.sketches[inbox.index.clamp_min(0)], looks[:, : met.shape[1]]], 1),
    )


def by_sketch(own: Tensor, seen: Compared, alpha: float, known: Tensor | None) -> Tensor:
    """alpha theta1 + (1 - alpha) theta2 from sketches, [C, w]; 0 where there is none (see `similarity.directions`)."""
    assert seen.sketches is not None
    angles = torch.zeros(2, *seen.keys.shape, dtype=torch.float64)
    for peer, (valid, came) in enumerate(zip(seen.valid, seen.came, strict=True)):
        if not bool(valid.any()):
            continue
        theirs = torch.cat([own[peer : peer + 1], seen.sketches[peer][valid]]).numpy()
        angles[WAY, peer, valid] = torch.from_numpy(centred(cosines(theirs[:, WAY]))[0, 1:])
        now = torch.from_numpy(cosines(theirs[:, UPDATE])[0, 1:])
        fresh = came[valid]
        angles[UPDATE, peer, valid] = torch.where(fresh, now, now[fresh].mean() if bool(fresh.any()) else 0.0)
    weight = alpha if known is None else discriminating(angles[UPDATE], angles[WAY], seen.valid, known, alpha)[:, None]
    return weight * angles[UPDATE] + (1 - weight) * angles[WAY]


def undivided(own: Tensor, seen: Compared, same: Tensor) -> Tensor:
    """Which peers see no groups at all, [C]: all ways that they remember are nearly one (mean cosine above 0.85), and
    those called other are not even five times as far as those called the same.

    Without this the peers of one group fall into cliques: who was averaged once is nearer from then on.
    """
    assert seen.sketches is not None
    found = torch.zeros(len(same), dtype=torch.bool)
    for peer, valid in enumerate(seen.valid):
        if int(valid.sum()) < _ENOUGH:
            continue
        ways = torch.cat([own[peer : peer + 1], seen.sketches[peer][valid]])[:, WAY]
        apart = 1 - torch.from_numpy(cosines(ways.numpy())[0, 1:])
        alike = same[peer][valid]
        other = apart[~alike].mean() if bool((~alike).any()) else torch.tensor(0.0)
        found[peer] = bool(apart.mean() < _NEARLY_ONE) and not bool(other > _TIMES * apart[alike].mean())
    return found


def remembered(seen: Compared, looked: Tensor, met: Tensor, looks: Tensor) -> tuple[Tensor, Tensor]:
    """The peers met last and their sketches, as many as there is room for; nothing new for those who did not look."""
    assert seen.sketches is not None
    room, after, lists = looks.shape[1], looks.clone(), []
    for peer, valid in enumerate(seen.valid):
        if not bool(looked[peer]):
            lists.append(members(met[peer]))
            continue
        kept = valid.nonzero()[:room, 0]
        after[peer] = 0
        after[peer, : len(kept)] = seen.sketches[peer][kept]
        lists.append(seen.keys[peer][kept].numpy())
    return as_rows(lists, room), after


def strayed(strides: Tensor, stride: Tensor, times: float) -> Tensor:
    """Which peers have gone so much farther in their training than they do, [C], that their data must have changed.

    `strides` [C, 1 + n] are the first one and the last n, 0 where there was none. To unlearn other data and learn its
    own a model goes farther than it went from the beginning, and many times as far as those go that know their data
    (the median of the last ones). With fewer than three of these no peer is judged.
    """
    last = torch.where(strides[:, 1:] > 0, strides[:, 1:], torch.nan)
    enough = (strides[:, 1:] > 0).sum(1) >= _ENOUGH
    return enough & (stride > _FARTHER * strides[:, 0]) & (stride > times * last.nanmedian(1).values.nan_to_num())


def walked(strides: Tensor, stride: Tensor) -> Tensor:
    """The strides after one more."""
    first = torch.where(strides[:, 0] > 0, strides[:, 0], stride)
    return torch.cat([first[:, None], stride[:, None], strides[:, 1:-1]], 1)


def answering(rate: Tensor, asked: Tensor, came: Tensor, looked: Tensor) -> Tensor:
    """The share of those asked that answer, [C], as far as a peer has seen lately."""
    share = came.sum(1) / asked.sum(1).clamp_min(1)
    fresh = looked & asked.any(1)
    return torch.where(fresh, 0.3 * rate + 0.7 * share, rate)


def to_ask(number: int, rate: float) -> int:
    """How many to ask so that so many answer."""
    return int(np.ceil(number / max(rate, 0.1) - 1e-9))

"""Bits that clients are asked for: their embeddings and (ours) which classes they hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from coterie.core.cohort import Cohort
from coterie.core.federation import Federation
from coterie.core.samples import ClientId
from coterie.methods.embedding.bits import Bits, packing_flaws, unpack_bits
from coterie.methods.embedding.clustering.mixture import presence
from coterie.methods.embedding.clustering.ward import Floats
from coterie.methods.embedding.messages import Embedded, WhichClasses

_MOST_FLIPS = 0.3  # with more of them, what clients say of their classes says nothing


def bits_told(
    fed: Federation, ids: Sequence[ClientId], ask: Callable[[Cohort, Any], Embedded], sent: Any, length: int
) -> tuple[list[ClientId], Bits]:
    """So many bits of those who answered (in the order of their names), the bad ones left out."""
    replies = fed.ask(ask, sorted(ids), same=sent)
    if replies.value is None:
        return [], np.zeros((0, length), np.uint8)
    flaws = packing_flaws(replies.value.bits, length)
    for i, reason in flaws.items():
        fed.refuse(replies.ids[i], reason)
    good = [i for i in range(len(replies.ids)) if i not in flaws]
    if not good:
        return [], np.zeros((0, length), np.uint8)
    return [replies.ids[i] for i in good], unpack_bits(replies.value.bits[good], length)


def classes_held(
    fed: Federation,
    ids: Sequence[ClientId],
    ask: Callable[[Cohort, WhichClasses], Embedded],
    flip_of: Callable[[ClientId], float],
) -> Floats | None:
    """How probable it is that each client holds each class; of one that does not tell, what is usual."""
    there, said = bits_told(fed, ids, ask, WhichClasses(fed.task.classes), fed.task.classes)
    flips = np.array([flip_of(client) for client in there])
    if not there or flips.mean() > _MOST_FLIPS:
        return None
    found = presence(said, flips)
    known: dict[ClientId, Floats] = dict(zip(there, found, strict=True))
    return np.stack([known.get(client, found.mean(0)) for client in ids])

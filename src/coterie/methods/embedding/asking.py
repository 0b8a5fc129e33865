"""Bits that clients are asked for: their embeddings and (ours) which classes they hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.core.cohort import Cohort
from coterie.core.federation import Federation
from coterie.core.rng import rng
from coterie.core.samples import ClientId
from coterie.methods.embedding.autoencoder import Encoder
from coterie.methods.embedding.bits import Bits, packing_flaws, unpack_bits
from coterie.methods.embedding.clustering.ward import Floats
from coterie.methods.embedding.copies import read, usual_bits
from coterie.methods.embedding.messages import Embedded

_MOST_FLIPS = 0.3  # with more of them, what clients say of their classes says nothing
_HOLDS = 0.5


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


@dataclass(frozen=True)
class EmbeddingQuestion:
    """How clients are asked for embeddings with the classes they hold, and how the answers are read."""

    ask: Callable[[Cohort, Encoder], Embedded]
    instead: Callable[[Cohort, Encoder], Embedded]
    """For those who do not answer it: one that refuses to tell labels sends an embedding in which none show."""
    flip_of: Callable[[ClientId], float]
    classes: int
    copies: int


@dataclass(frozen=True)
class Told:
    """Whose embeddings came, their bits as read, how probable it is that each holds each class, the usual bits.

    `ones` is how probable a 1 is in each of the bits, where it is known.
    """

    ids: list[ClientId]
    bits: Bits
    held: Floats | None = None
    usual: Floats | None = None
    ones: Floats | None = None


def embeddings_told(
    fed: Federation, ids: Sequence[ClientId], question: EmbeddingQuestion, sent: Encoder, usual: Floats | None
) -> Told:
    """The embeddings of those who answered, with coins for the classes that they lack, as if these had been sent."""
    classes, length = question.classes, sent.code * question.classes
    there, answers = bits_told(fed, ids, question.ask, sent, length + classes)
    others, plain = bits_told(fed, sorted(set(ids) - set(there)), question.instead, sent, length)
    if not there:
        return Told(others, plain, None, usual)
    flips = np.array([question.flip_of(client) for client in there])
    blocks, said = answers[:, :length].reshape(len(there), classes, -1), answers[:, length:]
    if usual is None:
        usual = usual_bits(blocks, said, flips, question.copies)
    found = read(blocks, said, flips, question.copies, usual)
    bits = np.where((found.held > _HOLDS)[:, :, None], found.bits, _coins(there, blocks.shape[1:]))
    every, order = [*there, *others], np.argsort([*there, *others], kind="stable")
    known = np.concatenate([found.held, np.repeat(found.held.mean(0)[None], len(others), 0)])
    return Told(
        [every[i] for i in order],
        np.concatenate([bits.reshape(len(there), -1), plain])[order],
        known[order] if flips.mean() <= _MOST_FLIPS else None,
        usual,
        np.concatenate([found.ones.reshape(len(there), -1), plain])[order],
    )


def _coins(ids: Sequence[ClientId], shape: tuple[int, ...]) -> Bits:
    """Random bits of every client, the same whenever it is asked: its embedding changes only with its data."""
    return np.stack([rng(0, "classes that are not held", client).integers(0, 2, shape, np.uint8) for client in ids])

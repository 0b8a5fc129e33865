"""Ours: what a client sends in the place of classes that it lacks, and how the server reads it.

Noise there (the paper's) is bits that say nothing: of 200 bits of a client with two classes 160. Here such a place
carries the bits of the next class that the client has (after the last, of the last), inverted, so that it is not taken
for a class, and each flipped by a coin of its own. No bit of a code is sent more than `copies` times; places beyond are
0. The number of bits sent and the flip probability of each stay as they were.

The server weighs all sets of classes that a client may have: forward and backward over places, a step from one class
that is held to the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from coterie.methods.embedding.bits import Bits
from coterie.methods.embedding.clustering.mixture import presence
from coterie.methods.embedding.clustering.ward import Floats

_PASSES = 4
_LEAST = 0.03
_FEWEST_FLIPS = 1e-3


def filled(bits: Bits, held: Bits, copies: int) -> Bits:
    """The bits [classes * code] with something else in the place of the classes that are not held."""
    blocks = bits.reshape(len(held), -1)
    places = np.flatnonzero(held).tolist()
    out = np.zeros_like(blocks)
    for number, place in enumerate(places):
        last = number == len(places) - 1
        after = min(len(held) - 1 - place, copies - 1) if last else 0
        free = place - places[number - 1] - 1 if number else place
        before = min(free, copies - 1 - after)
        out[place - before : place + after + 1] = 1 - blocks[place]
        out[place] = blocks[place]
    return out.reshape(-1)


@dataclass(frozen=True)
class ReadBits:
    """The bits that clients probably have [N, classes, code], and how probable it is that they hold a class [N, C].

    `ones` is how probable a 1 is in each bit of a class if it is held: a bit that was sent once says less than one of
    which three copies agree, and two copies that do not agree leave it to what is usual.
    """

    bits: Bits
    held: Floats
    ones: Floats


def usual_bits(sent: Bits, said: Bits, flips: Floats, copies: int) -> Floats:
    """How probable a 1 is in each bit of a class among clients that hold it, before any flips, and that one holds it.

    [C, L + 1]: the latter is the last column.
    """
    noise = np.clip(flips, _FEWEST_FLIPS, 0.49)[:, None, None]
    value, held = (sent - noise) / (1 - 2 * noise), presence(said, flips)
    for turn in range(_PASSES):
        share = ((value * held[:, :, None]).sum(0) + 1) / (held.sum(0) + 2)[:, None]
        usual = np.clip(np.concatenate([share, _share_that_hold(held)[:, None]], 1), _LEAST, 1 - _LEAST)
        if turn < _PASSES - 1:
            held, odds = _Lattice(sent, said, flips, copies, usual).read()
            value = _probable(odds)
    return np.asarray(usual)


def _share_that_hold(held: Floats) -> Floats:
    return np.asarray((held.sum(0) + 1) / (len(held) + 2))


def read(sent: Bits, said: Bits, flips: Floats, copies: int, usual: Floats) -> ReadBits:
    """What clients [N, C, L] sent, read by what is usual (`usual_bits`); each client's reading is its own."""
    held, odds = _Lattice(sent, said, flips, copies, usual).read()
    bits = np.where(np.abs(odds) < 1e-6, sent, odds > 0).astype(np.uint8)
    share = usual[:, :-1]
    return ReadBits(bits, held, _probable(odds + np.log(share / (1 - share))))


def _probable(odds: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-np.clip(odds, -30, 30))))


@dataclass(frozen=True)
class _Lattice:
    """The sets of classes that clients may hold, as paths from class to class."""

    sent: Bits
    said: Bits
    flips: Floats
    copies: int
    usual: Floats

    @cached_property
    def _logs(self) -> tuple[Floats, Floats]:
        """Of a bit as it was and of a flipped one, [N]."""
        noise = np.clip(self.flips, _FEWEST_FLIPS, 0.49)
        return np.log(1 - noise), np.log(noise)

    @cached_property
    def _empty(self) -> Floats:
        """How likely what was sent and said is if the first places, so many, are 0 or (bits apart) not held."""
        kept, turned = (each[:, None] for each in self._logs)
        ones = self.sent.sum(2)
        zero = ones * turned + (self.sent.shape[2] - ones) * kept
        absent = np.where(self.said, turned, kept) + np.log(1 - self.usual[:, -1])
        start = np.zeros((len(ones), 1))
        return np.stack([np.concatenate([start, each.cumsum(1)], 1) for each in (zero, absent)])

    def _alike(self, place: int, before: int, after: int) -> tuple[Floats, Floats]:
        """The likelihood of a class that is held, with copies so far before and after it, and its bits' log odds."""
        kept, turned = (each[:, None] for each in self._logs)
        block = self.sent[:, place - before : place + after + 1].astype(np.float64)
        number = before + after + 1
        ones = 2 * self.sent[:, place] - 1.0 + number - block.sum(1)  # the copies are inverted
        prior, share = self.usual[place, :-1], self.usual[place, -1]
        one = np.log(prior) + ones * kept + (number - ones) * turned
        none = np.log(1 - prior) + (number - ones) * kept + ones * turned
        told = np.where(self.said[:, place], kept[:, 0], turned[:, 0]) + np.log(share)
        return np.logaddexp(one, none).sum(1) + told, (2 * ones - number) * (kept - turned)

    def _steps(self, *, last: bool) -> Iterator[tuple[int, int, Floats, Floats]]:
        """(first place, the next class held, likelihood, odds of its bits), for classes that others follow or not."""
        zero, absent = self._empty
        classes = self.sent.shape[1]
        for place in range(classes):
            after = min(classes - 1 - place, self.copies - 1) if last else 0
            end = classes if last else place + 1
            tail = zero[:, end] - zero[:, place + after + 1] + absent[:, end] - absent[:, place + 1]
            most = self.copies - 1 - after
            for before in range(min(place, most) + 1):
                likely, odds = self._alike(place, before, after)
                # more places before the class than copies are 0
                firsts = [place - before] if before < most else range(place - before + 1)
                for first in firsts:
                    head = zero[:, place - before] - zero[:, first] + absent[:, place] - absent[:, first]
                    yield first, place, likely + head + tail, odds

    def read(self) -> tuple[Floats, Floats]:
        """How probable it is that each class is held [N, C], and the log odds of its bits if it is [N, C, L]."""
        number, classes, _ = self.sent.shape
        inner, final = list(self._steps(last=False)), list(self._steps(last=True))
        forward, backward = (np.full((classes + 1, number), -np.inf) for _ in range(2))
        forward[0] = 0
        for first, place, likely, _ in inner:
            forward[place + 1] = np.logaddexp(forward[place + 1], forward[first] + likely)
        for first, _, likely, _ in final:
            backward[first] = np.logaddexp(backward[first], likely)
        for first, place, likely, _ in sorted(inner, key=lambda step: -step[1]):
            backward[first] = np.logaddexp(backward[first], likely + backward[place + 1])
        nothing = self._empty[:, :, -1].sum(0)
        total = np.logaddexp(backward[0], nothing)
        held, odds = np.zeros((number, classes)), np.zeros(self.sent.shape)
        for steps, rest in ((inner, backward), (final, np.zeros_like(backward))):
            for first, place, likely, own in steps:
                share = np.exp(forward[first] + likely + rest[place + 1] - total)
                held[:, place] += share
                odds[:, place] += share[:, None] * own
        return np.clip(held, 0, 1), odds / np.maximum(held, 1e-9)[:, :, None]

"""What clients send in the place of classes that they lack, and how it is read."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from coterie.core.rng import rng
from coterie.core.task import Task
from coterie.data import build
from coterie.methods.embedding.bits import flip
from coterie.methods.embedding.copies import filled, read, usual_bits
from coterie.methods.embedding.method import Embedding
from coterie.simulation.simulator import Simulator

from ..tiny import small_net


def bits(text: str) -> np.ndarray:
    return np.array([int(letter) for letter in text.replace(" ", "")], np.uint8)


@pytest.mark.parametrize(
    ("held", "copies", "sent"),
    [
        ("11111", 3, "01 11 00 10 01"),
        ("00010", 1, "00 00 00 10 00"),
        ("00010", 2, "00 00 00 10 01"),  # one copy, inverted, is all; after the last class comes first
        ("00010", 3, "00 00 01 10 01"),
        ("01001", 2, "00 11 00 10 01"),
        ("01001", 3, "00 11 10 10 01"),
        ("10000", 3, "01 10 10 00 00"),
        ("00000", 3, "00 00 00 00 00"),
    ],
)
def test_filled_by_hand(held: str, copies: int, sent: str) -> None:
    assert filled(bits("01 11 00 10 01"), bits(held), copies).tolist() == bits(sent).tolist()


def test_no_code_is_sent_more_often_than_allowed() -> None:
    """Codes of which no two are equal or inverse: each is seen at most so often, either way round."""
    codes = np.eye(9, dtype=np.uint8)
    for case, copies in product(range(1, 512, 5), (1, 2, 3, 4)):
        held = np.array([case >> place & 1 for place in range(9)], np.uint8)
        sent = filled(codes.reshape(-1), held, copies).reshape(9, 9)
        for place in np.flatnonzero(held):
            assert sent[place].tolist() == codes[place].tolist()
            seen = sum(block.tolist() in (codes[place].tolist(), (1 - codes[place]).tolist()) for block in sent)
            assert 1 <= seen <= copies


def test_reading_is_what_all_possible_clients_together_say() -> None:
    """Four classes of two bits: every set of classes and all their bits, with what each of them would have sent."""
    classes, code, noise, copies = 4, 2, 0.2, 2
    known = rng(1, "usual").uniform(0.1, 0.9, (classes, code + 1))
    usual, share = known[:, :-1], known[:, -1]
    sent = rng(2, "sent").integers(0, 2, (1, classes, code)).astype(np.uint8)
    said = bits("0110")[None]
    held, ones, total = np.zeros(classes), np.zeros((classes, code)), 0.0
    for own in product((0, 1), repeat=classes):
        free = int(sum(own)) * code
        for values in product((0, 1), repeat=free):
            has = np.zeros((classes, code), np.uint8)
            has[np.array(own) > 0] = np.array(values, np.uint8).reshape(-1, code)
            prior = np.prod(np.where(has, usual, 1 - usual)[np.array(own) > 0])
            same = filled(has.reshape(-1), np.array(own, np.uint8), copies) == sent.reshape(-1)
            told = np.concatenate([same, np.array(own) == said[0]])
            weight = prior * np.prod(np.where(told, 1 - noise, noise)) * np.prod(np.where(own, share, 1 - share))
            held, ones, total = held + weight * np.array(own), ones + weight * has, total + weight
    found = read(sent, said, np.array([noise]), copies, known)
    assert found.held[0] == pytest.approx(held / total)
    assert 0.05 < found.held.min() < found.held.max() < 0.95  # a case in which nothing is clear


def test_codes_are_read_better_than_they_were_sent() -> None:
    """30 clients with a fifth of ten classes; a tenth of all bits flipped."""
    g = rng(0, "copies")
    usual = np.where(g.random((10, 20)) < 0.5, 0.95, 0.05)
    has = (g.random((30, 10, 20)) < usual).astype(np.uint8)
    held = (g.random((30, 10)) < 0.2).astype(np.uint8)
    sent = np.stack([flip(filled(own.reshape(-1), h, 3), 0.1, g) for own, h in zip(has, held, strict=True)])
    said, flips = np.stack([flip(own, 0.1, g) for own in held]), np.full(30, 0.1)
    blocks = sent.reshape(has.shape)
    found = read(blocks, said, flips, 3, usual_bits(blocks, said, flips, 3))
    assert np.abs(found.held - held).mean() < 0.01 < np.abs(said - 1.0 * held).mean()
    there = held > 0
    assert (found.bits != has)[there].mean() < 0.6 * (blocks != has)[there].mean()


def test_clients_with_two_or_three_classes_end_to_end() -> None:
    """Asked again, clients with the same data have the same embeddings, whoever else is asked."""
    population = build("rotated-digits", seed=44, alpha=0.5, test_samples=10)
    method = Embedding()
    fed = Simulator(method, Task.of(small_net, population), population, seed=44)
    state = method.init(fed)
    some = method._embeddings(state, fed, population.ids[5:8])
    fed.close()
    truth = [population.group(client) for client in population.ids]
    assert adjusted_rand_score(truth, state.of(population.ids)) > 0.5
    for client, own in zip(some.ids, some.bits, strict=True):
        assert np.packbits(own).tolist() == state.bits[client].tolist()


def test_bits_are_as_probable_as_their_copies_and_what_is_usual_say() -> None:
    """Two classes, the first held, one copy, inverted, in the place of the second; 1 in 4 of usual bits is 1, P = 0.1.

    Two copies that say 1: odds of 81 to 1 times 1 to 3, 27 / 28. Two that say 0: 1 / (1 + 3 * 81). One that says 1 and
    one that says 0: what is usual, 1/4.
    """
    code = rng(4, "code").integers(0, 2, 40).astype(np.uint8)
    code[:3] = 1, 0, 1
    sent = np.stack([code, 1 - code])[None]
    sent[0, 1, 2] = 1  # a copy whose coin fell otherwise
    usual = np.concatenate([np.full((2, 40), 0.25), np.full((2, 1), 0.5)], 1)
    found = read(sent, bits("10")[None], np.array([0.1]), 2, usual)
    assert found.held[0] == pytest.approx([1.0, 0.0], abs=1e-3)
    assert found.ones[0, 0, :3] == pytest.approx([27 / 28, 1 / 244, 1 / 4], abs=1e-3)

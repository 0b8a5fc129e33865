"""Embedding's rule for clients that lack classes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from coterie.core.rng import rng
from coterie.core.task import Task
from coterie.data import build
from coterie.methods.embedding.bits import held_classes
from coterie.methods.embedding.clustering.mixture import benefit, groups_by_mixture, presence
from coterie.methods.embedding.clustering.rules import choose
from coterie.methods.embedding.method import Embedding
from coterie.simulation.simulator import Simulator

from ..tiny import small_net

CLASSES, CODE = 8, 12


def clients(groups: int, number: int = 32, share: float = 0.5) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Bits of clients that hold about half of the classes; a tenth of all bits and of what they say is flipped."""
    g = rng(3, "mixture test", groups)
    centres = g.integers(0, 2, (groups, CLASSES, CODE))
    truth = [i % groups for i in range(number)]
    held = g.random((number, CLASSES)) < share
    bits = np.where(held[:, :, None], centres[truth], g.integers(0, 2, (number, CLASSES, CODE)))
    bits ^= g.random(bits.shape) < 0.1
    said = held ^ (g.random(held.shape) < 0.1)
    return bits.reshape(number, -1).astype(np.uint8), said.astype(np.uint8), truth


def test_which_classes_are_held() -> None:
    """Labels 0, 0 and 2 of three classes; a label that the federation does not know has no place."""
    assert held_classes(torch.tensor([0, 0, 2, 7, -1]), 3).tolist() == [1, 0, 1]
    assert held_classes(torch.zeros(0, dtype=torch.int64), 2).tolist() == [0, 0]


def test_presence_by_hand() -> None:
    """Half of the bits are set, so half of the classes are held; flipped by 0.2, a set bit means 0.8, an unset 0.2."""
    said = np.array([[1, 0], [0, 1]], np.uint8)
    assert presence(said, np.array([0.2, 0.2])) == pytest.approx(np.array([[0.8, 0.2], [0.2, 0.8]]))
    # a client that flips half of its bits says nothing: what is known of all counts
    assert presence(said, np.array([0.0, 0.5]))[1] == pytest.approx([0.5, 0.5], abs=0.01)


def test_the_benefit_by_hand() -> None:
    """Four clients, two classes of one bit: two have 1 1, two have 0 0, all held, in groups as they should be.

    Without the client itself all have the mean (1 + 0.5) / 4 = 3/8 or (2 + 0.5) / 4 = 5/8 of the other bit: the bit of
    the client is foretold with 3/8. Its group's mean is (1 + 3/8) / 2 = 11/16, the other's 3/8 / 3 = 1/8. By the one
    other class the groups have odds 11 to 2, so the bit is foretold with (11/13) 11/16 + (2/13) 1/8 = 125/208. The
    benefit of both classes is 2 ln(125/208 / (3/8)).
    """
    x = np.array([[[1.0], [1.0]], [[1.0], [1.0]], [[0.0], [0.0]], [[0.0], [0.0]]])
    found = benefit(x, np.ones((4, 2)), np.array([0, 0, 1, 1]))
    assert found == pytest.approx(np.full(4, 2 * np.log((125 / 208) / (3 / 8))), rel=0.03)  # held is at most 0.99


def test_groups_are_found_where_clients_lack_half_of_the_classes() -> None:
    bits, said, truth = clients(3)
    held = presence(said, np.full(len(bits), 0.1))
    labels, scores = groups_by_mixture(bits, held, seed=0)
    assert adjusted_rand_score(truth, labels) == 1.0
    assert max(scores, key=lambda k: scores[k]) == 3
    # the default rule, which knows nothing of missing classes, is not sure of them
    assert adjusted_rand_score(truth, choose(bits, CLASSES).labels) < 1.0


def test_one_group_is_one_group() -> None:
    bits, said, _ = clients(1, number=20)
    assert choose(bits, CLASSES, "mixture", held=presence(said, np.full(len(bits), 0.1))).clusters == 1
    assert choose(bits, CLASSES, "mixture").clusters == 1


def test_a_skewed_federation_end_to_end() -> None:
    """Four rotations, labels by Dirichlet: 5 or 6 classes a client; what a client says has one more bit a class."""
    population = build("rotated-digits", seed=2, alpha=3.0, test_samples=10)
    method = Embedding(rule="mixture")
    fed = Simulator(method, Task.of(small_net, population), population, seed=2)
    state = method.init(fed)
    fed.close()
    truth = [population.group(client) for client in population.ids]
    assert adjusted_rand_score(truth, state.of(population.ids)) > 0.75
    plain = adjusted_rand_score(truth, choose(_bits(state), 10).labels)
    assert plain < 0.6
    assert all(len(bits) == 25 for bits in state.bits.values())


def _bits(state: object) -> np.ndarray:
    from coterie.methods.embedding.bits import unpack_bits
    from coterie.methods.embedding.messages import EmbeddedClusters

    assert isinstance(state, EmbeddedClusters)
    return unpack_bits(torch.stack([state.bits[client] for client in sorted(state.bits)]), 200)

"""The rules for the number of clusters, on bits whose groups are known."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

from coterie.core.errors import CoterieError
from coterie.core.rng import rng
from coterie.core.task import Task
from coterie.methods.embedding.clustering import rules
from coterie.methods.embedding.clustering.rules import RULES, choose
from coterie.methods.embedding.clustering.split_half import THRESHOLD, split_score
from coterie.methods.embedding.method import Embedding
from coterie.simulation.simulator import Simulator

from ..tiny import small_net, tiny_digits

CLASSES = 10


def embeddings(
    seed: int, groups: int, each: int, *, flips: float = 0.1, blurred: float = 0.2, code: int = 20
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Clients in groups: a pattern per group and class; some bits of a pattern are a coin toss of each client."""
    generator = rng(seed, "embeddings")
    length = CLASSES * code
    chance = np.where(generator.random((groups, length)) < blurred, 0.5, generator.random((groups, length)) < 0.5)
    truth = np.arange(groups * each) % groups
    bits = generator.random((len(truth), length)) < chance[truth]
    return (bits ^ (generator.random(bits.shape) < flips)).astype(np.uint8), truth


@pytest.mark.parametrize("groups", [1, 2, 4, 6])
@pytest.mark.parametrize("flips", [0.0, 0.1, 0.2])
def test_the_default_finds_the_groups_without_their_number(groups: int, flips: float) -> None:
    bits, truth = embeddings(groups, groups, 12, flips=flips)
    assert adjusted_rand_score(truth, choose(bits, CLASSES).labels) == 1.0


def test_the_default_invents_no_groups_in_noise() -> None:
    for seed in range(5):
        noise = (rng(seed, "noise").random((60, 200)) < 0.5).astype(np.uint8)
        assert choose(noise, CLASSES).clusters == 1


def test_clients_that_differ_within_classes_alone_are_one_group() -> None:
    """Within a class, bits may be as dependent as they like: here each client draws one of two patterns per class."""
    generator = rng(0, "dependent")
    patterns = generator.random((CLASSES, 2, 20)) < 0.5
    picks = generator.integers(0, 2, (60, CLASSES))
    bits = patterns[np.arange(CLASSES), picks].reshape(60, -1).astype(np.uint8)
    assert abs(split_score(bits, CLASSES)) < THRESHOLD
    assert choose(bits, CLASSES).clusters == 1


def test_clients_that_are_merely_noisier_are_no_group() -> None:
    """Missing classes are noise, and each client may have its own flip probability: neither makes a group."""
    for seed in range(3):
        bits, _ = embeddings(seed, 1, 50, flips=0.0, blurred=0.1)
        generator = rng(seed, "noisier")
        without = bits.copy()
        without[:8, 140:] = generator.integers(0, 2, (8, 60))
        assert choose(without, CLASSES).clusters == 1
        own = np.where(np.arange(50) % 3 == 0, 0.3, 0.02)[:, None]
        assert choose(bits ^ (generator.random(bits.shape) < own).astype(np.uint8), CLASSES).clusters == 1


def test_groups_that_differ_in_a_few_classes_are_found() -> None:
    """A pair of labels swapped per group, as in PANM: blocks 2g and 2g + 1 exchanged."""
    bits, _ = embeddings(0, 1, 60, flips=0.1, blurred=0.2)
    truth = np.arange(60) % 4
    for client, group in enumerate(truth):
        first, second = (slice(20 * (2 * group + i), 20 * (2 * group + i + 1)) for i in (0, 1))
        bits[client, first], bits[client, second] = bits[client, second].copy(), bits[client, first].copy()
    assert adjusted_rand_score(truth, choose(bits, CLASSES).labels) == 1.0


def test_large_nodes_are_judged_by_some_of_their_members() -> None:
    """More than 200 members, of whom 200 are drawn: in the whole and in both groups."""
    bits, truth = embeddings(0, 2, 210)
    assert adjusted_rand_score(truth, choose(bits, CLASSES).labels) == 1.0


@pytest.mark.parametrize("rule", ["paper", "bayes"])
def test_the_authors_rules_find_three_groups(rule: str) -> None:
    bits, truth = embeddings(1, 3, 12)
    assert adjusted_rand_score(truth, choose(bits, CLASSES, rule, min_size=10).labels) == 1.0


def test_the_authors_rule_takes_the_least_index_of_the_admissible_cuts() -> None:
    bits, _ = embeddings(2, 3, 10)
    choice = choose(bits, CLASSES, "paper", min_size=5)
    admissible = {k: choice.tree.calinski_harabasz[k - 1] for k in range(3, 30) if choice.tree.smallest[k - 1] >= 5}
    assert choice.clusters == min(admissible, key=lambda k: admissible[k])
    assert choice.scores == {k: -value for k, value in admissible.items()}


@pytest.mark.parametrize("rule", ["paper", "bayes", "silhouette"])
def test_where_no_cut_is_admissible_there_is_one_cluster(rule: str) -> None:
    bits, _ = embeddings(3, 2, 5)
    assert choose(bits, CLASSES, rule, min_size=9).clusters == 1


@pytest.mark.parametrize("rule", ["height_ratio", "calinski_harabasz", "silhouette"])
def test_the_plain_scores_find_two_clear_groups(rule: str) -> None:
    bits, truth = embeddings(4, 2, 10, flips=0.0, blurred=0.1)
    assert adjusted_rand_score(truth, choose(bits, CLASSES, rule).labels) == 1.0


def test_bayesian_optimisation_depends_on_its_seed_alone() -> None:
    bits, _ = embeddings(5, 4, 10)
    first, again = (choose(bits, CLASSES, "bayes", seed=7) for _ in range(2))
    assert first.scores == again.scores


@pytest.mark.parametrize("rule", RULES)
def test_one_client_equal_clients_and_few_clients(rule: str) -> None:
    assert choose(np.ones((1, 40), np.uint8), CLASSES, rule).labels.tolist() == [0]
    assert choose(np.ones((7, 40), np.uint8), CLASSES, rule).clusters == 1
    for clients in (2, 3, 5):
        labels = choose(embeddings(0, 1, clients)[0], CLASSES, rule).labels
        assert len(labels) == clients
        assert set(labels.tolist()) == set(range(labels.max() + 1))


def test_equal_members_of_two_groups_are_told_apart() -> None:
    bits = np.repeat(rng(0, "two").integers(0, 2, (2, 200)), 6, axis=0).astype(np.uint8)
    for rule in ("halves", "height_ratio", "calinski_harabasz", "silhouette"):
        assert choose(bits, CLASSES, rule).clusters == 2


def test_one_class_is_halved_by_bits() -> None:
    bits, truth = embeddings(0, 2, 12)
    assert adjusted_rand_score(truth, choose(bits, 1).labels) == 1.0


def test_refusals() -> None:
    bits, _ = embeddings(0, 1, 4)
    with pytest.raises(CoterieError, match="did you mean 'paper'"):
        choose(bits, CLASSES, "papr")
    with pytest.raises(CoterieError, match="least size"):
        choose(bits, CLASSES, min_size=-1)
    with pytest.raises(CoterieError, match="a row of bits"):
        choose(bits[:0], CLASSES)


def test_the_extra_that_bayes_needs_is_named_before_anything_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "find_spec", lambda name: None)
    population = tiny_digits()
    method = Embedding(rule="bayes")  # a client builds the method, too, and needs no package for it
    fed = Simulator(method, Task.of(small_net, population), population, seed=0)
    with pytest.raises(CoterieError, match=r"pip install 'coterie\[bayes\]'"):
        method.init(fed)
    assert fed.ledger.down["train"] == 0
    fed.close()
    bits, _ = embeddings(0, 2, 10)
    with pytest.raises(CoterieError, match="bayesian-optimization"):
        choose(bits, CLASSES, "bayes")
    assert choose(bits, CLASSES, "paper").clusters >= 1

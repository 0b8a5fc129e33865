"""Share the samples of one source out among its clients, by the name of a partition."""

from __future__ import annotations

from dataclasses import dataclass

from coterie.core.errors import CoterieError
from coterie.core.rng import rng
from coterie.core.samples import Samples

from .draws import BalancedBlocks, DirichletDraws, Draw, EqualBlocks, FixedRows
from .partition import Index, dirichlet, quantity, shards
from .pool import ArrayPool, rows_of
from .population import Source
from .sources.files import Split

_SHARDS = 2
_SMALLEST_CLIENT = 10
"""A random partition of all samples gives every client so many, where there are enough."""
_TEST_FRACTION = 0.2

WHOLE = ("dirichlet", "shards", "quantity")
"""The partitions that are made at once for all clients and give out every sample."""


@dataclass(frozen=True)
class Sharing:
    """How one source is shared out; None for a number of samples means an equal share of what there is."""

    partition: str
    clients: int
    samples: int | None
    test_samples: int | None
    alpha: float | None
    classes: int
    seed: int
    repeat: bool = False
    domain: str = ""


def share_split(split: Split, how: Sharing) -> Source:
    """Training and test samples apart. A client's test part has the label mix of the test set, not its own.

    Only the balanced partition balances it, and the Dirichlet cut is drawn for the test set once more,
    independently (as in the embedding-clustering paper).
    """
    train, test = split.train.y.numpy(), split.test.y.numpy()
    return Source(ArrayPool(split.train), ArrayPool(split.test), _train_rows(train, how), _test_rows(test, how))


def share_own_test(samples: Samples, how: Sharing) -> Source:
    """A source without an official split: a fifth is for testing, of each client's share where the partition
    cuts all samples, else of the whole."""
    labels = samples.y.numpy()
    g = rng(how.seed, "held-out", how.domain)
    if how.partition not in WHOLE:
        order, cut = g.permutation(len(labels)), round(_TEST_FRACTION * len(labels))
        return share_split(Split(rows_of(samples, order[cut:]), rows_of(samples, order[:cut])), how)
    _check_fits(how, how.samples or 0, round((1 - _TEST_FRACTION) * len(labels)))
    train, test = [], []
    for number, rows in enumerate(_cut(labels, how, "own")):
        order = rng(how.seed, "held-out", how.domain, number).permutation(rows)
        cut = max(1, round(_TEST_FRACTION * len(rows)))
        test.append(order[:cut][: how.test_samples])
        train.append(order[cut:][: how.samples])
    pool = ArrayPool(samples)
    return Source(pool, pool, FixedRows.of(train), FixedRows.of(test))


def _train_rows(labels: Index, how: Sharing) -> Draw:
    purpose = f"train-{how.domain}"
    if how.partition in WHOLE:
        return FixedRows.of(_cut_some(labels, how, how.samples, purpose))
    size = how.samples or _equal_share(len(labels), how.clients)
    match how.partition:
        case "equal":
            return EqualBlocks(len(labels), size, how.seed, purpose)
        case "balanced":
            return BalancedBlocks(labels, how.classes, size, how.seed, purpose)
        case _:
            return DirichletDraws(labels, how.classes, size, how.alpha or 0.0, how.seed, purpose, repeat=how.repeat)


def _test_rows(labels: Index, how: Sharing) -> Draw:
    purpose = f"test-{how.domain}"
    fits = how.test_samples is None or how.test_samples * how.clients <= len(labels)
    if how.partition == "dirichlet" and fits:
        return FixedRows.of(_cut_some(labels, how, how.test_samples, purpose))
    size = how.test_samples or _equal_share(len(labels), how.clients)
    if how.partition == "balanced":
        return BalancedBlocks(labels, how.classes, size, how.seed, purpose)
    return EqualBlocks(len(labels), size, how.seed, purpose)


def _cut_some(labels: Index, how: Sharing, samples: int | None, purpose: str) -> list[Index]:
    """All rows shared out, or as many of them, taken at random, as make `samples` a client on average."""
    if samples is None:
        return _cut(labels, how, purpose)
    _check_fits(how, samples, len(labels))
    some = rng(how.seed, f"{purpose}-some").permutation(len(labels))[: samples * how.clients]
    return [some[rows] for rows in _cut(labels[some], how, purpose)]


def _cut(labels: Index, how: Sharing, purpose: str) -> list[Index]:
    g = rng(how.seed, purpose, how.domain)
    smallest = min(_SMALLEST_CLIENT, max(1, len(labels) // how.clients // 2))
    match how.partition:
        case "dirichlet":
            return dirichlet(labels, how.clients, how.alpha or 0.0, g, smallest=smallest)
        case "quantity":
            return quantity(len(labels), how.clients, how.alpha or 0.0, g, smallest=smallest)
        case _:
            return shards(labels, how.clients, _SHARDS, g)


def _equal_share(n: int, clients: int) -> int:
    return max(1, n // clients)


def _check_fits(how: Sharing, samples: int, n: int) -> None:
    if samples * how.clients > n:
        raise CoterieError(
            f"{how.clients} clients with {samples} samples each need {samples * how.clients} and there are {n}; ask "
            "for less, or for a partition that lets clients share samples (balanced, dirichlet-client)."
        )

"""How samples are shared out among clients: pure functions from labels and a generator to row numbers.

Those that return a list promise that no row is given to two clients. `dirichlet_draw` makes one client's
rows alone, so that clients may share rows and an absent client changes no other client's.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coterie.core.errors import CoterieError

Index = npt.NDArray[np.int64]

_ATTEMPTS = 200
"""Random partitions with a smallest size are drawn again at most so often."""


def equal(n: int, clients: int, g: np.random.Generator, *, size: int | None = None) -> list[Index]:
    """Random parts of equal size; without a size all n rows are given out (sizes then differ by one at most)."""
    _check_clients(n, clients)
    order = g.permutation(n)
    if size is None:
        return [np.asarray(part, np.int64) for part in np.array_split(order, clients)]
    if size * clients > n:
        raise CoterieError(
            f"{clients} clients with {size} samples each need {size * clients} and there are {n}; ask for less."
        )
    return [np.asarray(order[i * size : (i + 1) * size], np.int64) for i in range(clients)]


def balanced(labels: Index, clients: int, size: int, g: np.random.Generator) -> list[Index]:
    """Clients of one size with all classes alike; where classes do not divide the size, counts differ by one."""
    _check_clients(len(labels), clients)
    members = by_owner(labels)
    orders = {label: g.permutation(rows) for label, rows in members.items()}
    width = -(-size // len(members))
    smallest = min(members, key=lambda label: len(members[label]))
    if width * clients > len(members[smallest]):
        raise CoterieError(
            f"{clients} class-balanced clients with {size} samples each need {width * clients} of class {smallest} "
            f"and there are {len(members[smallest])}; ask for less."
        )
    return [
        np.concatenate(
            [
                order[i * width : i * width + count]
                for order, count in zip(orders.values(), balanced_counts(i, size, len(members)), strict=True)
            ]
        )
        for i in range(clients)
    ]


def balanced_counts(number: int, size: int, classes: int) -> list[int]:
    """How many samples of each class a client of this number has; the odd ones go round from client to client."""
    even, odd = divmod(size, classes)
    return [even + ((label - number * odd) % classes < odd) for label in range(classes)]


def dirichlet(labels: Index, clients: int, alpha: float, g: np.random.Generator, *, smallest: int = 10) -> list[Index]:
    """Each class is cut among the clients by a draw of Dirichlet(alpha, ..., alpha); all rows are given out.

    A client that already holds its equal share gets no more classes, and the whole is drawn again until
    every client has `smallest` samples.
    """
    _check_alpha(alpha)
    _check_clients(len(labels), clients, smallest)
    share = len(labels) / clients
    for _ in range(_ATTEMPTS):
        parts: list[list[Index]] = [[] for _ in range(clients)]
        held = np.zeros(clients, np.int64)
        for rows in by_owner(labels).values():
            weights = g.dirichlet(np.full(clients, alpha)) * (held < share)
            total = weights.sum()
            weights = weights / total if total > 0 else np.full(clients, 1 / clients)
            cuts = (np.cumsum(weights)[:-1] * len(rows)).astype(np.int64)
            for i, part in enumerate(np.split(g.permutation(rows), cuts)):
                parts[i].append(part)
                held[i] += len(part)
        if held.min() >= smallest:
            return [g.permutation(np.concatenate(part)) for part in parts]
    raise CoterieError(
        f"No Dirichlet({alpha:g}) partition gave each of {clients} clients {smallest} samples; raise alpha or ask "
        "for fewer clients."
    )


def dirichlet_draw(
    members: list[Index], alpha: float, size: int, g: np.random.Generator, *, labels: tuple[int, ...] = ()
) -> Index:
    """One client's rows: its class shares are a draw of Dirichlet(alpha * p), p uniform and summing to one.

    So each of C classes has the concentration alpha / C. `members` are the rows of each class; `labels`
    renames them where the shares are meant for classes after a label shift. A class that is asked for more
    rows than it has repeats them.
    """
    _check_alpha(alpha)
    classes = len(members)
    shares = g.dirichlet(np.full(classes, alpha / classes))
    if not np.isfinite(shares).all():  # numpy's draw breaks down for tiny concentrations, whose limit is one class
        shares = np.eye(classes)[g.integers(classes)]
    present = np.array([len(rows) > 0 for rows in members])
    counts_after = g.multinomial(size, shares)
    counts = counts_after[np.asarray(labels)] if labels else counts_after
    counts = np.where(present, counts, 0)
    lost = size - int(counts.sum())
    if lost:  # a class without a single row: its share goes to the others
        counts = counts + g.multinomial(lost, present / present.sum())
    drawn = [
        g.choice(rows, count, replace=bool(count > len(rows)))
        for rows, count in zip(members, counts, strict=True)
        if count
    ]
    return np.asarray(g.permutation(np.concatenate(drawn)), np.int64)


def shards(labels: Index, clients: int, per_client: int, g: np.random.Generator) -> list[Index]:
    """Rows sorted by label are cut into clients * per_client shards; each client is dealt per_client of them."""
    if per_client < 1:
        raise CoterieError(f"A client gets at least one shard and {per_client} was asked for; ask for more.")
    _check_clients(len(labels), clients, per_client)
    order = np.argsort(labels, kind="stable")
    cut = np.array_split(order, clients * per_client)
    dealt = g.permutation(len(cut)).reshape(clients, per_client)
    return [np.concatenate([cut[shard] for shard in hand]).astype(np.int64) for hand in dealt]


def quantity(n: int, clients: int, alpha: float, g: np.random.Generator, *, smallest: int = 10) -> list[Index]:
    """Quantity skew: labels at random, sizes by one draw of Dirichlet(alpha) over the clients; all rows given out."""
    _check_alpha(alpha)
    _check_clients(n, clients, smallest)
    shares = g.dirichlet(np.full(clients, alpha))
    if not np.isfinite(shares).all():
        shares = np.eye(clients)[g.integers(clients)]
    cuts = (np.cumsum(shares)[:-1] * (n - smallest * clients)).astype(np.int64)
    cuts = cuts + smallest * np.arange(1, clients)
    return [np.asarray(part, np.int64) for part in np.split(g.permutation(n), np.clip(cuts, 0, n))]


def by_owner(owners: npt.NDArray[np.int64]) -> dict[int, Index]:
    """The rows of each writer, domain or class, by its number; rows stay in order."""
    order = np.argsort(owners, kind="stable").astype(np.int64)
    names, starts = np.unique(owners[order], return_index=True)
    return {int(name): rows for name, rows in zip(names, np.split(order, starts[1:]), strict=True)}


def _check_alpha(alpha: float) -> None:
    if not (alpha > 0 and np.isfinite(alpha)):
        raise CoterieError(f"alpha is {alpha} and must be a number above 0; small is uneven, 100 nearly even.")


def _check_clients(n: int, clients: int, smallest: int = 1) -> None:
    if clients < 1:
        raise CoterieError(f"There must be at least one client and {clients} were asked for.")
    if clients * smallest > n:
        raise CoterieError(
            f"{clients} clients with at least {smallest} samples each do not fit into {n} samples; ask for fewer "
            "clients, or for a partition that lets clients share samples (balanced, dirichlet-client)."
        )

"""Populations whose clients are real: the users of a LEAF folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from coterie.core.errors import CoterieError
from coterie.core.rng import rng
from coterie.core.samples import ClientId, Normalise, Samples

from .datasets import how
from .draws import FixedRows
from .partition import Index
from .pool import ArrayPool, FilePool, Pool, resized
from .population import LazyPopulation, Source
from .scenarios import Scenario
from .shift import Shift
from .sources.celeba import read_celeba
from .sources.leaf import Leaf, read_leaf

_TEST_FRACTION = 0.2
_GET = "make it with LEAF (github.com/TalwalkarLab/leaf, data/{name}/preprocess.sh), keep its folder data"


def build_users(scenario: Scenario, root: Path, seed: int, *, unseen: int | float, validation: float) -> LazyPopulation:
    """The users of the scenario's LEAF folder as clients, a random choice of them where fewer are asked for.

    Users that LEAF put into the test part only are `unseen_ids`, all their samples test samples; so are the
    `unseen` ones, chosen at random. A user in the training part only keeps a fifth for testing; one with a
    single sample is left out.
    """
    folder = root / scenario.folders[0]
    get = how(scenario.name, _GET.format(name=scenario.name))
    if not folder.is_dir():
        raise CoterieError(f"There is no folder {folder} for {scenario.name}; {get}.")
    if scenario.name == "celeba":
        users = _celeba(folder, get, scenario.image_size)
    else:
        users = leaf_users(read_leaf(folder, get), scenario.image_size)
    users.check_classes(scenario.classes, folder)
    return users.population(
        seed,
        normalise=scenario.normalise,
        classes=scenario.classes,
        clients=scenario.clients,
        samples=scenario.samples,
        test_samples=scenario.test_samples,
        unseen=unseen,
        validation=validation,
    )


@dataclass(frozen=True, eq=False)
class Users:
    """Who owns which rows of one pool, for training and for testing."""

    pool: Pool
    train: Mapping[ClientId, Index]
    test: Mapping[ClientId, Index]
    metadata: Index | None = None

    def check_classes(self, classes: int, folder: Path) -> None:
        """Refuse labels beyond the scenario's classes."""
        if self.pool.labels.max() >= classes:
            raise CoterieError(
                f"The labels in {folder} go up to {self.pool.labels.max()} and should be below {classes}; point at "
                "another folder or make it again."
            )

    def population(
        self,
        seed: int,
        *,
        normalise: Normalise,
        classes: int,
        clients: int | None = None,
        samples: int | None = None,
        test_samples: int | None = None,
        unseen: int | float = 0,
        validation: float = 0.0,
    ) -> LazyPopulation:
        """These users as clients (see `build_users`)."""
        train, test = self._parts(seed)
        strangers = sorted(set(self.test) - set(self.train))
        chosen, kept_back = _choose(sorted(train), seed, clients, unseen)
        everyone = [*chosen, *kept_back, *strangers]
        largest = max(len(train[user]) for user in chosen)
        if samples is not None and samples > largest:
            raise CoterieError(f"No user has {samples} training samples; ask for at most {largest}.")
        none = np.empty(0, np.int64)
        source = Source(
            self.pool,
            self.pool,
            FixedRows.of([_some(train.get(user, none), samples, seed, "train", user) for user in everyone]),
            FixedRows.of([_some(test[user], test_samples, seed, "test", user) for user in everyone]),
            self.metadata,
        )
        return LazyPopulation(
            ids=tuple(chosen),
            unseen_ids=(*kept_back, *strangers),
            sources=(source,),
            shifts=(Shift(),),
            classes=classes,
            normalise=normalise,
            seed=seed,
            validation=validation,
            has_groups=False,
            tests_alike=True,
        )

    def _parts(self, seed: int) -> tuple[dict[ClientId, Index], dict[ClientId, Index]]:
        """Training and test rows, with a fifth split off where a user has no test rows."""
        train, test = dict(self.train), dict(self.test)
        for user, rows in self.train.items():
            if user in test:
                continue
            if len(rows) < 2:
                del train[user]
                continue
            order = rng(seed, "held-out", user).permutation(rows)
            cut = max(1, round(_TEST_FRACTION * len(rows)))
            train[user], test[user] = np.sort(order[cut:]), np.sort(order[:cut])
        return train, test


def leaf_users(leaf: Leaf, image_size: int | None = None) -> Users:
    """The users of a LEAF folder; images are brought to a size where one is given."""
    train, test = leaf.train, leaf.test
    both = Samples(torch.cat([train.samples.x, test.samples.x]), torch.cat([train.samples.y, test.samples.y]))
    if image_size is not None:
        if both.x.dim() != 4:
            raise CoterieError("These LEAF data are not images; leave the image size out.")
        both = resized(both, image_size)
    offset = len(train.samples)
    return Users(ArrayPool(both), train.owners, {user: rows + offset for user, rows in test.owners.items()})


def _celeba(folder: Path, get: str, image_size: int) -> Users:
    found = read_celeba(folder, get)
    names = (*found.train.names, *found.test.names)
    labels = np.concatenate([found.train.labels, found.test.labels])
    pool = FilePool(found.images, names, labels, image_size, grey=False, how=get)
    offset = len(found.train.names)
    test = {user: rows + offset for user, rows in found.test.owners.items()}
    return Users(pool, found.train.owners, test, found.attributes.domains(names))


def _choose(
    users: list[ClientId], seed: int, clients: int | None, unseen: int | float
) -> tuple[list[ClientId], list[ClientId]]:
    """The users that take part and those kept back, each in the order of their names."""
    extra = unseen if isinstance(unseen, int) else round(unseen * (clients or len(users)))
    count = len(users) - extra if clients is None else clients
    if count < 1 or count + extra > len(users):
        raise CoterieError(
            f"{max(count, 0)} clients and {extra} unseen ones were asked for and there are {len(users)} users; ask "
            "for fewer."
        )
    order = rng(seed, "users").permutation(len(users))
    picks = np.sort(order[:count]), np.sort(order[count : count + extra])
    return [users[i] for i in picks[0]], [users[i] for i in picks[1]]


def _some(rows: Index, count: int | None, seed: int, part: str, user: ClientId) -> Index:
    """At most `count` of a user's rows, chosen at random."""
    if count is None or count >= len(rows):
        return rows
    return np.sort(rng(seed, "samples", part, user).permutation(rows)[:count])

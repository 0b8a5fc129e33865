"""One client's data as all clients of a run read theirs, where each of them is on a machine of its own.

In the simulator all tables are read together. Between machines every client reads its own, tells the words that it has,
and then reads it again in the terms that all have agreed on; the numbers are those of the simulator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from coterie.core.errors import CoterieError
from coterie.core.samples import ClientData, Population, Samples
from coterie.core.targets import TaskKind

from .labels import are_whole, class_numbers, sorted_names
from .own import OwnPopulation, described
from .scaling import InputMoments
from .schema import Column, schema_of


@dataclass(frozen=True)
class Terms:
    """What all clients of a run have agreed on about their data."""

    task: TaskKind
    classes: int
    class_names: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()


def agreed(population: Population, terms: Terms) -> Population:
    """One client's data in these terms; what cannot be said in them is refused with a sentence."""
    own = schema_of(population)
    if not isinstance(population, OwnPopulation):
        if own.class_names != terms.class_names:
            raise _other_labels(own.class_names)
        return population
    if terms.columns and _plain(own.columns) != _plain(terms.columns):
        if population.reread is None:
            raise CoterieError("The columns of the run's tables are others than those of the data here.")
        population = population.reread(terms.columns)
    if terms.task in ("classification", "binary"):
        population = _numbered(population, terms.class_names)
    if population.schema is not None:
        population = described(population, classes=terms.classes)
    return replace(population, classes=terms.classes, kind=terms.task)


def together(tables: Sequence[tuple[Column, ...]]) -> tuple[Column, ...]:
    """What the columns of several clients' tables are when all are read together: all their words, and one mean."""
    found = []
    for column in tables[0]:
        same = [next(one for one in columns if one.name == column.name) for columns in tables]
        known = sum(one.known for one in same if one.fill is not None)
        total = sum(one.known * one.fill for one in same if one.fill is not None)
        words = sorted_names(word for one in same for word in one.categories)
        found.append(Column(column.name, words, total / known if known else None, known))
    return tuple(found)


def moments_in(columns: tuple[Column, ...], own: tuple[Column, ...], told: InputMoments) -> InputMoments:
    """What a client says of its inputs, as they are when it reads its table again with the common `columns`.

    A word that it does not have is an input that is always 0. A missing number that was filled in with the client's own
    mean m becomes the common mean f: with `known` numbers of n, the mean is (known m + (n - known) f) / n, and the
    squares around it change accordingly.
    """
    places, at = {}, 0
    for column in own:
        places[column.name] = (at, column)
        at += column.width
    mean: list[float] = []
    deviation: list[float] = []
    for column in columns:
        place, mine = places[column.name]
        if column.categories:
            where = [mine.categories.index(word) if word in mine.categories else -1 for word in column.categories]
            mean += [told.mean[place + i] if i >= 0 else 0.0 for i in where]
            deviation += [told.deviation[place + i] if i >= 0 else 0.0 for i in where]
            continue
        middle, spread = told.mean[place], told.deviation[place]
        if column.fill is not None and mine.fill is not None:
            share = min(mine.known / max(told.samples, 1), 1.0)
            moved = share * mine.fill + (1 - share) * column.fill
            spread = (spread**2 + share * (mine.fill - moved) ** 2 + (1 - share) * (column.fill - moved) ** 2) ** 0.5
            middle = moved
        mean.append(middle)
        deviation.append(spread)
    return InputMoments(told.samples, tuple(mean), tuple(deviation))


def _plain(columns: tuple[Column, ...]) -> list[tuple[str, tuple[str, ...], float | None]]:
    return [(column.name, column.categories, column.fill) for column in columns]


def _numbered(population: OwnPopulation, names: tuple[str, ...]) -> OwnPopulation:
    """The same client with the numbers that all have agreed on for its classes."""
    own = schema_of(population).class_names
    if own == names:
        return population
    client = next(iter(population.clients))
    if own and names:
        number = torch.from_numpy(class_numbers(np.array(own, object), names, client))
    elif not are_whole(own or names):
        raise _other_labels(own)
    elif own:  # of all clients' labels the numbers themselves are the classes
        number = torch.tensor([int(name) for name in own])
    else:
        numbers = np.array([str(label) for label in range(population.classes)], object)
        held = {int(y) for data in population.clients.values() for y in (*data.train.y, *data.test.y)}
        class_numbers(numbers[sorted(held)], names, client)
        known = {name: place for place, name in enumerate(names)}
        number = torch.tensor([known.get(name, -1) for name in numbers])

    def renumbered(part: Samples) -> Samples:
        return replace(part, y=number[part.y])

    clients = {
        client: ClientData(
            renumbered(data.train), renumbered(data.test), None if data.valid is None else renumbered(data.valid)
        )
        for client, data in population.clients.items()
    }
    size = len(names) or int(number.max()) + 1
    return replace(described(population, classes=size, class_names=names), clients=clients, classes=size)


def _other_labels(own: tuple[str, ...]) -> CoterieError:
    kinds = ("words", "numbers") if own else ("numbers", "words")
    return CoterieError(f"The labels here are {kinds[0]} and those of the run are {kinds[1]}; write the same ones.")

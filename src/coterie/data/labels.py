"""Labels that are words: each becomes the number of its class, and the words are remembered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.core.errors import CoterieError
from coterie.core.samples import ClientId
from coterie.core.terminal import brief, shown

from .schema import LONGEST_NAME, MOST_CLASSES, MOST_NAMES, Classes

ClientArrays = tuple[Any, Any] | tuple[Any, Any, Any, Any]
"""(x, y), of which a fifth is kept for testing, or (x_train, y_train, x_test, y_test)."""


def are_words(y: Any) -> bool:
    """Whether labels are text rather than numbers."""
    if isinstance(y, (str, bytes)) or not hasattr(y, "__len__"):
        return False
    kind = getattr(getattr(y, "dtype", None), "kind", None)
    if kind in ("U", "S", "T"):
        return True
    return kind in ("O", None) and not hasattr(y, "numel") and any(isinstance(value, str) for value in y)


def sorted_names(words: Iterable[str]) -> tuple[str, ...]:
    """The different words in order: as numbers where all are whole numbers, otherwise as text."""
    names = set(words)
    if are_whole(names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def class_numbers(words: npt.NDArray[Any], names: tuple[str, ...], client: ClientId) -> npt.NDArray[np.int64]:
    """The number of every word's class; a word that is not a class is refused."""
    number = {name: place for place, name in enumerate(names)}
    try:
        return np.array([number[word] for word in words.tolist()], np.int64)
    except KeyError as problem:
        raise CoterieError(
            f"Client {client} has the label {shown(problem.args[0])}, which is none of the {len(names)} classes "
            f"({brief(', '.join(names), 80)}); correct the label or the classes."
        ) from None


def said_classes(classes: int | Sequence[str] | None) -> Classes:
    """The classes as a user has said them: a number, or their names in the order in which they are numbered."""
    if classes is None:
        return None
    if isinstance(classes, int):
        if isinstance(classes, bool) or not 1 <= classes <= MOST_CLASSES:
            raise CoterieError(f"There are {shown(classes)} classes; give a number from 1 to {MOST_CLASSES}, or names.")
        return classes
    names = [classes] if isinstance(classes, str) else list(classes)
    if len(set(names)) < 2 or not all(isinstance(name, str) for name in names):
        said = brief(", ".join(map(str, names)), 80)
        raise CoterieError(f"classes is {shown(said)}; give their number, or the names of all of them by commas.")
    return checked_names(sorted_names(names))


def named_classes(
    clients: Mapping[ClientId, ClientArrays], said: Classes = None
) -> tuple[Mapping[ClientId, ClientArrays], tuple[str, ...]]:
    """The same clients with numbers for labels, and the words that the numbers stand for; none if they were numbers."""
    if not any(isinstance(a, (tuple, list)) and any(map(are_words, a[1::2])) for a in clients.values()):
        number_said(said)
        return clients, ()
    words: dict[ClientId, list[npt.NDArray[Any]]] = {}
    for client, arrays in clients.items():
        words[client] = [_texts(client, y) for y in arrays[1::2]]
    names = checked_names(sorted_names(word for parts in words.values() for part in parts for word in part.tolist()))
    if isinstance(said, int):
        if not are_whole(names):
            raise CoterieError(f"The labels are words, such as {shown(names[0])}; name all classes, not their number.")
        names = tuple(map(str, range(said)))
    elif said:
        names = said
    named: dict[ClientId, ClientArrays] = {}
    for client, arrays in clients.items():
        numbers = [class_numbers(part, names, client) for part in words[client]]
        pair = (arrays[0], numbers[0])
        named[client] = pair if len(numbers) == 1 else (*pair, arrays[2], numbers[1])  # type: ignore[misc]
    return named, () if isinstance(said, int) else names


def number_said(said: Classes) -> int | None:
    """How many classes a user says there are, where labels are numbers."""
    if isinstance(said, tuple):
        raise CoterieError(f"The labels are numbers and classes names {shown(said[0])}; give their number instead.")
    return said


def checked_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """The names of classes, if they are not too many and not too long."""
    if len(names) > MOST_NAMES:
        raise CoterieError(
            f"There are {len(names)} different labels in words, such as {shown(names[0])} and {shown(names[1])}; "
            f"{MOST_NAMES} classes at most can have names: number them from 0, or choose another target."
        )
    for name in names:
        if not name.strip() or len(name) > LONGEST_NAME or not name.isprintable():
            raise CoterieError(
                f"The label {shown(name)} cannot be the name of a class; use one line of 1 to {LONGEST_NAME} "
                "characters that can be seen."
            )
    return names


def _texts(client: ClientId, y: Any) -> npt.NDArray[Any]:
    """Labels of one client as text."""
    values = np.asarray(y, dtype=object)
    if values.ndim != 1:
        raise CoterieError(f"Client {client} has labels of shape {values.shape}; give one label for each input.")
    for value in values.tolist():
        if not isinstance(value, str):
            raise CoterieError(
                f"Client {client} has the label {shown(value)} among labels in words; give all clients words, or all "
                "numbers."
            )
    return values


def are_whole(names: Iterable[str]) -> bool:
    """Whether all names are whole numbers."""
    return all(name.removeprefix("-").isdecimal() and len(name) < 20 for name in names)

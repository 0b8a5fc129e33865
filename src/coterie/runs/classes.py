"""Which classes a run between machines is about: those that its configuration says, or those that most clients have."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median_high

from coterie.core.errors import CoterieError
from coterie.core.samples import ClientId
from coterie.core.terminal import brief, shown
from coterie.data.labels import are_whole, sorted_names
from coterie.data.schema import Classes
from coterie.deploy.hello import Hello

Hellos = Mapping[ClientId, Hello]

_TIMES = 2  # a minority may have so many times the classes of all others
_FEWEST = 2  # and the others count as having so many: two clients that have seen one class each decide nothing
_ALWAYS_FINE = 100  # above this, no single client may have many times what the median has
_FAR_FROM_OTHERS = 4


def are_words(hello: Hello) -> bool:
    """Whether a client's labels are words. Whole numbers are told like words by a client that lacks the first."""
    return bool(hello.names) and not are_whole(hello.names)


def odd_classes(said: Classes, hellos: Hellos) -> dict[ClientId, str]:
    """Clients with other classes than the run's, each with the reason; their labels are all words, or all numbers.

    Where the configuration says the classes, it decides. Otherwise most clients do: fewer than half of them may not
    have more than twice as many classes as all the others together.
    """
    if isinstance(said, int):
        return {
            client: f"it has a label {_highest(hello)}, the run is about {said} classes (0 to {said - 1})"
            for client, hello in hellos.items()
            if _highest(hello) >= said
        }
    if said:
        return _unlisted(sorted_names(said), hellos)
    odd = _outnumbered(hellos)
    if not hellos:
        return odd
    rest = {client: hello.classes for client, hello in hellos.items() if client not in odd}
    most = max(_ALWAYS_FINE, _FAR_FROM_OTHERS * median_high(rest.values()))
    return odd | {c: f"it has {n} classes, the run is about at most {most}" for c, n in rest.items() if n > most}


def common_classes(said: Classes, hellos: Hellos) -> tuple[tuple[str, ...], int]:
    """The names of all clients' classes together, where they are words, and how many classes or targets there are."""
    if isinstance(said, int):
        return (), said
    if said:
        return sorted_names(said), len(said)
    names = sorted_names(name for hello in hellos.values() for name in hello.names)
    unnamed = [hello.classes for hello in hellos.values() if not hello.names]
    if not names or not unnamed:
        return names, len(names) or max(unnamed)
    # whole numbers, which some clients have as words: as in the simulator they are the classes, unless many are missing
    different = {int(name) for name in names} | set(range(max(unnamed)))
    if min(different) == 0 and max(different) < _TIMES * len(different):
        return (), max(different) + 1
    return sorted_names(map(str, different)), len(different)


def brought_alone(hellos: Hellos) -> dict[ClientId, str]:
    """Clients who alone have some of the classes, where the others agree: what they bring, for all to be told.

    Where half of the clients or more have something of their own, labels are only skewed.
    """
    if len(hellos) < 2:
        return {}
    if any(not hello.names for hello in hellos.values()):
        (first, most), (_, second) = sorted(
            ((client, _highest(hello)) for client, hello in hellos.items()), key=lambda each: (-each[1], each[0])
        )[:2]
        few = f"the class {most}" if most == second + 1 else f"the classes {second + 1} to {most}"
        return {first: few} if most > second else {}
    owners: dict[str, list[ClientId]] = {}
    for client, hello in hellos.items():
        for name in hello.names:
            owners.setdefault(name, []).append(client)
    own: dict[ClientId, list[str]] = {}
    for name, clients in owners.items():
        if len(clients) == 1:
            own.setdefault(clients[0], []).append(name)
    if 2 * len(own) >= len(hellos):
        return {}
    return {
        client: f"the class{'es' if len(names) > 1 else ''} {brief(', '.join(map(shown, sorted(names))), 80)}"
        for client, names in own.items()
    }


def check_said(said: Classes, classes: int, names: tuple[str, ...]) -> None:
    """Refuse other classes than the configuration says."""
    if said is not None and (names, classes) != common_classes(said, {}):
        raise CoterieError(f"it is about {classes} classes, and scenario.classes says others")


def _highest(hello: Hello) -> int:
    """The highest label of a client; words are numbered from 0."""
    return max(int(name) for name in hello.names) if hello.names and not are_words(hello) else hello.classes - 1


def _unlisted(names: tuple[str, ...], hellos: Hellos) -> dict[ClientId, str]:
    """Clients with a label that is none of these."""
    known = set(names)
    highest = max((int(name) for name in names), default=0) if are_whole(names) else 0
    odd = {}
    for client, hello in hellos.items():
        unknown = next((name for name in hello.names if name not in known), None)
        if not hello.names and hello.classes - 1 > highest:
            unknown = str(hello.classes - 1)
        if unknown is not None:
            odd[client] = (
                f"it has the label {shown(unknown)}, the run is about {len(names)} classes "
                f"({brief(', '.join(names), 80)})"
            )
    return odd


def _outnumbered(hellos: Hellos) -> dict[ClientId, str]:
    """Those of the clients with the most classes, fewer than half, who more than double what all others have."""
    numbers = any(not hello.names for hello in hellos.values())
    own = {client: _highest(hello) + 1 if numbers else hello.classes for client, hello in hellos.items()}
    order = sorted(own, key=lambda client: (-own[client], client))
    together = [0] * (len(order) + 1)  # how many classes the clients from this place on have
    seen: set[str] = set()
    for place in reversed(range(len(order))):
        seen |= set() if numbers else set(hellos[order[place]].names)
        together[place] = own[order[place]] if numbers else len(seen)
    odd = 0
    for place in range(1, (len(order) + 1) // 2):
        if together[odd] > _TIMES * max(_FEWEST, together[place]):
            odd = place
    usual = together[odd]
    return {
        client: f"it has {own[client]} classes, all of the others together {usual}; if it is right, say so where the "
        f"run is configured: scenario.classes={own[client] if numbers else 'NAME,NAME,...'}"
        for client in order[:odd]
    }

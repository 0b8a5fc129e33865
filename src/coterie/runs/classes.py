"""Which classes a run between machines is about: those that its configuration says, or those that most clients have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_high

from coterie.core.errors import CoterieError
from coterie.core.samples import ClientId
from coterie.core.terminal import brief, shown
from coterie.data.labels import sorted_names
from coterie.data.schema import MOST_CLASSES, Classes
from coterie.deploy.fitting import are_words, ends_of, unknown_label
from coterie.deploy.hello import Hello

Hellos = Mapping[ClientId, Hello]

_TIMES = 2  # a minority may have so many times the classes of all others
_FEWEST = 2  # and the others count as having so many: two clients that have seen one class each decide nothing
_ALWAYS_FINE = 100  # above this, no single client may have many times what the median has
_FAR_FROM_OTHERS = 4


def odd_classes(said: Classes, hellos: Hellos) -> dict[ClientId, str]:
    """Clients with other classes than the run's, each with the reason; their labels are all words, or all numbers.

    Where the configuration says the classes, it decides. Otherwise most clients do: fewer than half of them may not
    have more than twice as many classes as all the others together.
    """
    if said is not None:
        names, number = common_classes(said, {})
        found = {client: unknown_label(hello, names, number) for client, hello in hellos.items()}
        return {client: why for client, why in found.items() if why}
    if not hellos:
        return {}
    order = _Ordered.of(hellos)
    odd = order.odd(hellos)
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
    """Clients who have labels that no other has, where most agree: what is to be said of each.

    Where half of the clients or more have something of their own, labels are only skewed. Where half of them have many
    more than the other half, all of these have brought them.
    """
    if len(hellos) < 2:
        return {}
    if _are_numbers(hellos):
        own = _numbers_alone(hellos)
    else:
        owners: dict[str, list[ClientId]] = {}
        for client, hello in hellos.items():
            for name in hello.names:
                owners.setdefault(name, []).append(client)
        words: dict[ClientId, list[str]] = {}
        for name, clients in owners.items():
            if len(clients) == 1:
                words.setdefault(clients[0], []).append(name)
        own = {client: _listed(sorted(names)) for client, names in words.items()}
    if 2 * len(own) > len(hellos) or (2 * len(own) == len(hellos) and len(hellos) > 2):
        own = {}
    order = _Ordered.of(hellos)
    many = len(order.clients) // 2
    if not own and order.doubles(0, many):
        ends = [ends_of(hellos[client])[1] for client in order.clients]
        text = f"labels above {ends[many]}" if _are_numbers(hellos) else f"{order.together[0]} labels"
        return dict.fromkeys(order.clients[:many], f"is one of those who alone have {text}")
    return {client: f"alone has {what}" for client, what in own.items()}


def check_said(said: Classes, classes: int, names: tuple[str, ...]) -> None:
    """Refuse other classes than the configuration says."""
    if said is not None and (names, classes) != common_classes(said, {}):
        raise CoterieError(f"it is about {classes} classes, and scenario.classes says others")


@dataclass(frozen=True)
class _Ordered:
    """Clients by how many classes the run would have by them alone, the most first; what those from a place on have."""

    clients: Sequence[ClientId]
    together: Sequence[int]

    @classmethod
    def of(cls, hellos: Hellos) -> _Ordered:
        numbers = _are_numbers(hellos)
        own = {client: _span(hello) if numbers else hello.classes for client, hello in hellos.items()}
        order = sorted(own, key=lambda client: (-own[client], client))
        together = [0] * (len(order) + 1)
        seen: set[str] = set()
        for place in reversed(range(len(order))):
            seen |= set() if numbers else set(hellos[order[place]].names)
            together[place] = own[order[place]] if numbers else len(seen)
        return cls(order, together)

    def doubles(self, first: int, place: int) -> bool:
        """Whether the clients from `first` on have more than twice what those from `place` on have."""
        return self.together[first] > _TIMES * max(_FEWEST, self.together[place])

    def odd(self, hellos: Hellos) -> dict[ClientId, str]:
        """Fewer than half of the clients, who more than double what all others have."""
        odd = 0
        for place in range(1, (len(self.clients) + 1) // 2):
            if self.doubles(odd, place):
                odd = place
        others = [hellos[client] for client in self.clients[odd:]]
        return {client: _why_odd(hellos[client], others, self.together[odd]) for client in self.clients[:odd]}


def _why_odd(hello: Hello, others: Sequence[Hello], together: int) -> str:
    """What is odd about a client's labels, and what to do if they are right."""
    lowest, highest = ends_of(hello)
    if are_words(hello):
        text, all_ = f"it has {hello.classes} labels, all of the others together {together}", "[all labels]"
    else:
        usual = max(ends_of(other)[1] for other in others)
        text = f"it has the label {lowest if -lowest > highest else highest}, those of the others go up to {usual}"
        all_ = str(highest + 1) if lowest >= 0 and highest < MOST_CLASSES else "[all labels]"
    return f"{text}; if that is right, say classes = {all_} under [scenario] where the run is configured"


def _are_numbers(hellos: Hellos) -> bool:
    """Whether some clients tell numbers; whole numbers that all tell as words are words here, 2019 as any other."""
    return any(not hello.names for hello in hellos.values())


def _span(hello: Hello) -> int:
    """How many classes there would be by this client alone, if all numbers between its labels are classes."""
    lowest, highest = ends_of(hello)
    return highest + 1 - min(lowest, 0)


def _numbers_alone(hellos: Hellos) -> dict[ClientId, str]:
    """Clients with the lowest or the highest label, if it is beyond those of all others."""
    ends = {client: ends_of(hello) for client, hello in hellos.items()}
    found: dict[ClientId, str] = {}
    for place, sign in ((0, 1), (1, -1)):
        order = sorted(ends, key=lambda client: (sign * ends[client][place], client))
        first, second = (ends[client][place] for client in order[:2])
        if first == second or (place == 0 and first >= 0):
            continue
        single = abs(first - second) == 1 or bool(hellos[order[0]].names)
        text = _listed([str(first)]) if single else f"the labels {second + 1} to {first}"
        found[order[0]] = f"{found[order[0]]} and {text}" if order[0] in found else text
    return found


def _listed(names: Sequence[str]) -> str:
    return f"the label{'s' if len(names) > 1 else ''} {brief(', '.join(map(shown, names)), 80)}"

"""What a report shows of auto: the groups with their evidence, what happened when, and what clients use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from coterie.core.panels import Panel, Table, Text
from coterie.core.samples import ClientId
from coterie.methods.auto.groups import alike, lacking
from coterie.methods.auto.messages import Groups
from coterie.methods.auto.personal import CHOICES, chosen


def group_panels(state: Groups, ids: Sequence[ClientId]) -> list[Panel]:
    """A table of groups, the story of how they came about, and how clients use their group's model."""
    met = [client for client in ids if client in state.cluster]
    sizes = Counter(state.cluster[client] for client in met)
    rows = [
        (str(group), sizes[group], ", ".join(client for client in met if state.cluster[client] == group)[:400])
        for group in sorted(sizes)
    ]
    story = [f"Round {event.round + 1}: {event.text}." for event in state.events] or ["One group; nothing else paid."]
    classes = next((len(look.shares) for look in state.looks.values()), 0)
    use = Counter(chosen(state.choices, met, lacking(state, classes), alike(state, classes)))
    how = [(CHOICES[number], use[number]) for number in sorted(use)]
    return [
        Table("Groups", ["group", "clients", "who"], rows),
        Text("What happened", story),
        Table("How clients use the model of their group", ["model", "clients"], how),
    ]

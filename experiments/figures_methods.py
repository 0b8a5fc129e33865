"""A page with a section for each method: when to use it, when not, and what the stress matrix has of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from coterie.methods import METHODS
from experiments.conditions import CONDITIONS, KINDS
from experiments.figures_stress import records, summarised
from experiments.heat_map import Cell
from experiments.registry import experiment

STORED = Path(__file__).parent / "results"
_WITHIN, _FAR = 1.0, 5.0
"""Points behind Oracle that count as none, and as many."""
_HEAD = """# Method by method

When to use each method and when not, with what the [stress matrix](results/stress.md) has of it: points of mean
accuracy behind Oracle (FedAvg inside the true groups) under 25 conditions that change one thing each. Tests hold all
labels alike there, so personal models do worse than where clients are asked for what they have.
[Which method when](which-method.md) goes by situations instead. `coterie list NAME` says the same of a method, with its
settings. This page is made by `python -m experiments methods-page`.
"""


def page(cells: Mapping[str, Mapping[tuple[str, str], Cell]]) -> str:
    """The page, from the cells of each kind of data by its label."""
    sections = [_HEAD]
    for name, kind in METHODS.items():
        lines = [f"## {kind.title} (`{name}`)", f"{kind.summary[0].upper()}{kind.summary[1:]}. *{kind.paper}*", ""]
        lines += [f"**Use it when** {kind.use_when}.", f"**Not when** {kind.avoid_when}.", ""]
        lines += [f"- {label}: {_said(found, name)}" for label, found in cells.items() if (name, "home") in found]
        sections.append("\n".join(lines))
    return "\n\n".join(section.strip() for section in sections) + "\n"


def _said(cells: Mapping[tuple[str, str], Cell], method: str) -> str:
    """Where it is as good as Oracle, where it is far behind, and what it sends."""
    lost = {c.label: cell.lost for c in CONDITIONS if (cell := cells.get((method, c.name))) and cell.lost is not None}
    good = [label for label, points in lost.items() if points <= _WITHIN]
    worst = sorted((label for label, points in lost.items() if points > _FAR), key=lambda label: -lost[label])
    parts = [f"within a point of Oracle in {len(good)} of {len(lost)} conditions"]
    if good and len(good) <= len(lost) / 2:
        parts[0] += f" ({'; '.join(good)})"
    if worst:
        shown = "; ".join(f"{label} {lost[label]:.0f}" for label in worst[:6])
        parts.append(f"More than {_FAR:.0f} behind in {len(worst)}: {shown}{'; ...' if len(worst) > 6 else ''}")
    own, base = cells[method, "home"].sent, cells["fedavg", "home"].sent
    if own is not None and base:
        parts.append(f"Sent: {own / base:.2f} times FedAvg's bytes" if own else "Nothing is sent")
    return ". ".join(parts) + "."


def from_stored() -> str:
    """The page, from the runs that are stored here."""
    found = {kind.name: records(STORED / f"stress-{kind.name}-after.jsonl") for kind in KINDS}
    return page({kind.label: summarised(found[kind.name], kind.name) for kind in KINDS if found[kind.name]})


@experiment("methods-page", "docs/methods.md from the stored stress matrix", minutes=0.1)
def methods_page(out: Path, *_: object) -> str:
    """When to use each method."""
    text = from_stored()
    (out / "methods.md").write_text(text)
    return text

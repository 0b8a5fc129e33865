"""How one group's data differ from another's: turned images, renamed labels, another domain, or several of them.

A new kind of shift is a field of `Shift`, what it does in `Shift.__call__` (and `combine`), a name in `ShiftKind` and a
line in `SHIFTS`. Then `--set scenario.shift=NAME` has it in every scenario with one source.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from coterie.core.errors import CoterieError
from coterie.core.samples import Samples

ShiftKind = Literal["rotation", "swap", "cycle", "swap-rotation", "domain", "none"]
_QUARTER = 90


@dataclass(frozen=True)
class Shift:
    """What is done to every sample of a group, training and test alike. Nothing by default."""

    turns: int = 0
    """Quarter turns, counter-clockwise."""
    labels: tuple[int, ...] = ()
    """The new label of each class; empty where labels stay."""
    domain: int = 0
    """Which of the population's sources the samples come from."""
    mirrored: bool = False
    """Whether left and right are exchanged, after the turn."""

    def __call__(self, samples: Samples) -> Samples:
        """The samples after the shift; those it does not change are handed through without a copy."""
        x, y = samples.x, samples.y
        if self.turns % 4:
            if x.dim() != 4 or (self.turns % 2 and x.shape[2] != x.shape[3]):
                raise CoterieError(
                    f"Inputs of shape {tuple(x.shape[1:])} cannot be turned by {self.turns * _QUARTER} degrees; give "
                    "square images."
                )
            x = torch.rot90(x, self.turns % 4, (2, 3)).contiguous()
        if self.mirrored:
            if x.dim() != 4:
                raise CoterieError(f"Inputs of shape {tuple(x.shape[1:])} cannot be mirrored; give images.")
            x = x.flip(3).contiguous()
        if self.labels:
            y = torch.tensor(self.labels, dtype=torch.int64)[y]
        return Samples(x, y)


def rotation(degrees: int) -> Shift:
    """A turn by a multiple of 90 degrees, counter-clockwise. It only moves pixels, so it is exact."""
    if degrees % _QUARTER:
        raise CoterieError(f"Images turn by multiples of 90 degrees and {degrees} was given.")
    return Shift(turns=degrees // _QUARTER % 4)


def rotations(groups: int) -> list[Shift]:
    """One rotation a group: 0 and 180 degrees for two groups (as PANM has it), else 0, 90, 180, 270; from the fifth
    group on the same, mirrored (ours)."""
    if not 1 <= groups <= 8:
        raise CoterieError(
            f"Quarter turns, mirrored or not, make at most 8 groups and {groups} were asked for; ask for 1 to 8."
        )
    if groups == 2:
        return [rotation(0), rotation(180)]
    return [Shift(turns=number % 4, mirrored=number >= 4) for number in range(groups)]


def swap(pairs: Sequence[tuple[int, int]], classes: int) -> Shift:
    """The two labels of each pair are exchanged; no label may be in two pairs."""
    flat = [label for pair in pairs for label in pair]
    if len(set(flat)) != len(flat) or not all(0 <= label < classes for label in flat):
        raise CoterieError(f"{list(pairs)} are not disjoint pairs of labels in 0..{classes - 1}; give such pairs.")
    labels = list(range(classes))
    for a, b in pairs:
        labels[a], labels[b] = b, a
    return Shift(labels=tuple(labels))


def swaps(groups: int, classes: int) -> list[Shift]:
    """One swapped pair a group: (0, 1), (2, 3), ...; with two groups of ten classes PANM's (0, 1) and (6, 7)."""
    if not 1 <= groups <= classes // 2:
        raise CoterieError(
            f"{classes} classes have {classes // 2} disjoint pairs and {groups} groups were asked for; ask for fewer."
        )
    starts = (0, 6) if groups == 2 and classes >= 8 else tuple(range(0, 2 * groups, 2))
    return [swap([(start, start + 1)], classes) for start in starts]


def cycle(steps: int, classes: int) -> Shift:
    """Label y becomes (y - steps) mod classes."""
    return Shift(labels=tuple((label - steps) % classes for label in range(classes)) if steps % classes else ())


def cycles(groups: int, classes: int) -> list[Shift]:
    """One cycle a group, by 0, 1, 2, ... steps."""
    if not 1 <= groups <= classes:
        raise CoterieError(
            f"{classes} classes can be cycled in {classes} ways and {groups} groups were asked for; ask for fewer."
        )
    return [cycle(steps, classes) for steps in range(groups)]


def domains(groups: int, names: Sequence[str]) -> list[Shift]:
    """One domain a group, in the given order."""
    if not 1 <= groups <= len(names):
        raise CoterieError(
            f"There are {len(names)} domains ({', '.join(names)}) and {groups} groups were asked for; ask for fewer."
        )
    return [Shift(domain=number) for number in range(groups)]


def combine(first: Shift, second: Shift) -> Shift:
    """Both shifts, one after the other; only one of them may choose a domain."""
    if first.domain and second.domain:
        raise CoterieError("Two shifts that both choose a domain cannot be combined; keep one of them.")
    if first.labels and second.labels:
        labels = tuple(second.labels[label] for label in first.labels)
    else:
        labels = first.labels or second.labels
    turns = first.turns + (-second.turns if first.mirrored else second.turns)  # a mirror turns the other way round
    return Shift(turns % 4, labels, first.domain or second.domain, first.mirrored != second.mirrored)


SHIFTS: dict[str, Callable[[int, int], list[Shift]]] = {
    "rotation": lambda groups, _: rotations(groups),
    "swap": swaps,
    "cycle": cycles,
    "swap-rotation": lambda groups, classes: list(map(combine, swaps(groups, classes), rotations(groups))),
}
"""The ways in which the groups of a scenario with one source can differ: from their number and that of the classes."""

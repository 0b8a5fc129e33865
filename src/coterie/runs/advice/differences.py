"""What tells groups apart: their inputs, their labels, or the answers that they give to the same inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.core.samples import ClientId, Population
from coterie.core.terminal import shown
from coterie.methods.auto.messages import Groups
from coterie.methods.auto.renamings import Match, appearance, match
from coterie.methods.auto.visits import members

_LOOKED_AT = 200
"""Samples of a client that are looked at."""
_CLEAR = 4.0
"""Groups differ in something if it varies so many times more between them than within (an F ratio)."""
_NAMED = 3
_PAIRS = 4
_MOSTLY = 0.7
"""The share of the classes that must be the same if groups that differ in more are said to give other names to some.

Of digits that are upside down a half look like a digit: 0, 1 and 8 as themselves, 6 as 9 and 9 as 6.
"""


@dataclass(frozen=True)
class Differences:
    """F ratios of the clients' mean inputs and label shares, and the features that differ most."""

    inputs: float
    labels: float
    features: list[str]

    @property
    def alike_inputs(self) -> bool:
        """Whether the groups cannot be told apart by their inputs."""
        return self.inputs < _CLEAR

    @property
    def sentence(self) -> str:
        """In plain words."""
        if self.inputs < _CLEAR and self.labels < _CLEAR:
            return "Inputs and labels look alike in all groups: what differs is the answer to the same input."
        parts = []
        if self.inputs >= _CLEAR:
            named = f", most of all in {', '.join(self.features)}" if self.features else ""
            parts.append(f"their inputs differ (between groups {self.inputs:.0f} times as much as within{named})")
        if self.labels >= _CLEAR:
            parts.append(f"their labels are not equally frequent ({self.labels:.0f} times as much as within)")
        return f"What tells the groups apart: {' and '.join(parts)}."


def differences(population: Population, groups: Mapping[ClientId, int], names: Sequence[str] = ()) -> Differences:
    """How much clients' mean inputs and label shares vary between groups, against within them."""
    inputs, labels = [], []
    for client in groups:
        samples = population.client(client).train
        x = population.normalise(samples.x[:_LOOKED_AT], torch.float64)
        inputs.append(x.reshape(len(x), -1).mean(0).numpy())
        if population.classes > 1 and not samples.y.is_floating_point() and samples.y.dim() == 1:
            labels.append(torch.bincount(samples.y, minlength=population.classes).double().numpy() / len(samples.y))
    number = np.array(list(groups.values()))
    each = _ratios(np.stack(inputs), number)
    order = np.argsort(-each, kind="stable")[:_NAMED]
    features = [names[at] for at in order if each[at] >= _CLEAR] if len(names) == len(each) else []
    return Differences(_ratio(np.stack(inputs), number), _ratio(np.stack(labels), number) if labels else 0.0, features)


@dataclass(frozen=True)
class OtherNames:
    """Groups that give other names to what others see."""

    remarks: list[str]
    joined: bool
    """Whether some of them train one network."""
    alone: bool
    """Whether names are all that tells the groups apart, as far as can be told."""
    whole: bool
    """Whether that can be told of every class."""

    def sentence(self, apart: Differences) -> str:
        """What tells the groups apart, in plain words."""
        if not self.remarks or not apart.alike_inputs:
            return apart.sentence
        if self.alone:
            sure = "" if self.whole else ", as far as these samples tell"
            return f"The inputs look alike in all groups: what differs is how classes are named{sure}."
        return "The inputs look alike in the mean of all classes: what differs is how classes are named, and more."


def other_names(state: Groups, numbers: Mapping[int, int], names: Sequence[str]) -> OtherNames:
    """Which groups give other names to the same inputs, and which; `numbers` are those that the advice gives groups."""
    said, alone, all_told = [], True, True
    joined = {int(group): each for group, each in state.renamed.items() if {int(group), each.root} <= set(numbers)}
    seen = {group: appearance(state, members(state, group)) for group in numbers}
    known = {group: each for group, each in seen.items() if each is not None}
    first = max(known, key=lambda group: (len(members(state, group)), -group), default=-1)
    for group in sorted(set(numbers) - {each.root for each in joined.values()}):
        root = joined[group].root if group in joined else first
        if group == root or group not in known or root not in known:
            continue
        found = match(known[group], known[root])
        labels = joined[group].labels if group in joined else range(len(known[group][0]))
        if group in joined:
            found = Match({own: to for own, to in found.same.items() if labels[own] == to}, found.unlike)
        alone &= group in joined and not found.unlike
        all_told &= len(found.same) == len(labels)
        if found.renamed and (group in joined or len(found.same) >= _MOSTLY * len(labels)):
            called = names if len(names) == len(labels) else [str(label) for label in range(len(labels))]
            said.append(_remark(numbers[group], numbers[root], found, called, group in joined))
    return OtherNames(said, bool(joined), alone and len(numbers) == len(joined) + 1, all_told)


def _remark(group: int, root: int, found: Match, called: Sequence[str], joined: bool) -> str:
    """What is sure of the names that one group gives to what another sees."""
    pairs = [f"{shown(called[own])} is {shown(called[to])} there" for own, to in sorted(found.renamed.items())]
    more = f" and {len(pairs) - _PAIRS} more" if len(pairs) > _PAIRS else ""
    whole = len(found.same) == len(called)
    what = f"sees what group {root} does and gives it" if whole else f"gives some of what group {root} sees"
    text = f"Group {group} {what} other names: its {', '.join(pairs[:_PAIRS])}{more}."
    unclear = [own for own in range(len(called)) if own not in found.same and own not in found.unlike]
    if found.unlike:
        text += f" Names are not all that differs: no class there looks like its {_few(found.unlike, called)}."
    if unclear:
        text += f" What its {_few(unclear, called)} is there, the samples do not tell."
    trains = "auto trains one network for both" if joined else "auto trains a network for each, since more differs"
    return f"{text} If the names are a mistake in the data, correct it there; {trains}."


def _few(classes: Sequence[int], called: Sequence[str]) -> str:
    """The names of the first of these classes."""
    listed = ", ".join(shown(called[label]) for label in classes[:_PAIRS])
    return f"{listed} and {len(classes) - _PAIRS} more" if len(classes) > _PAIRS else listed


def _sums(values: NDArray[np.float64], groups: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Variance between and within groups of every column (mean squares)."""
    kinds = np.unique(groups)
    means = np.stack([values[groups == kind].mean(0) for kind in kinds])
    sizes = np.array([(groups == kind).sum() for kind in kinds])
    between = (sizes[:, None] * (means - values.mean(0)) ** 2).sum(0) / max(len(kinds) - 1, 1)
    within = ((values - means[np.searchsorted(kinds, groups)]) ** 2).sum(0) / max(len(values) - len(kinds), 1)
    return between, within


def _ratio(values: NDArray[np.float64], groups: NDArray[np.int64]) -> float:
    between, within = _sums(values, groups)
    return float(between.sum() / max(within.sum(), 1e-12))


def _ratios(values: NDArray[np.float64], groups: NDArray[np.int64]) -> NDArray[np.float64]:
    between, within = _sums(values, groups)
    found: NDArray[np.float64] = between / np.maximum(within, 1e-12)
    return found

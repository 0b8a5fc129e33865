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

_LOOKED_AT = 200
"""Samples of a client that are looked at."""
_CLEAR = 4.0
"""Groups differ in something if it varies so many times more between them than within (an F ratio)."""
_NAMED = 3
_PAIRS = 4


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


def other_names(state: Groups, numbers: Mapping[int, int], names: Sequence[str]) -> list[str]:
    """Which groups give other names to the same inputs, and which; `numbers` are those that the advice gives groups."""
    said = []
    for group, renaming in sorted(state.renamed.items(), key=lambda each: int(each[0])):
        if int(group) not in numbers or renaming.root not in numbers:
            continue
        called = names if len(names) == len(renaming.labels) else [str(label) for label in range(len(renaming.labels))]
        pairs = [(called[own], called[there]) for own, there in enumerate(renaming.labels) if own != there]
        listed = ", ".join(f"{shown(own)} is {shown(there)} there" for own, there in pairs[:_PAIRS])
        more = f" and {len(pairs) - _PAIRS} more" if len(pairs) > _PAIRS else ""
        said.append(
            f"Group {numbers[int(group)]} sees what group {numbers[renaming.root]} does and gives it other names: its "
            f"{listed}{more}. If that is a mistake in the data, correct it there; auto trains one network for both."
        )
    return said


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

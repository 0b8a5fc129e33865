"""Clients as people with sensors: activities look a little different on each, and whole groups are worn otherwise."""

from __future__ import annotations

import numpy as np

from coterie.data.own import OwnPopulation, from_arrays

CLIENTS, GROUPS, CLASSES, FEATURES, SAMPLES = 21, 3, 6, 40, 200
_OWN, _NOISE = 0.6, 1.3
"""How far a person's activities are from everybody's, and the deviation of a sample (class means are of length 2.5)."""


def sensors(seed: int) -> OwnPopulation:
    """21 clients in three groups: as they are, inputs negated, labels shifted; training alone is at about 97 %."""
    generator = np.random.default_rng(seed)
    means = 2.5 * _unit(generator.normal(size=(CLASSES, FEATURES)))
    mixing = generator.normal(size=(FEATURES, FEATURES)) / np.sqrt(FEATURES)
    data, groups = {}, {}
    for number in range(CLIENTS):
        own = means + _OWN * _unit(generator.normal(size=(CLASSES, FEATURES)))
        labels = generator.integers(CLASSES, size=SAMPLES)
        x = np.tanh((own[labels] + _NOISE / np.sqrt(2) * generator.normal(size=(SAMPLES, FEATURES)) * 0.6) @ mixing)
        group = number % GROUPS
        x, y = (-x if group == 1 else x), ((labels + 1) % CLASSES if group == 2 else labels)
        data[f"p{number:02d}"] = (x.astype(np.float32), y)
        groups[f"p{number:02d}"] = group
    return from_arrays(data, groups=groups, seed=seed)


def _unit(rows: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))

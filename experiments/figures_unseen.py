"""auto on grounds that it was not made on: alphabets, turned sensors, colours, numbers, few clients a round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import nn

from coterie.data.own import OwnPopulation, from_arrays
from experiments.figures_own import Ground, Pool, compared, mlp, tiny_cnn
from experiments.registry import experiment
from experiments.tables import Note

_Rows = NDArray[np.float64]


def _alphabets(seed: int) -> OwnPopulation:
    """Eight alphabets of five signs each, five clients an alphabet: all name their signs 0 to 4."""
    generator = np.random.default_rng([seed, 11])
    data, truth = {}, {}
    for source, name in enumerate(("mnist", "usps", "fashion-mnist", "sign")):
        pool = Pool(name, seed, size=16, grey=True)
        for half in range(2):
            for number in range(5):
                x, y = pool.of_labels(generator, 60, range(5 * half, 5 * half + 5))
                client = f"{name}-{half}-{number}"
                data[client], truth[client] = (x, y - 5 * half), 2 * source + half
    return from_arrays(data, groups=truth, seed=seed)


def _colours(seed: int, alpha: float) -> OwnPopulation:
    """CIFAR-10 by three kinds of camera that name the colour channels in another order; own labels."""
    pool, generator = Pool("cifar10", seed, size=16), np.random.default_rng([seed, 12])
    data, truth = {}, {}
    for number in range(24):
        x, y = pool.dealt(generator, 200, alpha)
        client, group = f"c{number:02d}", number % 3
        data[client], truth[client] = (np.roll(x, group, axis=1).copy(), y), group
    return from_arrays(data, groups=truth, seed=seed)


def _writers(seed: int, alpha: float) -> OwnPopulation:
    """Handwriting without groups: USPS, few samples, own labels."""
    pool, generator = Pool("usps", seed, size=16, grey=True), np.random.default_rng([seed, 13])
    data = {f"w{number:02d}": pool.dealt(generator, 50, alpha) for number in range(40)}
    return from_arrays(data, groups=dict.fromkeys(data, 0), seed=seed)


_SIZES = (12, 6, 4, 2)
_TIMES = np.arange(32) / 32


def _worn(seed: int) -> OwnPopulation:
    """Windows of three axes; 24 people wear the sensor in one of four ways, which turns its axes."""
    generator = np.random.default_rng([seed, 14])
    tones = generator.uniform(1, 6, size=(5, 3)), generator.uniform(0.4, 1.2, size=(5, 3))
    turns = [np.linalg.qr(generator.normal(size=(3, 3)))[0] for _ in _SIZES]
    data, truth = {}, {}
    for number, group in enumerate(np.repeat(np.arange(len(_SIZES)), _SIZES)):
        labels = generator.integers(5, size=150)
        pace, strength = generator.normal(1, 0.08), generator.normal(1, 0.15)
        waves = _waves(generator, labels, pace * tones[0], strength * tones[1])
        client = f"p{number:02d}"
        data[client] = ((waves @ turns[group]).reshape(150, -1).astype(np.float32), labels)
        truth[client] = int(group)
    return from_arrays(data, groups=truth, seed=seed)


def _waves(generator: np.random.Generator, labels: NDArray[np.int64], pace: _Rows, strength: _Rows) -> _Rows:
    """Samples of activities, [n, times, axes]: a tone for each axis, at any phase, and noise."""
    phase = generator.uniform(0, 0.5, size=(len(labels), 1, 3))
    tone = np.sin(2 * np.pi * (_TIMES[None, :, None] * pace[labels][:, None] + phase))
    return np.asarray(strength[labels][:, None] * tone + generator.normal(0, 0.5, size=(len(labels), len(_TIMES), 3)))


def _patients(seed: int) -> OwnPopulation:
    """Numbers to be told: two kinds of clinics whose patients answer to the same treatment otherwise."""
    generator = np.random.default_rng([seed, 15])
    maps = generator.normal(size=(2, 12)) / np.sqrt(12)
    data, truth = {}, {}
    for number in range(30):
        x = generator.normal(size=(80, 12))
        own = maps[number % 2] + generator.normal(size=12) * 0.1
        y = np.tanh(x @ own * 2) + 0.3 * x[:, 0] * x[:, 1] + generator.normal(0, 0.2, size=80)
        data[f"clinic{number:02d}"] = (x.astype(np.float32), y.astype(np.float32))
        truth[f"clinic{number:02d}"] = number % 2
    return from_arrays(data, groups=truth, seed=seed)


def _cnn(classes: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, classes)),
    )


UNSEEN = (
    Ground("alphabets", "eight alphabets, 5 clients each", _alphabets, 8, _cnn(5)),
    Ground("alphabets-fifth", "the same, a fifth a round", _alphabets, 8, _cnn(5), rounds=60, fraction=0.2),
    Ground("colours", "CIFAR-10, three orders of colours", partial(_colours, alpha=0), 3, tiny_cnn),
    Ground("colours-0.5", "the same, own labels, alpha = 0.5", partial(_colours, alpha=0.5), 3, tiny_cnn),
    Ground("writers-0.3", "USPS, no groups, own labels, alpha = 0.3", partial(_writers, alpha=0.3), 1, mlp(256, 10)),
    Ground("worn", "sensors worn in 4 ways, 12, 6, 4, 2 people", _worn, 4, mlp(96, 5)),
    Ground("worn-fifth", "the same, a fifth a round", _worn, 4, mlp(96, 5), rounds=60, fraction=0.2),
    Ground("patients", "numbers, two kinds of clinics (R2)", _patients, 2, mlp(12, 1), metric="r2"),
)


@experiment("auto-unseen", "auto on grounds it was not made on", minutes=60, seeds=(1001, 1002, 1003))
def unseen(out: Path, seeds: Sequence[int], note: Note) -> str:
    """auto and nine others; those with a K are told it."""
    return compared(UNSEEN, out, seeds, note)

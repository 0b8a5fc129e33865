"""auto on data as users have them: no scenario's rates, tests that are a part of each client's own data."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import coterie
from coterie.core.errors import CoterieError, Unfinished
from coterie.data.datasets import data_root, load
from coterie.data.own import OwnPopulation, from_arrays
from coterie.simulation.faults import Faults
from experiments.conditions import PEERS
from experiments.figures_stress import records
from experiments.registry import experiment
from experiments.sensors import sensors
from experiments.tables import Note, markdown

RIVALS = ("local", "fedavg", "ifca", "md-icfl", "fedcg", "embedding", "cfl", "panm", "oracle")
_TOLD_K = {"ifca": "k", "md-icfl": "k", "fedcg": "domains"}
Images = NDArray[np.uint8]
Labels = NDArray[np.int64]


class Pool:
    """Images of a set that are dealt to clients, each image once."""

    def __init__(self, name: str, seed: int, *, size: int, grey: bool = False) -> None:
        split = load(name, data_root(), seed, image_size=size, grey=grey)
        self.x: Images = np.concatenate([split.train.x.numpy(), split.test.x.numpy()])
        self.y: Labels = np.concatenate([split.train.y.numpy(), split.test.y.numpy()])
        order = np.random.default_rng(seed).permutation(len(self.y))
        self._left = [list(order[self.y[order] == label]) for label in range(10)]

    def dealt(self, generator: np.random.Generator, samples: int, alpha: float) -> tuple[Images, Labels]:
        """Samples with the label shares of a Dirichlet distribution; alpha = 0: all labels alike."""
        shares = generator.dirichlet(np.full(10, alpha)) if alpha else np.full(10, 0.1)
        return self._popped(generator.choice(10, size=samples, p=shares))

    def of_labels(self, generator: np.random.Generator, samples: int, labels: Sequence[int]) -> tuple[Images, Labels]:
        """Samples of these labels alone, all alike."""
        return self._popped(generator.choice(np.asarray(labels), size=samples))

    def _popped(self, labels: Labels) -> tuple[Images, Labels]:
        rows = [self._left[label].pop() for label in labels]
        return self.x[rows], self.y[rows]


def _rotated(name: str, groups: int, alpha: float, clients: int = 40, samples: int = 60) -> Callable[[int], Any]:
    def made(seed: int) -> OwnPopulation:
        pool, generator = Pool(name, seed, size=14), np.random.default_rng([seed, 1])
        data, truth = {}, {}
        for number in range(clients):
            x, y = pool.dealt(generator, samples, alpha)
            client, group = f"c{number:02d}", number % groups
            data[client], truth[client] = (np.rot90(x, group, axes=(-2, -1)).copy(), y), group
        return from_arrays(data, groups=truth, seed=seed)

    return made


def _photographs(alpha: float) -> Callable[[int], Any]:
    """CIFAR-10 by two kinds of camera: as it is, and with the colours of a negative."""

    def made(seed: int) -> OwnPopulation:
        pool, generator = Pool("cifar10", seed, size=16), np.random.default_rng([seed, 2])
        data, truth = {}, {}
        for number in range(20):
            x, y = pool.dealt(generator, 200, alpha)
            client, group = f"c{number:02d}", number % 2
            data[client], truth[client] = (255 - x if group else x, y), group
        return from_arrays(data, groups=truth, seed=seed)

    return made


def _pens(seed: int) -> OwnPopulation:
    """Ten classes each: digits of two kinds, clothes, hands that sign."""
    generator = np.random.default_rng([seed, 3])
    data, truth = {}, {}
    for group, name in enumerate(("mnist", "usps", "fashion-mnist", "sign")):
        pool = Pool(name, seed, size=16, grey=True)
        for number in range(8):
            client = f"{name}-{number}"
            data[client], truth[client] = pool.dealt(generator, 100, 0), group
    return from_arrays(data, groups=truth, seed=seed)


def _skewed_sensors(seed: int) -> OwnPopulation:
    """The sensors, of which every person does some things much more often."""
    whole, generator = sensors(seed), np.random.default_rng([seed, 4])
    data, truth = {}, {}
    for client in whole.ids:
        own = whole.client(client)
        x, y = torch.cat([own.train.x, own.test.x]).numpy(), torch.cat([own.train.y, own.test.y]).numpy()
        kept = generator.dirichlet(np.full(whole.classes, 0.5))
        rows = np.flatnonzero(generator.random(len(y)) < (kept / kept.max())[y])
        data[client], truth[client] = (x[rows], y[rows]), int(whole.groups[client])
    return from_arrays(data, groups=truth, seed=seed)


def tiny_cnn() -> nn.Module:
    """For small pictures of three colours."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip


def mlp(inputs: int, outputs: int) -> Callable[[], nn.Module]:
    """One hidden layer."""
    return lambda: nn.Sequential(nn.Flatten(), nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, outputs))


@dataclass(frozen=True)
class Ground:
    """Whose data, in how many groups, the network, and the rounds and clients a round where they are not the usual."""

    name: str
    label: str
    make: Callable[[int], OwnPopulation]
    groups: int
    network: Callable[[], nn.Module]
    rounds: int = 20
    fraction: float = 1.0
    metric: str = "auto"


def _perceptron() -> nn.Module:
    return coterie.build_model("mlp", (1, 14, 14), 10)


GROUNDS = (
    Ground("rotated", "MNIST in 4 rotations", _rotated("mnist", 4, 0), 4, _perceptron),
    Ground("rotated-0.5", "the same, own labels, alpha = 0.5", _rotated("mnist", 4, 0.5), 4, _perceptron),
    Ground("rotated-0.2", "the same, own labels, alpha = 0.2", _rotated("mnist", 4, 0.2), 4, _perceptron),
    Ground("one-0.2", "one group, own labels, alpha = 0.2", _rotated("mnist", 1, 0.2), 1, _perceptron),
    Ground("pens", "two kinds of digits, clothes, hands", _pens, 4, mlp(256, 10)),
    Ground("sensors", "sensors, three groups", sensors, 3, mlp(40, 6)),
    Ground("sensors-skewed", "sensors, own labels", _skewed_sensors, 3, mlp(40, 6)),
    Ground("photographs", "CIFAR-10 and negatives", _photographs(0), 2, tiny_cnn),
    Ground("photographs-0.5", "the same, own labels, alpha = 0.5", _photographs(0.5), 2, tiny_cnn),
)


def _run(ground: Ground, method: str, seed: int, population: OwnPopulation) -> dict[str, Any]:
    where = {"ground": ground.name, "method": method, "seed": seed}
    settings: dict[str, Any] = {_TOLD_K[method]: ground.groups} if method in _TOLD_K else {}
    faults = None
    if ground.fraction < 1 and method in PEERS:
        faults = Faults(dropout=1 - ground.fraction)
    elif ground.fraction < 1 and method != "local":
        settings["fraction"] = ground.fraction
    try:
        own = coterie.method(method, **settings)
        how: dict[str, Any] = {"rounds": ground.rounds, "metric": ground.metric, "faults": faults, "seed": seed}
        result = coterie.run(own, population, ground.network, **how)
    except Unfinished:
        raise
    except CoterieError as error:
        return {**where, "refused": str(error)}
    found = json.loads(result.to_json())
    scores = {"accuracy": found["score"], "finetuned_accuracy": found["finetuned_score"]}
    return {**where, **scores, **{key: found[key] for key in ("ari", "n_clusters", "seconds")}}


def table(grounds: Sequence[Ground], found: Sequence[dict[str, Any]]) -> str:
    """A row a ground: auto, the best of the others, as they are or fine-tuned, and what is missing to it."""
    lines = []
    for ground in grounds:
        rows, less, best = [], [], []
        for seed in sorted({r["seed"] for r in found}):
            own = {r["method"]: r for r in found if (r["ground"], r["seed"]) == (ground.name, seed)}
            if {"auto", *RIVALS} <= own.keys():
                others = [name for name in RIVALS if "refused" not in own[name]]
                scores = {name: own[name]["accuracy"] for name in others if name != "oracle"}
                scores |= {f"{name}, fine-tuned": own[name]["finetuned_accuracy"] for name in others}
                winner = max(scores, key=scores.__getitem__)
                rows.append(own["auto"])
                less.append(100 * (own["auto"]["accuracy"] - scores[winner]))
                best.append(f"{less[-1]:+.1f} ({winner} {100 * scores[winner]:.1f})")
        if rows:
            ari = [r["ari"] for r in rows if r["ari"] is not None]
            middle = f"{statistics.median(ari):.2f}" if ari else "–"
            mean = f"{100 * statistics.fmean(r['accuracy'] for r in rows):.1f}"
            number = " ".join(str(r["n_clusters"]) for r in rows)
            lines.append([ground.label, mean, middle, number, f"{statistics.fmean(less):+.1f}", " ".join(best)])
    return markdown(["data", "auto %", "ARI, median", "groups", "less the best, mean", "by seed"], lines)


@experiment("auto-own", "auto on own data: tests as skewed as the training", minutes=60, seeds=range(911, 914))
def against(out: Path, seeds: Sequence[int], note: Note) -> str:
    """auto and nine others on data without a scenario; those with a K are told it."""
    return compared(GROUNDS, out, seeds, note)


def compared(grounds: Sequence[Ground], out: Path, seeds: Sequence[int], note: Note) -> str:
    """Every method on every ground and seed that is not stored yet, and the table of all."""
    file = out / "runs.jsonl"
    there = {(r["ground"], r["method"], r["seed"]) for r in records(file)}
    for seed in seeds:
        for ground in grounds:
            missing = [name for name in ("auto", *RIVALS) if (ground.name, name, seed) not in there]
            population = ground.make(seed) if missing else None
            for method in missing:
                assert population is not None
                found = _run(ground, method, seed, population)
                with file.open("a") as lines:
                    lines.write(json.dumps(found) + "\n")
                said = found.get("refused") or f"{100 * found['accuracy']:.1f} %, ARI {found['ari']}"
                note(f"{ground.name}, {method}, seed {seed}: {said}")
    text = table(grounds, records(file))
    (out / "table.md").write_text(text)
    return text

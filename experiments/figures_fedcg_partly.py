"""FedCG where most clients are of one domain and some mix several: do the limits hold on seeds they were not set by?"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from coterie import run
from coterie.core.rng import rng
from coterie.core.samples import ClientData, Samples
from coterie.data import LazyPopulation, build
from coterie.data.own import OwnPopulation
from coterie.methods.fedcg import FedCG, class_finder, classes
from coterie.models import build_model
from experiments.figures_fedcg import mixed_clients
from experiments.registry import experiment
from experiments.tables import Note, markdown, spread

_TURNS = 4
_EVERY = 5
"""One client in so many mixes the four turns."""
_TRAINING: dict[str, Any] = {"fraction": 10, "epochs": 2, "batch": 32, "momentum": 0.0, "lr": 0.1}
_ROWS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "by class, as it is": ({}, {}),
    "by inputs, as it was": ({"means": "inputs"}, {}),
    "limit of mixed clients 3 times chance": ({}, {"limit": 3.0}),
    "limit 1.5 times chance": ({}, {"limit": 1.5}),
    "the student from pure clients alone": ({}, {"pure": True}),
}
"""Settings, and what is changed of the constants."""


def partly_mixed(whole: LazyPopulation, seed: int) -> OwnPopulation:
    """The same clients, each with one of four turns, but every fifth, which mixes them."""
    data = dict(mixed_clients(whole, whole.ids, whole.unseen_ids, seed).clients)
    order = rng(seed, "partly mixed").permutation(_TURNS)
    for place, client in enumerate((*whole.ids, *whole.unseen_ids)):
        if place % _EVERY:
            own, turn = whole.client(client), int(order[place % _TURNS])
            data[client] = ClientData(_turned(own.train, turn), _turned(own.test, turn))
    return OwnPopulation(data, whole.shape, whole.classes, whole.normalise, unseen_ids=tuple(whole.unseen_ids))


def _fashion(seed: int) -> LazyPopulation:
    return build("rotated-fashion", seed=seed, groups=1, clients=40, unseen=20, image_size=14)


def _turned(samples: Samples, turn: int) -> Samples:
    return Samples(torch.rot90(samples.x, turn, (2, 3)), samples.y, torch.full((len(samples),), turn))


@contextmanager
def _changed(limit: float | None = None, pure: bool = False) -> Iterator[None]:
    """Other constants than FedCG's, for as long as it lasts."""
    with (
        mock.patch.object(classes, "_UNLIKE", classes._UNLIKE if limit is None else limit),
        mock.patch.object(class_finder, "_same_domains", (lambda *_: None) if pure else class_finder._same_domains),
    ):
        yield


@experiment(
    "fedcg-partly-mixed",
    "a fifth of the clients mix domains: FedCG's limits on fresh seeds",
    minutes=8,
    seeds=(710, 711, 712),
)
def table(out: Path, seeds: Sequence[int], note: Note) -> str:
    """Accuracy of pure, mixed, all and unseen clients after 40 rounds of 10."""
    rows = []
    for label, (settings, constants) in _ROWS.items():
        found = []
        for seed in seeds:
            with _changed(**constants):
                found.append(_measured(out / "".join(c if c.isalnum() else "-" for c in label), settings, seed))
            note(f"{label}, seed {seed}: {found[-1]}")
        rows.append([label, *(spread([100 * value for value in column], 2) for column in zip(*found, strict=True))])
    text = markdown(["", "pure clients %", "mixed clients %", "all that take part %", "unseen clients %"], rows)
    (out / "table.md").write_text(text)
    return text


def _measured(folder: Path, settings: dict[str, Any], seed: int) -> tuple[float, float, float, float]:
    folder, upright = folder / f"seed{seed}", _fashion(seed)
    if not (folder / "result.json").is_file():
        whole = partly_mixed(upright, seed)
        model = partial(build_model, "digits-cnn", tuple(whole.shape), whole.classes)
        begun = (folder / "config.toml").is_file()
        method = FedCG(**_TRAINING, **settings)
        run(method, whole, model, rounds=40, seed=seed, out=folder, evaluate_every=20, resume=begun)
    result = json.loads((folder / "result.json").read_text())
    each = dict(zip(result["client_ids"], result["per_client_accuracy"], strict=True))
    mixed = [each[client] for place, client in enumerate(upright.ids) if place % _EVERY == 0]
    pure = [each[client] for place, client in enumerate(upright.ids) if place % _EVERY]
    return sum(pure) / len(pure), sum(mixed) / len(mixed), float(result["accuracy"]), float(result["unseen_accuracy"])

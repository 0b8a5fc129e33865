"""FedCG's experiments that are more than a table of scenarios: mixed clients, an unseen domain, a poor domain."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from coterie import run
from coterie.core.rng import rng
from coterie.core.samples import (
    ClientData,
    ClientId,
    Population,
    Samples,
)
from coterie.data import LazyPopulation, build
from coterie.data.own import OwnPopulation
from coterie.data.sources.digits import LEVELS
from coterie.methods.base import ServerMethod
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedcg import FedCG
from coterie.methods.fedcg.domains import (
    UNEVEN,
    Moments,
    features_of,
    find_domains,
    pool,
    posterior,
)
from coterie.methods.fedprox import FedProx
from coterie.methods.oracle import Oracle
from coterie.methods.scaffold import Scaffold
from coterie.models import build_model
from experiments.registry import experiment
from experiments.tables import (
    DOMAIN_COLUMNS,
    Note,
    cell,
    heading,
    logged,
    markdown,
    spread,
)

_TURNS = 4
_TRAINING: dict[str, Any] = {"fraction": 10, "epochs": 2, "batch": 32, "momentum": 0.0, "lr": 0.1}
_DIGITS: dict[str, Any] = {**_TRAINING, "epochs": 5, "batch": 16}


def mixed_clients(
    population: Population, ids: Sequence[ClientId], unseen: Sequence[ClientId], seed: int
) -> OwnPopulation:
    """The same images, each turned by a random quarter: every client has its own shares of the four turns.

    The turn is beside every sample, so that the oracle among the methods can be told.
    """
    data = {}
    for client in (*ids, *unseen):
        g = rng(seed, "mixed", client)
        shares, own = g.dirichlet([0.5] * _TURNS), population.client(client)
        data[client] = ClientData(_turned(own.train, g, shares), _turned(own.test, g, shares))
    return OwnPopulation(data, population.shape, population.classes, population.normalise, unseen_ids=tuple(unseen))


def _turned(samples: Samples, g: np.random.Generator, shares: np.ndarray[Any, Any]) -> Samples:
    turns = torch.from_numpy(g.choice(_TURNS, len(samples), p=shares))
    x = samples.x.clone()
    for turn in range(1, _TURNS):
        x[turns == turn] = torch.rot90(samples.x[turns == turn], turn, (2, 3))
    return Samples(x, samples.y, turns)


@experiment(
    "fedcg-mixed", "clients whose images come in four rotations, mixed: FedCG per image", minutes=6, seeds=(0, 1, 2)
)
def mixed(out: Path, seeds: Sequence[int], note: Note) -> str:
    """Fashion-MNIST at 14 x 14, 40 clients and 20 unseen ones, 40 rounds of 10."""
    methods: dict[str, ServerMethod[Any]] = {
        "FedAvg, rate 0.1": FedAvg(**_TRAINING),
        "FedAvg, rate 0.2": FedAvg(**{**_TRAINING, "lr": 0.2}),
        "FedAvg, rate 0.3": FedAvg(**{**_TRAINING, "lr": 0.3}),
        "FedProx, rate 0.3": FedProx(**{**_TRAINING, "lr": 0.3}),
        "SCAFFOLD, rate 0.1": Scaffold(**_TRAINING),
        "SCAFFOLD, rate 0.2": Scaffold(**{**_TRAINING, "lr": 0.2}),
        "FedCG robust": FedCG(**_TRAINING),
        "FedCG robust, rate 0.2": FedCG(**{**_TRAINING, "lr": 0.2}),
        "FedCG robust, each image by itself": FedCG(**_TRAINING, routing="image"),
        "FedCG, the true turn of every image": FedCG(**_TRAINING, find="metadata"),
    }

    return _table(out, seeds, note, methods, {"": _mixed_fashion}, rounds=40)


@experiment(
    "fedcg-unseen-domain", "PACS with one domain left out of training, tested on it", minutes=12, seeds=(0, 1, 2)
)
def unseen_domain(out: Path, seeds: Sequence[int], note: Note) -> str:
    """Each of the four domains in turn: the clients of the other three train, its own are the unseen ones."""
    methods: dict[str, ServerMethod[Any]] = {
        "FedAvg": FedAvg(**_TRAINING),
        "FedProx": FedProx(**_TRAINING),
        "SCAFFOLD": Scaffold(**_TRAINING),
        "SCAFFOLD, rate 0.05": Scaffold(**{**_TRAINING, "lr": 0.05}),
        "FedCG robust, soft": FedCG(**_TRAINING, domains=3),
        "FedCG robust, per image": FedCG(**_TRAINING, domains=3, routing="image"),
    }

    def population(left_out: int, seed: int) -> OwnPopulation:
        whole = build("pacs", seed=seed, clients=40, image_size=32)
        groups = {client: whole.group(client) or 0 for client in whole.ids}
        strangers = tuple(client for client in whole.ids if groups[client] == left_out)
        data = {client: whole.client(client) for client in whole.ids}
        return OwnPopulation(data, whole.shape, whole.classes, whole.normalise, groups, strangers)

    names = ("art painting", "cartoon", "photo", "sketch")
    settings = {name: partial(population, number) for number, name in enumerate(names)}
    return _table(out, seeds, note, methods, settings, rounds=40)


@experiment(
    "fedcg-table3-attributes",
    "Table 3's ablations on digits with two attributes: turned by 90 degrees, and inverted",
    minutes=8,
    seeds=(0, 1, 2),
)
def two_attributes(out: Path, seeds: Sequence[int], note: Note) -> str:
    """Four domains of two binary attributes: domain 0 is at Hamming distance 1 of 1 and 2, and at 2 of 3."""
    literal = partial(FedCG.preset, "paper", **_DIGITS, find="oracle", layers="last")
    alone: dict[str, Any] = {"w": "none", "sigma": "none", "agnostic": False}
    known: dict[str, Any] = {**_DIGITS, "find": "oracle"}
    methods: dict[str, ServerMethod[Any]] = {
        "FedAvg": FedAvg(**_DIGITS),
        "Domain-specific models": literal(graph="eye", **{**alone, "layers": "all"}),
    }
    rows = {"GCN": alone, "GCN, W": {**alone, "w": "per_filter"}, "FedCG, W": {"sigma": "none"}, "FedCG, W, ReLU": {}}
    for label, settings in rows.items():
        methods[f"{label}, U"] = literal(graph="uniform", **settings)
        methods[f"{label}, H"] = literal(graph="hamming", **settings)
    methods |= {
        "FedCG, A = I, no W, no ReLU (robust)": FedCG(**known),
        "FedCG, A = U, no W, no ReLU": FedCG(**known, graph="uniform"),
        "FedCG, A = H, no W, no ReLU": FedCG(**known, graph="hamming"),
        "FedCG, A of equation 6, no W, no ReLU": FedCG(**known, graph="distance"),
    }

    def population(seed: int) -> OwnPopulation:
        whole = build("rotated-digits", seed=seed, groups=1, clients=40, unseen=20)
        everyone = (*whole.ids, *whole.unseen_ids)
        groups = {client: place % 4 for place, client in enumerate(everyone)}
        data = {client: _with_attributes(whole.client(client), groups[client]) for client in everyone}
        return OwnPopulation(data, whole.shape, whole.classes, whole.normalise, groups, tuple(whole.unseen_ids))

    return _table(out, seeds, note, methods, {"": population}, rounds=40)


def _with_attributes(data: ClientData, bits: int) -> ClientData:
    def altered(samples: Samples) -> Samples:
        x = LEVELS - samples.x if bits & 2 else samples.x
        return Samples(torch.rot90(x, 1, (2, 3)) if bits & 1 else x, samples.y)

    return ClientData(altered(data.train), altered(data.test))


@experiment("fedcg-poor-domain", "one rotation with 2 clients of 40: does the graph help?", minutes=4, seeds=(0, 1, 2))
def poor_domain(out: Path, seeds: Sequence[int], note: Note) -> str:
    """Rotated digits where the last rotation has two training clients; unseen clients are of that rotation alone."""
    known: dict[str, Any] = {**_DIGITS, "find": "oracle"}
    methods: dict[str, ServerMethod[Any]] = {
        "FedAvg": FedAvg(**_DIGITS),
        "one model a domain (oracle)": Oracle(**_DIGITS),
        "FedCG, no graph": FedCG(**known),
        "FedCG, equation 6": FedCG(**known, graph="distance"),
        "FedCG, equation 6 sharpened (power 8)": FedCG(**known, graph="distance", sharpness=8.0),
        "FedCG, equation 6 for poor domains alone": FedCG(**known, graph="distance", few=100.0),
        "FedCG, uniform": FedCG(**known, graph="uniform"),
        "FedCG, equation 6, averaged by reach": FedCG(**known, graph="distance", averaging="reach"),
        "FedCG, uniform, averaged by reach": FedCG(**known, graph="uniform", averaging="reach"),
        "FedCG, no graph, averaged by clients": FedCG(**known, averaging="clients"),
        "FedCG, equation 6, averaged by clients": FedCG(**known, graph="distance", averaging="clients"),
        "FedCG, uniform, averaged by clients": FedCG(**known, graph="uniform", averaging="clients"),
    }

    def population(seed: int) -> OwnPopulation:
        whole = build("rotated-digits", seed=seed, clients=60, unseen=20)
        groups = {client: whole.group(client) or 0 for client in (*whole.ids, *whole.unseen_ids)}
        poor = [client for client in whole.ids if groups[client] == _TURNS - 1]
        kept = [client for client in whole.ids if groups[client] != _TURNS - 1][:38] + poor[:2]
        strangers = tuple(client for client in whole.unseen_ids if groups[client] == _TURNS - 1)
        data = {client: whole.client(client) for client in (*kept, *strangers)}
        return OwnPopulation(data, whole.shape, whole.classes, whole.normalise, groups, strangers)

    return _table(out, seeds, note, methods, {"": population}, rounds=40)


def _table(
    out: Path,
    seeds: Sequence[int],
    note: Note,
    methods: Mapping[str, ServerMethod[Any]],
    settings: Mapping[str, Any],
    rounds: int,
) -> str:
    """Every method in every setting with every seed; finished runs are kept. What is logged is over all settings."""
    rows = []
    for label, method in methods.items():
        cells, logs = [], []
        for setting, population in settings.items():
            folders = [out / _plain(f"{label} {setting}") / f"seed{seed}" for seed in seeds]
            found = [
                _accuracy(folder, method, population, rounds, seed) for folder, seed in zip(folders, seeds, strict=True)
            ]
            logs += [logged(folder) for folder in folders]
            note(f"{label} {setting}: unseen clients {found}")
            cells.append(spread([100 * value for value in found], 2))
        rows.append([label, *cells, *(cell(column, [log[column] for log in logs]) for column in DOMAIN_COLUMNS)])
    head = [f"unseen clients %{', ' * bool(setting)}{setting}" for setting in settings]
    text = markdown(["", *head, *map(heading, DOMAIN_COLUMNS)], rows)
    (out / "table.md").write_text(text)
    return text


def _accuracy(folder: Path, method: ServerMethod[Any], population: Any, rounds: int, seed: int) -> float:
    if not (folder / "result.json").is_file():
        whole: LazyPopulation | OwnPopulation = population(seed)
        model = partial(build_model, "digits-cnn", tuple(whole.shape), whole.classes)
        begun = (folder / "config.toml").is_file()
        run(
            method,
            whole,
            model,
            rounds=rounds,
            seed=seed,
            out=folder,
            evaluate_every=rounds // 2,
            resume=begun,
        )
    return float(json.loads((folder / "result.json").read_text())["unseen_accuracy"])


def _plain(text: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in text.strip())


@experiment(
    "fedcg-domains",
    "how well domains are found, and whether clients mix them, on seven kinds of clients",
    minutes=3,
    seeds=(0, 1, 2),
)
def found_domains(out: Path, seeds: Sequence[int], note: Note) -> str:
    """k-means on clients' mean features and the ridge student, without any training of a network."""
    few: dict[str, Any] = {"clients": 40, "unseen": 20}
    kinds: dict[str, Any] = {
        "rotated-digits": partial(build, "rotated-digits", **few),
        "rotated-fashion, 14 x 14": partial(build, "rotated-fashion", image_size=14, **few),
        "rotated-cifar10": partial(build, "rotated-cifar10", **few),
        "pacs, 32 x 32": partial(build, "pacs", image_size=32, **few),
        "multi-source-digits": partial(build, "multi-source-digits", samples=200, **few),
        "rotated-fashion, clients mixed": _mixed_fashion,
        "mnist-writers (no domains)": partial(build, "mnist-writers", image_size=14, clients=150, unseen=20),
    }
    method, rows = FedCG(), []
    for label, population in kinds.items():
        found = [_found(population(seed=seed), method, seed) for seed in seeds]
        note(f"{label}: {found}")
        columns = zip(*found, strict=True)
        rows.append([label, *("–" if None in column else spread(column, 2) for column in columns)])
    head = ["clients", "ARI of clients", "unseen images right", "unseen clients right, pooled", "unevenness", "routing"]
    text = markdown(head, [[*row, "mixed" if float(row[4].split()[0]) > UNEVEN else "pooled"] for row in rows])
    (out / "table.md").write_text(text)
    return text


def _mixed_fashion(seed: int) -> OwnPopulation:
    whole = build("rotated-fashion", seed=seed, groups=1, clients=40, unseen=20, image_size=14)
    return mixed_clients(whole, whole.ids, whole.unseen_ids, seed)


def _found(
    population: LazyPopulation | OwnPopulation, method: FedCG, seed: int
) -> tuple[float | None, float | None, float | None, float]:
    """ARI over clients, right images and right clients among the unseen ones (None without truth), unevenness."""

    def features(samples: Samples) -> Tensor:
        return features_of(population.normalise(samples.x, torch.float32), seed, method.features)

    own = [features(population.client(client).train) for client in population.ids]
    products = torch.stack([each.T @ each for each in own])
    sizes = torch.tensor([float(len(each)) for each in own])
    moments = Moments.of(torch.stack([each.sum(0) for each in own]), products, sizes)
    result = find_domains(moments, method.domains, seed, method.ridge)
    truth = [population.group(client) for client in population.ids]
    if None in truth:
        return None, None, None, result.unevenness
    ari = float(adjusted_rand_score(truth, result.labels))
    name = {
        d: _most([t for t, label in zip(truth, result.labels.tolist(), strict=True) if label == d]) for d in range(4)
    }
    images, clients = [], []
    for client in population.unseen_ids:
        told = posterior(result.student, features(population.client(client).test))
        right = population.group(client)
        images += [name[d] == right for d in told.argmax(1).tolist()]
        clients.append(name[int(pool(told)[0].argmax())] == right)
    return ari, float(np.mean(images)), float(np.mean(clients)), result.unevenness


def _most(values: Sequence[int | None]) -> int | None:
    return max(set(values), key=values.count) if values else None

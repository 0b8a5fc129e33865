"""The figures and measurements of embedding clustering (docs/results/embedding.md)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import adjusted_rand_score

from coterie.core.cohort import Cohort
from coterie.core.compiled import Refusal
from coterie.core.optimiser import Optimiser
from coterie.core.rng import rng
from coterie.core.samples import Population, Samples
from coterie.core.states import spread
from coterie.core.task import Task
from coterie.core.training import local_sgd
from coterie.data import SCENARIOS
from coterie.methods.embedding.bits import Bits, flip, unpack_bits
from coterie.methods.embedding.clustering.rules import choose
from coterie.methods.embedding.clustering.ward import ward
from coterie.methods.embedding.messages import EmbeddedClusters
from coterie.methods.embedding.method import Embedding
from coterie.models import build_model
from coterie.report.attack import known_images, picture, reconstruct
from coterie.runs.config import ScenarioConfig
from coterie.runs.experiment import population_of
from coterie.simulation.simulator import Simulator
from experiments.registry import experiment
from experiments.tables import Note, markdown

_FLIPS = tuple(round(0.05 * step, 2) for step in range(10))
_RULES = ("halves", "paper", "height_ratio", "calinski_harabasz", "silhouette")
_PAPER_FEDERATED = Embedding(encoder_rounds=10, encoder_epochs=3, encoder_steps=1, encoder_lr=1e-3)
"""Pre-training over clients as the authors ran it on MNIST: 10 rounds, half of the clients, 3 epochs."""


@experiment(
    "embedding-figure4a", "Figure 4a: ARI and clusters against P, rotated MNIST, all rules", minutes=10, seeds=range(5)
)
def figure4a(out: Path, seeds: Sequence[int], note: Note) -> str:
    """Public (Fashion-MNIST) and federated autoencoder, four rotations, and one group alone."""
    public = Embedding(pretraining="public", public="fashion-mnist", public_epochs=20, encoder_lr=1e-3)
    parts = []
    for label, method in (("public autoencoder", public), ("federated autoencoder", _PAPER_FEDERATED)):
        parts.append(_quality(out, seeds, note, "rotated-mnist", label, method, min_size=10))
    parts.append(_quality(out, seeds, note, "rotated-mnist", "default autoencoder", Embedding(), min_size=10))
    parts.append(
        _quality(out, seeds, note, "rotated-mnist", "one group, federated autoencoder", _PAPER_FEDERATED, groups=1)
    )
    return _written(out, "\n".join(parts))


@experiment("embedding-figure4b", "Figure 4b: the same on cycled CIFAR-10", minutes=10, seeds=range(2))
def figure4b(out: Path, seeds: Sequence[int], note: Note) -> str:
    """Federated convolutional autoencoder: 10 rounds, half of the clients, one epoch; four label cycles, and one."""
    method = replace(_PAPER_FEDERATED, encoder_epochs=1)
    parts = [
        _quality(out, seeds, note, "cycled-cifar10", "federated autoencoder", method, min_size=10),
        _quality(out, seeds[:1], note, "cycled-cifar10", "one group, federated autoencoder", method, groups=1),
    ]
    return _written(out, "\n".join(parts))


@experiment("embedding-pacs", "ARI and clusters against P on PACS at 64 pixels, all rules", minutes=10, seeds=range(2))
def pacs(out: Path, seeds: Sequence[int], note: Note) -> str:
    """Four domains of 10 clients, then the clients of one domain alone."""
    method = replace(_PAPER_FEDERATED, encoder_epochs=1)
    parts = [
        _quality(out, seeds, note, "pacs", "federated autoencoder", method, min_size=5),
        _quality(out, seeds[:1], note, "pacs", "one group, federated autoencoder", method, groups=1),
    ]
    return _written(out, "\n".join(parts))


@experiment("embedding-digits", "ARI and clusters against P on the embedded digits", minutes=1, seeds=range(5))
def digits(out: Path, seeds: Sequence[int], note: Note) -> str:
    """What the demo uses, without any download."""
    parts = [
        _quality(out, seeds, note, "rotated-digits", "default autoencoder", Embedding()),
        _quality(out, seeds, note, "rotated-digits", "one group", Embedding(), groups=1),
    ]
    return _written(out, "\n".join(parts))


def _quality(
    out: Path,
    seeds: Sequence[int],
    note: Note,
    scenario: str,
    label: str,
    method: Embedding,
    *,
    groups: int | None = None,
    min_size: int = 0,
) -> str:
    """ARI (clusters) of every rule and of the tree cut at the true number, against P; means over seeds."""
    results = []
    for seed in seeds:
        file = out / f"{label.replace(' ', '-').replace(',', '')}-seed{seed}.npz"
        population = population_of(ScenarioConfig(name=scenario, groups=groups), seed)
        if not file.is_file():
            began = time.monotonic()
            bits, truth = _bits(method, scenario, population, seed)
            np.savez_compressed(file, bits=np.packbits(bits, axis=1), length=bits.shape[1], truth=truth)
            note(f"{scenario}, {label}, seed {seed}: embedded in {time.monotonic() - began:.0f} s")
        with np.load(file) as kept:
            bits = np.unpackbits(kept["bits"], axis=1, count=int(kept["length"]))
            results.append(_against_flips(bits, kept["truth"].tolist(), population.classes, min_size, seed))
        note(f"{scenario}, {label}, seed {seed}: {results[-1]['0.1']['halves']} at P = 0.1")
    rules = [*_RULES, "true number"] if groups != 1 else list(_RULES)
    lines = []
    for level in results[0]:
        cells = [
            _mean_pair([result[level][rule] for result in results]) if rule in results[0][level] else ""
            for rule in rules
        ]
        lines.append([f"{float(level):.0%}", *cells])
    title = f"{scenario}, {label}, seeds {', '.join(map(str, seeds))}: mean ARI (clusters found)"
    return f"{title}\n\n" + markdown(["P", *rules], lines)


def _against_flips(bits: Bits, truth: Sequence[int], classes: int, min_size: int, seed: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for level in _FLIPS:
        sent = np.stack([flip(own, level, rng(seed, "flips", i, f"{level}")) for i, own in enumerate(bits)])
        cuts = {rule: choose(sent, classes, rule, min_size=min_size).labels for rule in _RULES}
        cuts["true number"] = ward(sent).cut(len(set(truth)))
        found[f"{level}"] = {
            rule: (float(adjusted_rand_score(truth, labels)), int(labels.max()) + 1) for rule, labels in cuts.items()
        }
    return found


def _mean_pair(pairs: Sequence[tuple[float, int]]) -> str:
    ari, clusters = (statistics.fmean(values) for values in zip(*pairs, strict=True))
    return f"{ari:.2f} ({clusters:.1f})"


def _bits(method: Embedding, scenario: str, population: Population, seed: int) -> tuple[Bits, list[int]]:
    """The clients' bits before any is flipped, and the true groups."""
    state, ids = _started(replace(method, flip=0.0), scenario, population, seed)
    length = state.autoencoder.code * population.classes
    bits = unpack_bits(torch.stack([state.bits[client] for client in ids]), length)
    return bits, [int(population.group(client) or 0) for client in ids]


def _started(method: Embedding, scenario: str, population: Population, seed: int) -> tuple[EmbeddedClusters, list[str]]:
    """A federation after pre-training and clustering, before its first round."""
    shape, classes = tuple(population.shape), population.classes
    task = Task.of(lambda: build_model(SCENARIOS[scenario].model, shape, classes), population)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    fed = Simulator(method, task, population, seed=seed)
    try:
        return method.init(fed), sorted(population.ids)
    finally:
        fed.close()
        torch.set_num_threads(threads)


@experiment("embedding-table2", "Table II and Figure 3: the reconstruction attack", minutes=3)
def table2(out: Path, seeds: Sequence[int], note: Note) -> str:
    """The decoder on embeddings of single images, CIFAR-10 (as the paper) and MNIST."""
    parts = []
    for scenario, epochs in (("cycled-cifar10", 1), ("rotated-mnist", 3)):
        population = population_of(ScenarioConfig(name=scenario), seeds[0])
        method = replace(_PAPER_FEDERATED, encoder_epochs=epochs)
        state, ids = _started(method, scenario, population, seeds[0])
        attacked = population.client(ids[0]).test
        known = known_images(population, ids[1:])
        found = reconstruct(state.autoencoder, Samples(attacked.x[:64], attacked.y[:64]), known=known, seed=seeds[0])
        picture(found.images, out / f"{scenario}.png")
        note(f"{scenario}: picture in {out / f'{scenario}.png'}")
        table = found.table(paper=scenario == "cycled-cifar10")
        cells = [["" if cell is None else str(cell) for cell in row] for row in table.rows]
        parts.append(f"{scenario}, {min(64, len(attacked))} images\n\n" + markdown(list(table.columns), cells))
    return _written(out, "\n".join(parts))


_TIMED = (
    ("rotated-mnist", "lenet5", "4"),
    ("cycled-cifar10", "cifar-cnn", ""),
    ("cycled-cifar10", "resnet18", "115"),
    ("pacs", "cifar-cnn", ""),
    ("pacs", "resnet18", "73"),
)
"""Scenarios, networks and the paper's ratios."""


@experiment("embedding-figure6", "Figure 6: time to embed against one local epoch", minutes=2)
def figure6(out: Path, seeds: Sequence[int], note: Note) -> str:
    """One thread, ten clients (one for ResNet-18), plain torch for both; the kernel's epoch where there is one."""
    lines = []
    for scenario, model, paper in _TIMED:
        population = population_of(ScenarioConfig(name=scenario), seeds[0])
        row = _ratio(population, model, clients=10 if model != "resnet18" else 1)
        note(f"{scenario}, {model}: {row}")
        lines.append([scenario, model, *row, paper])
    head = [
        "scenario",
        "model",
        "embed, s per client",
        "epoch (torch), s",
        "epoch (kernel), s",
        "ratio",
        "paper's ratio",
    ]
    return _written(out, markdown(head, lines))


def _ratio(population: Population, model: str, clients: int) -> list[str]:
    shape, classes = tuple(population.shape), population.classes
    ids = tuple(population.ids[:clients])
    task = Task.of(lambda: build_model(model, shape, classes), population)
    plain = replace(task, use_kernel=False)
    data = tuple(population.client(client) for client in ids)
    for own in data:
        len(own.train)  # made now, so that nobody pays for it twice
    method = Embedding()
    encoder = method.fresh(plain, 0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        method.embed(Cohort(ids[:1], plain, data[:1]), encoder.half)
        embed = _seconds(lambda: method.embed(Cohort(ids, plain, data), encoder.half)) / clients
        times = []
        for one in (plain, task):
            start, opt = spread(one.init(0), 1), Optimiser(1, 32, 1e-3, kind="adam")
            cohorts = [Cohort((client,), one, (own,)) for client, own in zip(ids, data, strict=True)]
            times.append(_seconds(lambda: [local_sgd(c, start, opt) for c in cohorts]) / clients)  # noqa: B023
    finally:
        torch.set_num_threads(threads)
    fast = f"{times[1]:.3f}" if not isinstance(task.compiled, Refusal) else "–"
    return [f"{embed:.4f}", f"{times[0]:.3f}", fast, f"{times[0] / embed:.0f}"]


def _seconds(work: Any) -> float:
    """Seconds of processor time, which other work on the machine does not change."""
    began = time.process_time()
    work()
    return time.process_time() - began


def _written(out: Path, text: str) -> str:
    (out / "table.md").write_text(text)
    return text

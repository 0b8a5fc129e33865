"""Figures 5 to 7 of MD-ICFL, and what the server's sampling costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from coterie.core.cohort import Cohort
from coterie.core.evaluation import probabilities
from coterie.core.optimiser import Optimiser
from coterie.core.panels import (
    Heatmap,
    Panel,
    image_grid,
    save_panels,
)
from coterie.core.rng import torch_rng
from coterie.core.samples import ClientData, Samples
from coterie.core.states import (
    Stack,
    group_means,
    spread,
    stack,
    take,
)
from coterie.core.task import Task
from coterie.core.training import local_sgd
from coterie.data import build
from coterie.data.population import LazyPopulation
from coterie.methods.md_icfl.distance import label_shares, nearest, read_samples
from coterie.methods.md_icfl.samplers import (
    Objective,
    back_search,
    draw,
    fresh_generators,
    sample_loss,
    train_generators,
)
from coterie.models import build_model
from experiments.registry import experiment
from experiments.tables import Note, markdown

_GROUPS = 4
_TRAINING = Optimiser(epochs=2, batch=50, lr=0.1)
_NEW_MODELS = 5
R = TypeVar("R")


@dataclass(frozen=True)
class _World:
    """Clients of rotated MNIST with a LeNet, as in Table 4."""

    population: LazyPopulation
    task: Task
    truth: Tensor
    seed: int

    @classmethod
    def of(cls, seed: int, clients: int, samples: int, scenario: str = "rotated-mnist", alpha: float = 100.0) -> _World:
        shape: dict[str, Any] = {"clients": clients, "samples": samples, "test_samples": 10, "alpha": alpha}
        population = build(scenario, seed=seed, partition="dirichlet-client", pixels="symmetric", **shape)
        task = Task.of(lambda: build_model("lenet5", population.shape, population.classes), population)
        truth = torch.tensor([population.group(client) or 0 for client in population.ids])
        return cls(population, task, truth, seed)

    def train(self, models: Stack, round: int) -> Stack:
        """Every client from its row, one round."""
        ids = self.population.ids
        data = tuple(self.population.client(client) for client in ids)
        return local_sgd(Cohort(ids, self.task, data, round, self.seed), models, _TRAINING)

    def brightness(self) -> Tensor:
        """The mean pixel of each group, [K, 1]."""
        means = [self.task.inputs(self.population.client(client).train.x).mean() for client in self.population.ids]
        return torch.stack([torch.stack(means)[self.truth == group].mean() for group in range(_GROUPS)])[:, None]

    def grouped(self, trained: Stack, before: Stack) -> Stack:
        """The mean of each true group."""
        return group_means(trained, torch.ones(len(self.truth)), self.truth, before)


@experiment(
    "md-icfl-figures",
    "Figures 5-7: what new models make of the pseudo samples, and how they look",
    minutes=3,
    seeds=(0,),
)
def figures(out: Path, seeds: Sequence[int], note: Note) -> str:
    """Cluster models of correctly clustered clients, their pseudo samples, and five new models per group."""
    torch.set_num_threads(1)
    world = _World.of(seeds[0], 24, 500)
    clusters = spread(world.task.init(world.seed), _GROUPS)
    for number in range(15):
        clusters = world.grouped(world.train(take(clusters, world.truth), number), clusters)
    note("cluster models are trained")
    goal = Objective(world.brightness())
    made = {"back-search": _searched(world, clusters, goal), "generator": _generated(world, clusters, goal)}
    fresh = _new_models(world)
    note("new models are trained")
    panels: list[Panel] = []
    lines = []
    for kind, samples in made.items():
        read = torch.stack([_read(world.task, fresh[j], samples[j]) for j in range(_GROUPS)])
        panels.append(image_grid(f"Figure 7: {kind}", samples[:, :, 0], [f"{90 * j} degrees" for j in range(_GROUPS)]))
        panels += [Heatmap(f"Figures 5 and 6: {kind}, {90 * j} degrees", read[j].tolist()) for j in range(_GROUPS)]
        right = read.diagonal(dim1=1, dim2=2)
        other = torch.stack([_read(world.task, fresh[(j + 1) % _GROUPS], samples[j]) for j in range(_GROUPS)])
        cells = [right.mean(), right.min(), other.diagonal(dim1=1, dim2=2).mean()]
        lines.append([kind, *(f"{float(cell):.2f}" for cell in cells)])
    save_panels(out / "panels.json", panels)
    head = [
        "samples by",
        "probability of the wanted class, new models of the same group",
        "least class",
        "of the next group",
    ]
    text = markdown(head, lines)
    (out / "table.md").write_text(text)
    return text


def _searched(world: _World, clusters: Stack, goal: Objective) -> Tensor:
    noise = torch.randn(_GROUPS, 10, 30, *world.task.shape, generator=torch_rng(world.seed, "figures"))
    return back_search(world.task, clusters, noise, goal, 100, 0.1)


def _generated(world: _World, clusters: Stack, goal: Objective) -> Tensor:
    g = torch_rng(world.seed, "figures")
    start = fresh_generators(world.task.shape, 10, goal.mean, 16, 256, g)
    trained = train_generators(world.task, clusters, start, goal, steps=1000, lr=0.01, batch=100, g=g)
    return draw(world.task, trained, 30, goal, g)


def _new_models(world: _World) -> list[Stack]:
    """For every group, models from other initialisations trained on all that its clients have."""
    found = []
    for group in range(_GROUPS):
        ids = [client for client, own in zip(world.population.ids, world.truth.tolist(), strict=True) if own == group]
        parts = [world.population.client(client).train for client in ids]
        whole = Samples(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))
        names = tuple(f"new-{group}-{number}" for number in range(_NEW_MODELS))
        c = Cohort(names, world.task, (ClientData(whole, whole),) * _NEW_MODELS, 0, world.seed)
        starts = stack([world.task.init(world.seed, 1 + number) for number in range(_NEW_MODELS)])
        found.append(local_sgd(c, starts, Optimiser(epochs=10, batch=50, lr=0.05)))
    return found


def _read(task: Task, models: Stack, samples: Tensor) -> Tensor:
    """Mean class probabilities [C, classes] of some models on samples [C, M, ...]."""
    classes, per_class = samples.shape[:2]
    read = probabilities(task, models, samples.flatten(0, 1)).mean(0)
    return read.view(classes, per_class, -1).mean(1)


@experiment(
    "md-icfl-server-work", "seconds of server work per round, and how many warm steps are enough", minutes=3, seeds=(0,)
)
def server_work(out: Path, seeds: Sequence[int], note: Note) -> str:
    """CPU seconds beside those of the clients' training; then assignments by the number of warm steps."""
    torch.set_num_threads(1)
    text = _costs(seeds[0], note) + "\n" + _warm_steps(seeds[0], note)
    (out / "table.md").write_text(text)
    return text


def _costs(seed: int, note: Note) -> str:
    world = _World.of(seed, 48, 1000)
    clusters = spread(world.task.init(seed), _GROUPS)
    trained, training = _timed(lambda: world.train(take(clusters, world.truth), 0))
    clusters, goal = world.grouped(trained, clusters), Objective(world.brightness())
    note(f"local training of 48 clients: {training:.2f} s of CPU")
    g = torch_rng(seed, "costs")
    lines = [["local training, 48 clients x 1000 x 2 epochs", f"{training:.2f}", "100 %"]]

    def add(name: str, seconds: float) -> None:
        lines.append([name, f"{seconds:.2f}", f"{100 * seconds / training:.0f} %"])
        note(f"{name}: {seconds:.2f} s of CPU")

    for per_class in (10, 30):
        noise = torch.randn(_GROUPS, 10, per_class, *world.task.shape, generator=g)
        for steps in (20, 100):
            samples, seconds = _timed(lambda: back_search(world.task, clusters, noise, goal, steps, 0.1))  # noqa: B023
            add(f"back-search, M = {per_class}, {steps} steps", seconds)
        _, seconds = _timed(lambda: read_samples(world.task, trained, clusters, samples))  # noqa: B023
        add(f"distances of 48 clients to 4 clusters, M = {per_class}", seconds)
    fresh = fresh_generators(world.task.shape, 10, goal.mean, 16, 256, g)
    for steps in (100, 1000):
        _, seconds = _timed(
            lambda: train_generators(world.task, clusters, fresh, goal, steps=steps, lr=0.01, batch=100, g=g)  # noqa: B023
        )
        add(f"generators, {steps} steps", seconds)
    return markdown(["server or client work of a round", "CPU seconds", "of the clients' training"], lines)


def _warm_steps(seed: int, note: Note) -> str:
    """Correct clusters on swapped-rotated MNIST; each round assigns all clients again, by each budget of steps."""
    world = _World.of(seed, 24, 500, "swapped-rotated-mnist", 3.0)
    labels = [world.population.client(client).train.y for client in world.population.ids]
    shares, goal = label_shares(labels, world.task.classes), Objective(world.brightness())
    noise = torch.randn(_GROUPS, 10, 10, *world.task.shape, generator=torch_rng(seed, "warm"))
    budgets: dict[str, int | None] = {"100 from noise": None, **{f"{s} from the last": s for s in (0, 5, 10, 20, 50)}}
    kept, scores, losses = dict.fromkeys(budgets, noise), {b: [] for b in budgets}, {b: [] for b in budgets}  # type: ignore[var-annotated]
    clusters = spread(world.task.init(seed), _GROUPS)
    for number in range(9):
        trained = world.train(take(clusters, world.truth), number)
        for budget, steps in budgets.items() if number >= 4 else ():
            first = number == 4 or steps is None
            start, count = (noise, 100) if first else (kept[budget], steps or 0)
            kept[budget] = back_search(world.task, clusters, start, goal, count, 0.1)
            found = nearest(read_samples(world.task, trained, clusters, kept[budget]).distances, shares)
            if number > 4:
                scores[budget].append(adjusted_rand_score(world.truth, found))
                losses[budget].append(sample_loss(world.task, clusters, kept[budget]))
        clusters = world.grouped(trained, clusters)
    rows = [
        [budget, f"{sum(losses[budget]) / len(losses[budget]):.3f}", f"{sum(scores[budget]) / len(scores[budget]):.2f}"]
        for budget in budgets
    ]
    note("warm steps are measured")
    return markdown(
        ["Adam steps per round", "cross-entropy of the samples", "ARI of the assignments, rounds 6-9"], rows
    )


def _timed(work: Callable[[], R]) -> tuple[R, float]:
    """What it gives, and the CPU seconds of this process that it took (other work on the machine does not count)."""
    began = time.process_time()
    result = work()
    return result, time.process_time() - began

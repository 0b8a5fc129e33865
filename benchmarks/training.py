"""Local training: the plain PyTorch loop on one thread, our general path and the kernel on one and two cores."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.timing import sgemm_gflops, take_turns
from coterie.core.samples import ClientData, Normalise, Samples
from coterie.core.task import Task
from coterie.methods.base import Models
from coterie.methods.fedavg import FedAvg
from coterie.models import build_model
from coterie.simulation.simulator import EngineOptions, Simulator


@dataclass(frozen=True)
class Case:
    """A model, its input and the work of one round."""

    name: str
    model: str
    shape: tuple[int, int, int]
    classes: int
    batch: int
    clients: int
    samples: int


CASES = (
    Case("digits MLP, batch 16", "digits-mlp", (1, 8, 8), 10, 16, 40, 100),
    Case("MLP, batch 10", "mlp", (1, 28, 28), 10, 10, 8, 600),
    Case("MLP, batch 32", "mlp", (1, 28, 28), 10, 32, 8, 600),
    Case("MLP, batch 128", "mlp", (1, 28, 28), 10, 128, 8, 600),
    Case("LeNet-5, batch 10", "lenet5", (1, 28, 28), 10, 10, 8, 300),
    Case("LeNet-5, batch 32", "lenet5", (1, 28, 28), 10, 32, 8, 600),
    Case("CIFAR CNN, batch 128", "pens-cnn", (3, 32, 32), 10, 128, 4, 512),
    Case("FEMNIST CNN, batch 10", "leaf-femnist", (1, 28, 28), 62, 10, 4, 120),
)


class RandomImages:
    """Clients with random images: training time does not depend on what is in them."""

    def __init__(self, case: Case) -> None:
        self.case, self.shape, self.classes = case, case.shape, case.classes
        self.normalise = Normalise((0.5,), (0.5,), 1 / 255)
        self.ids = tuple(f"{i:03d}" for i in range(case.clients))

    @cached_property
    def _data(self) -> dict[str, ClientData]:
        g = torch.Generator().manual_seed(0)
        made = {}
        for client in self.ids:
            x = torch.randint(0, 256, (self.case.samples, *self.shape), generator=g, dtype=torch.uint8)
            y = torch.randint(0, self.classes, (self.case.samples,), generator=g)
            made[client] = ClientData(Samples(x, y), Samples(x[:1], y[:1]))
        return made

    def client(self, client: str, round: int = 0) -> ClientData:
        """Random images."""
        return self._data[client]

    def group(self, client: str, round: int = 0) -> int | None:
        """No groups."""
        return None


def plain_training(model: nn.Module, x: Tensor, y: Tensor, batch: int) -> nn.Module:
    """One epoch of one client as everyone writes it first: a copy of the model, torch.optim.SGD, slices of a tensor."""
    own = copy.deepcopy(model)
    optimiser = torch.optim.SGD(own.parameters(), lr=0.01, momentum=0.9)
    order = torch.randperm(len(y))
    for start in range(0, len(y), batch):
        picked = order[start : start + batch]
        optimiser.zero_grad()
        F.cross_entropy(own(x[picked]), y[picked]).backward()
        optimiser.step()
    return own


def plain_loop(case: Case, population: RandomImages) -> Callable[[], object]:
    """What everyone writes first: a copy of the model per client, torch.optim.SGD, slices of a float tensor."""
    model = build_model(case.model, case.shape, case.classes)
    data = [population.client(client).train for client in population.ids]
    floats = [(population.normalise(samples.x, torch.float32), samples.y) for samples in data]

    def work() -> list[nn.Module]:
        torch.set_num_threads(1)
        return [plain_training(model, x, y, case.batch) for x, y in floats]

    return work


def our_round(case: Case, population: RandomImages, options: EngineOptions) -> tuple[Callable[[], object], Simulator]:
    """The same work as one `ask` of the simulator, shipping included."""
    method = FedAvg(epochs=1, batch=case.batch, lr=0.01, momentum=0.9)
    task = Task.of(lambda: build_model(case.model, case.shape, case.classes), population)
    task = Task(task.model, task.shape, task.classes, task.normalise, use_kernel=options.kernel)
    fed = Simulator(method, task, population, seed=0, options=options)
    message = Models(task.init(0))
    return lambda: fed.ask(method.train, population.ids, same=message), fed


def two_processes(work: Callable[[], object]) -> Callable[[], object]:
    """The same work in each of two processes that share nothing: what a second core is worth on this machine."""

    def both() -> None:
        children = []
        for _ in range(2):
            child = os.fork()
            if not child:
                work()
                os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)

    return both


def flops_per_sample(case: Case) -> float:
    """Forward and backward floating-point operations of one sample."""
    model = build_model(case.model, case.shape, case.classes)
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(model(torch.randn(8, *case.shape)), torch.zeros(8, dtype=torch.int64)).backward()
    return float(counter.get_total_flops()) / 8


def measure(turns: int = 5) -> list[dict[str, object]]:
    """One row per case: ratios to the plain loop on one thread, and the share of the machine's sgemm limit."""
    limit = sgemm_gflops()
    rows: list[dict[str, object]] = []
    for case in CASES:
        population = RandomImages(case)
        plain = plain_loop(case, population)
        candidates: dict[str, Callable[[], object]] = {"plain, 1 thread": plain, "twice plain": two_processes(plain)}
        crews = []
        for name, options in {
            "torch path, 1 core": EngineOptions(workers=1, kernel=False),
            "torch path, 2 cores": EngineOptions(workers=2, kernel=False),
            "kernel, 1 core": EngineOptions(workers=1),
            "kernel, 2 cores": EngineOptions(workers=2),
        }.items():
            candidates[name], fed = our_round(case, population, options)
            crews.append(fed)
        timing = take_turns(candidates, turns)
        for fed in crews:
            fed.close()
        work = flops_per_sample(case) * case.clients * case.samples / 1e9
        rows.append(
            {
                "case": case.name,
                "MFLOP a sample": round(flops_per_sample(case) / 1e6, 2),
                "plain samples/s": round(case.clients * case.samples / timing.seconds["plain, 1 thread"]),
                "plain, 2 processes": round(2 * timing.ratio["twice plain"], 2),
                **{name: round(ratio, 2) for name, ratio in timing.ratio.items() if "plain" not in name},
                "share of sgemm, kernel, 1 core": round(work / timing.seconds["kernel, 1 core"] / limit, 2),
            }
        )
    return rows

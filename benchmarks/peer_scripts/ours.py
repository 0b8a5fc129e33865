"""FedAvg with coterie as it comes: the compiled kernel, one thread per core, images as bytes."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.peer_scripts import work
from coterie.core.compiled import Refusal
from coterie.core.samples import ClientData, Normalise, Samples
from coterie.core.task import Task
from coterie.methods.fedavg import FedAvg
from coterie.simulation.simulator import EngineOptions, Simulator


class Clients:
    """The images as a population."""

    def __init__(self, job: work.Job) -> None:
        images = job.raw()
        parts = [Samples(*images.client(index)) for index in range(job.clients)]
        self.shape, self.classes = job.shape, job.classes
        self.normalise = Normalise((0.5,), (0.5,), 1 / 255) if images.x.dtype is torch.uint8 else Normalise()
        self._data = {f"{i:03d}": ClientData(part, Samples(part.x[:1], part.y[:1])) for i, part in enumerate(parts)}
        self.ids = tuple(self._data)

    def client(self, client: str, round: int = 0) -> ClientData:
        """One client's images."""
        return self._data[client]

    def group(self, client: str, round: int = 0) -> int | None:
        """No groups."""
        return None


def first_round(method: FedAvg, task: Task, clients: Clients, options: EngineOptions | None = None) -> Tensor:
    """All numbers of the global model after one round."""
    federation = Simulator(method, task, clients, seed=0, options=options)
    state, _ = method.step(method.init(federation), federation)
    federation.close()
    return torch.cat([tensor.flatten() for tensor in state.model.values()])


def counted_steps(method: FedAvg, task: Task, clients: Clients) -> int:
    """Steps of a round. The kernel tells none, so torch takes the same ones, counted, and must reach the same model."""
    counted = replace(task, loss=work.CountedLoss())
    slow = first_round(method, counted, clients, EngineOptions(workers=1))
    if not torch.allclose(first_round(method, task, clients), slow, atol=1e-3):
        raise SystemExit("The kernel and torch do not agree on the first round.")
    return work.CountedLoss.steps


def main() -> None:
    """Run the rounds and report."""
    options = work.options()
    job = work.Job(options.model)
    clients = Clients(job)
    method = FedAvg(epochs=1, batch=job.batch, lr=job.rate, momentum=0.0, fraction=job.share)
    network = job.network()
    task = Task.of(network, clients)
    if isinstance(task.compiled, Refusal) and not job.case:
        raise SystemExit(f"No kernel: {task.compiled.reason}")
    federation = Simulator(method, task, clients, seed=0, options=EngineOptions(workers=options.workers))
    state, times = method.init(federation), []
    for number in range(options.rounds + 1):
        federation.round = number
        state, _ = method.step(state, federation)
        federation.commit()
        times.append(work.now())
    federation.close()
    steps = counted_steps(method, task, clients) * len(times)
    images = job.ready()
    before = work.judge(network, images)
    network.load_state_dict(state.model)
    work.report("coterie", times, steps, before, work.judge(network, images))


if __name__ == "__main__":
    main()

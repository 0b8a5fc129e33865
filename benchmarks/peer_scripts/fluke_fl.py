"""FedAvg with fluke: its own loader of tensors in memory, evaluation switched off."""
# mypy: disable-error-code="import-not-found,misc"

from __future__ import annotations

from typing import Any

import benchmarks.peer_scripts.without_torchvision  # noqa: F401 - before the library

# isort: split
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.utils import FederationObserver

from benchmarks.peer_scripts import work


class Clock(FederationObserver):
    """Notes when each round ends."""

    def __init__(self) -> None:
        self.times: list[work.Instant] = []

    def end_round(self, round: int) -> None:
        """A round is over."""
        self.times.append(work.now())


def main() -> None:
    """Run the rounds and report."""
    options = work.options()
    job = work.Job(options.model)
    images, network = job.ready(), job.network()
    before = work.judge(network, images)
    environment: Any = FlukeENV()
    environment.set_seed(0)
    environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    loaders = [
        FastDataLoader(*images.client(index), num_labels=job.classes, batch_size=job.batch, shuffle=True)
        for index in range(job.clients)
    ]
    data = DummyDataContainer(loaders, [None] * job.clients, None, job.classes)
    settings = DDict(
        model=network,
        client=DDict(
            batch_size=job.batch,
            local_epochs=1,
            loss=work.CountedLoss,
            optimizer=DDict(name="SGD", lr=job.rate),
            scheduler=DDict(name="StepLR", step_size=1, gamma=1),
        ),
        server=DDict(weighted=True),
    )
    federation = FedAVG(job.clients, DataSplitter(data), settings)
    clock = Clock()
    federation.set_callbacks([clock])
    federation.run(options.rounds + 1, job.share)
    work.report("fluke-fl", clock.times, work.CountedLoss.steps, before, work.judge(federation.server.model, images))


if __name__ == "__main__":
    main()

"""FedAvg with FedLab: its standalone pipeline with the serial trainer, whole batches indexed from tensors in memory."""
# mypy: disable-error-code="import-not-found,misc"

from __future__ import annotations

import benchmarks.peer_scripts.without_torchvision  # noqa: F401 - before the library

# isort: split
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.contrib.dataset.basic_dataset import FedDataset
from fedlab.core.standalone import StandalonePipeline
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from benchmarks.peer_scripts import work


class Clients(FedDataset):
    """The images as FedLab wants them."""

    def __init__(self, images: work.Images) -> None:
        super().__init__()
        self.num = len(images.y)
        self._parts = [TensorDataset(*images.client(index)) for index in range(self.num)]

    def get_dataloader(self, id: int, batch_size: int, type: str = "train") -> DataLoader[tuple[object, ...]]:
        """One client's batches; fetching them whole is several times faster than sample by sample."""
        part = self._parts[id]
        return DataLoader(part, sampler=BatchSampler(RandomSampler(part), batch_size, False), batch_size=None)


class Pipeline(StandalonePipeline):
    """Notes when each round ends, where others evaluate."""

    def __init__(self, handler: SyncServerHandler, trainer: SGDSerialClientTrainer) -> None:
        super().__init__(handler, trainer)
        self.times: list[work.Instant] = []

    def evaluate(self) -> None:
        """A round is over."""
        self.times.append(work.now())


def main() -> None:
    """Run the rounds and report."""
    options = work.options()
    job = work.Job(options.model)
    images, network = job.ready(), job.network()
    before = work.judge(network, images)
    trainer = SGDSerialClientTrainer(network, job.clients)
    trainer.setup_dataset(Clients(images))
    trainer.setup_optim(epochs=1, batch_size=job.batch, lr=job.rate)
    trainer.criterion = work.CountedLoss()
    handler = SyncServerHandler(network, options.rounds + 1, job.share)
    pipeline = Pipeline(handler, trainer)
    pipeline.main()
    work.report("fedlab", pipeline.times, work.CountedLoss.steps, before, work.judge(handler.model, images))


if __name__ == "__main__":
    main()

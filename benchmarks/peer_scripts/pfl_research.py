"""FedAvg with pfl-research: its simulated backend, in one process or in several that share each cohort."""
# mypy: disable-error-code="import-not-found,misc"

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.peer_scripts import work


def main() -> None:
    """Run the rounds and report; with several workers torchrun starts this module once for each."""
    options = work.options()
    if options.workers > 1 and "RANK" not in os.environ:
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={options.workers}"]
        script = ["-m", "benchmarks.peer_scripts.pfl_research", *sys.argv[1:]]
        os.execv(sys.executable, [sys.executable, *launcher, *script])

    # pfl joins the process group when it is imported, so this must wait for torchrun
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel

    criterion = work.CountedLoss()

    class Network(nn.Sequential):
        """What pfl asks of a network: a loss, and metrics (taken in the warm-up round alone)."""

        def loss(self, x: Tensor, y: Tensor) -> Tensor:
            """The loss of a batch."""
            value: Tensor = criterion(self(x), y)
            return value

        def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
            """Only a count."""
            return {"count": Weighted(len(y), len(x))}

    times: list[work.Instant] = []

    class Clock(TrainingProcessCallback):
        """Notes when each round ends."""

        def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
            """Go on."""
            times.append(work.now())
            return False, Metrics()

    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 - pfl draws its cohorts from numpy's global generator
    job = work.Job(options.model)
    network = Network(*job.layers())
    images = job.ready()
    before = work.judge(network, images)
    network.train()
    # the same objects every time a client is drawn: pfl keeps the slices of a client's batches with them
    users = [Dataset(images.client(index), user_id=str(index)) for index in range(job.clients)]
    federated = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(range(job.clients))))
    model = PyTorchModel(
        network,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
    )
    rounds = options.rounds + 1
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds + 1,
            train_cohort_size=job.sampled,
            val_cohort_size=None,
        ),
        SimulatedBackend(federated, federated, postprocessors=[WeightByDatapoints()]),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=job.rate, local_batch_size=job.batch),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[Clock()],
        send_metrics_to_platform=False,
    )
    steps = torch.tensor(work.CountedLoss.steps)
    if options.workers > 1:
        torch.distributed.all_reduce(steps)
    if os.environ.get("RANK", "0") == "0":
        work.report("pfl", times, int(steps), before, work.judge(network, images))
    if options.workers > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()

"""FedAvg with Flower's simulation: Ray workers that share the clients of a round."""
# mypy: disable-error-code="import-not-found,misc,untyped-decorator"

from __future__ import annotations

import logging
import os
from collections.abc import Iterable

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
# Ray's workers step back for everything else on the machine otherwise
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - Ray spells it so
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.peer_scripts import flower_client, work


class Clocked(FedAvg):
    """Flower's FedAvg that notes when each round ends and how many steps its clients took."""

    def __init__(self, job: work.Job) -> None:
        # without these minima the first round begins as soon as the first clients have registered
        super().__init__(
            fraction_train=job.share,
            fraction_evaluate=0.0,
            min_train_nodes=job.sampled,
            min_available_nodes=job.clients,
        )
        self.times: list[work.Instant] = []
        self.steps = 0

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The mean of the replies."""
        replies = list(replies)
        found: tuple[ArrayRecord | None, MetricRecord | None] = super().aggregate_train(server_round, replies)
        self.times.append(work.now())
        for reply in replies:
            steps = reply.content.metric_records["metrics"]["steps"] if reply.has_content() else 0
            assert isinstance(steps, int)
            self.steps += steps
        return found


def main() -> None:
    """Run the rounds and report."""
    options = work.options()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    job = work.Job(options.model)
    network = job.network()
    strategy, server = Clocked(job), ServerApp()

    @server.main()
    def rounds(grid: Grid, context: Context) -> None:  # noqa: ARG001 - Flower's signature
        result = strategy.start(
            grid,
            ArrayRecord(network.state_dict()),
            num_rounds=options.rounds + 1,
            train_config=ConfigRecord({"model": options.model, "threads": options.threads}),
        )
        trained.load_state_dict(result.arrays.to_torch_state_dict())

    trained = job.network()
    run_simulation(
        server_app=server,
        client_app=flower_client.app,
        num_supernodes=job.clients,
        backend_config={
            "init_args": {"num_cpus": options.workers, "include_dashboard": False, "log_to_driver": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    images = job.ready()
    work.report("flwr", strategy.times, strategy.steps, work.judge(network, images), work.judge(trained, images))


if __name__ == "__main__":
    main()

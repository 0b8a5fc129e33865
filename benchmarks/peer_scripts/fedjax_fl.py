"""FedAvg with fedjax, as it comes: its federated averaging, clients' data in memory, JAX on all cores."""
# mypy: disable-error-code="import-not-found,misc,no-any-return"

from __future__ import annotations

from typing import Any

import benchmarks.peer_scripts.with_tree_map  # noqa: F401 - before the library

# isort: split
import fedjax
import haiku as hk
import jax
import numpy as np
from fedjax.algorithms import fed_avg

from benchmarks.peer_scripts import work
from benchmarks.peer_scripts.fedjax_networks import NETWORKS


def main() -> None:
    """Run the rounds and report."""
    options = work.options()
    job = work.Job(options.model)
    images = job.ready()
    x = np.moveaxis(images.x.numpy(), 2, -1)  # JAX's convolutions want the channels last
    y = images.y.numpy()
    network = hk.without_apply_rng(hk.transform(NETWORKS[options.model]))

    def loss(weights: Any, batch: Any, _: Any) -> Any:
        scores = jax.nn.log_softmax(network.apply(weights, batch["x"]))
        return -jax.numpy.take_along_axis(scores, batch["y"][:, None], 1).mean()

    clients = {b"%d" % index: {"x": x[index], "y": y[index]} for index in range(job.clients)}
    data = fedjax.InMemoryFederatedData(clients)
    sampler = fedjax.client_samplers.UniformGetClientSampler(data, num_clients=job.sampled, seed=0)
    batches = fedjax.ShuffleRepeatBatchHParams(batch_size=job.batch, num_epochs=1)
    algorithm = fed_avg.federated_averaging(
        jax.grad(loss), fedjax.optimizers.sgd(job.rate), fedjax.optimizers.sgd(1.0), batches
    )
    weights = network.init(jax.random.PRNGKey(0), x[0][: job.batch])
    judged = {"x": x.reshape(-1, *x.shape[2:])[: work.JUDGED], "y": y.reshape(-1)[: work.JUDGED]}
    judge = jax.jit(lambda given: loss(given, judged, None))
    before, state, times, steps = float(judge(weights)), algorithm.init(weights), [], 0
    for number in range(options.rounds + 1):
        sampler.set_round_num(number)
        drawn = sampler.sample()
        steps += sum(-(-len(client) // job.batch) for _, client, _ in drawn)
        state, _ = algorithm.apply(state, drawn)
        jax.block_until_ready(state.params)
        times.append(work.now())
    work.report("fedjax", times, steps, before, float(judge(state.params)))


if __name__ == "__main__":
    main()

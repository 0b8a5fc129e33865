"""What a Flower client does. A module of its own: Ray's workers import it once and keep the images between rounds."""
# mypy: disable-error-code="import-not-found,misc,untyped-decorator"

from __future__ import annotations

from functools import cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from benchmarks.peer_scripts import work

app = ClientApp()


@cache
def _images(model: str) -> work.Images:
    return work.Job(model).ready()


@cache
def _network(model: str) -> nn.Sequential:
    return work.Job(model).network()


@app.train()
def train(message: Message, context: Context) -> Message:
    """One epoch of local SGD."""
    config = message.content.config_records["config"]
    model, threads = config["model"], config["threads"]
    assert isinstance(model, str)
    assert isinstance(threads, int)
    torch.set_num_threads(threads)
    job, network = work.Job(model), _network(model)
    network.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    network.train()
    optimiser = torch.optim.SGD(network.parameters(), lr=job.rate)
    criterion, already = work.CountedLoss(), work.CountedLoss.steps
    x, y = _images(model).client(int(context.node_config["partition-id"]))
    for picked in torch.randperm(len(y)).split(job.batch):
        optimiser.zero_grad()
        criterion(network(x[picked]), y[picked]).backward()
        optimiser.step()
    metrics = MetricRecord({"num-examples": len(y), "steps": work.CountedLoss.steps - already})
    content = RecordDict({"arrays": ArrayRecord(network.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)

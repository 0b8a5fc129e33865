"""The one training loop and the one evaluation loop, against plain torch written out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.core.cohort import Cohort
from coterie.core.evaluation import evaluate, losses, probabilities, score
from coterie.core.optimiser import Optimiser
from coterie.core.rng import rng, torch_rng
from coterie.core.samples import ClientData, Normalise, Samples
from coterie.core.states import (
    State,
    row,
    spread,
    stack,
)
from coterie.core.task import Task
from coterie.core.training import local_sgd, steps
from coterie.data.own import OwnPopulation
from tests.tiny import (
    batchnorm_net,
    cohort,
    largest_gap,
    small_net,
)

PATHS = pytest.mark.parametrize("use_kernel", [True, False], ids=["kernel", "torch"])


def task_of(population: OwnPopulation, net: Callable[[], nn.Module] = small_net, use_kernel: bool = True) -> Task:
    return Task(
        net, population.shape, population.classes, population.normalise, dtype=torch.float64, use_kernel=use_kernel
    )


def by_hand(
    c: Cohort,
    client: int,
    start: State,
    opt: Optimiser,
    net: Callable[[], nn.Module] = small_net,
    mu: float = 0.0,
    correction: State | None = None,
) -> State:
    """What one client does, as anybody would write it."""
    module = net().double()
    module.load_state_dict(start)
    parameters = dict(module.named_parameters())
    lr = opt.rate(c.round)
    optimiser: torch.optim.Optimizer
    if opt.kind == "adam":
        optimiser = torch.optim.Adam(module.parameters(), lr=lr, weight_decay=opt.weight_decay)
    else:
        optimiser = torch.optim.SGD(module.parameters(), lr=lr, momentum=opt.momentum, weight_decay=opt.weight_decay)
    samples = c.data[client].train
    generator = rng(c.seed, "batches", c.round, c.ids[client])
    for _ in range(opt.epochs):
        order = torch.from_numpy(generator.permutation(len(samples)))
        for batch in order.split(opt.batch or len(samples)):
            optimiser.zero_grad()
            x = c.task.normalise(samples.x[batch], torch.float64)
            loss = F.cross_entropy(module(x), samples.y[batch])
            if mu:
                loss = loss + mu / 2 * sum(((w - start[name]) ** 2).sum() for name, w in parameters.items())
            if correction is not None:
                loss = loss + sum((w * correction[name]).sum() for name, w in parameters.items())
            loss.backward()
            optimiser.step()
    return dict(module.state_dict())


OPTIMISERS = {
    "plain": Optimiser(epochs=2, batch=4, lr=0.05),
    "momentum": Optimiser(epochs=2, batch=4, lr=0.05, momentum=0.9),
    "weight decay": Optimiser(epochs=2, batch=4, lr=0.05, momentum=0.5, weight_decay=0.1),
    "decaying rate": Optimiser(epochs=1, batch=4, lr=0.1, lr_decay=0.7),
    "adam": Optimiser(epochs=2, batch=4, lr=0.01, kind="adam"),
    "adam with decay": Optimiser(epochs=2, batch=4, lr=0.01, weight_decay=0.1, kind="adam"),
    "full batches": Optimiser(epochs=3, batch=0, lr=0.1),
    "batches larger than the data": Optimiser(epochs=2, batch=100, lr=0.1, momentum=0.9),
    "single samples": Optimiser(epochs=1, batch=1, lr=0.01),
}


@PATHS
@pytest.mark.parametrize("opt", OPTIMISERS.values(), ids=OPTIMISERS)
def test_local_sgd_is_plain_torch(opt: Optimiser, use_kernel: bool, digits: OwnPopulation) -> None:
    """Ragged last batches are part of it: the clients have 7 to 11 samples."""
    task = task_of(digits, use_kernel=use_kernel)
    c = cohort(digits, task, round=3)
    start = stack([task.init(seed) for seed in range(len(c))])
    trained = local_sgd(c, start, opt)
    for client in range(len(c)):
        assert largest_gap(row(trained, client), by_hand(c, client, row(start, client), opt)) < 1e-12


@PATHS
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_proximal_term_is_the_gradient_of_a_square(
    use_kernel: bool, momentum: float, digits: OwnPopulation
) -> None:
    task, opt = task_of(digits, use_kernel=use_kernel), Optimiser(epochs=2, batch=4, lr=0.05, momentum=momentum)
    c = cohort(digits, task)
    start = stack([task.init(seed) for seed in range(len(c))])
    trained = local_sgd(c, start, opt, prox=start, mu=0.7)
    for client in range(len(c)):
        expected = by_hand(c, client, row(start, client), opt, mu=0.7)
        assert largest_gap(row(trained, client), expected) < 1e-12


@PATHS
def test_the_correction_is_added_to_every_gradient(use_kernel: bool, digits: OwnPopulation) -> None:
    task, opt = task_of(digits, use_kernel=use_kernel), Optimiser(epochs=2, batch=4, lr=0.05)
    c = cohort(digits, task)
    start = spread(task.init(0), len(c))
    correction = {
        name: torch.randn(tensor.shape, generator=torch_rng(1, name), dtype=torch.float64)
        for name, tensor in start.items()
    }
    trained = local_sgd(c, start, opt, correction=correction)
    for client in range(len(c)):
        expected = by_hand(c, client, row(start, client), opt, correction=row(correction, client))
        assert largest_gap(row(trained, client), expected) < 1e-12


@PATHS
def test_the_start_is_not_touched_and_nothing_is_trained_on_nothing(use_kernel: bool, digits: OwnPopulation) -> None:
    task = task_of(digits, use_kernel=use_kernel)
    client = digits.client("c0")
    empty = ClientData(client.train.take(torch.arange(0)), client.test)
    c = Cohort(("a", "b"), task, (client, empty))
    start = spread(task.init(0), 2)
    before = {name: tensor.clone() for name, tensor in start.items()}
    trained = local_sgd(c, start, Optimiser())
    assert largest_gap(start, before) == 0
    assert largest_gap(row(trained, 1), row(start, 1)) == 0
    assert largest_gap(row(trained, 0), row(start, 0)) > 0
    untouched = local_sgd(c, start, Optimiser(epochs=0))
    assert largest_gap(untouched, before) == 0


def test_a_lone_last_sample_is_left_out_where_batches_are_normalised(digits: OwnPopulation) -> None:
    """9 samples in batches of 4: BatchNorm has no statistics of the ninth, so there are two steps an epoch."""
    task = task_of(digits, batchnorm_net)
    c = cohort(digits, task, ["c2", "c3"])
    assert [len(data.train) for data in c.data] == [9, 8]
    opt = Optimiser(epochs=3, batch=4)
    trained = local_sgd(c, spread(task.init(0), 2), opt)
    assert steps(c, opt).tolist() == [6.0, 6.0]
    assert trained["1.num_batches_tracked"].tolist() == [6, 6]


@pytest.mark.parametrize("batch", [1, 4])
def test_buffers_are_trained_as_torch_does(batch: int, digits: OwnPopulation) -> None:
    """Also with batches of one image, which have as many pixels as a channel has."""
    task, opt = task_of(digits, batchnorm_net), Optimiser(epochs=2, batch=batch, lr=0.05)
    c = cohort(digits, task, ["c3", "c8"])
    start = spread(task.init(0), 2)
    trained = local_sgd(c, start, opt)
    assert steps(c, opt).tolist() == trained["1.num_batches_tracked"].tolist()
    for client in range(2):
        expected = by_hand(c, client, row(start, client), opt, batchnorm_net)
        assert largest_gap(row(trained, client), expected) < 1e-12


@PATHS
def test_steps_counts_updates(use_kernel: bool, digits: OwnPopulation) -> None:
    c = cohort(digits, task_of(digits, use_kernel=use_kernel), ["c0", "c4"])  # 11 and 7 samples
    assert steps(c, Optimiser(epochs=2, batch=4)).tolist() == [6.0, 4.0]
    assert steps(c, Optimiser(epochs=2, batch=0)).tolist() == [2.0, 2.0]


def dropout_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.5), nn.Linear(8, 10))


def test_dropout_is_drawn_by_client_and_round_alone(digits: OwnPopulation) -> None:
    task, opt = task_of(digits, dropout_net), Optimiser(epochs=2, batch=4)

    def trained(ids: list[str], round: int = 0) -> State:
        c = cohort(digits, task, ids, round)
        return row(local_sgd(c, spread(task.init(0), len(c)), opt), ids.index("c4"))

    torch.manual_seed(1)
    first = trained(["c0", "c4", "c5"])
    torch.manual_seed(2)
    assert largest_gap(trained(["c4"]), first) == 0
    assert largest_gap(trained(["c4"], round=1), first) > 0
    expected = torch.rand(3, generator=torch.Generator().manual_seed(2))
    assert torch.equal(torch.rand(3), expected), "the caller's own generator was used"


@PATHS
def test_bytes_are_normalised_as_floats_are(use_kernel: bool, digits: OwnPopulation) -> None:
    """uint8 images with a mean and deviation give what the ready-made floats give."""
    scaled = Normalise((0.3,), (0.6,), 1 / 16)
    raw = Task(small_net, digits.shape, 10, scaled, dtype=torch.float64, use_kernel=use_kernel)
    ready = Task(small_net, digits.shape, 10, Normalise(), dtype=torch.float64, use_kernel=use_kernel)
    data = digits.client("c1")
    assert data.train.x.dtype == torch.uint8
    floats = ClientData(*(Samples(scaled(part.x, torch.float64), part.y) for part in (data.train, data.test)))
    start = spread(raw.init(0), 1)
    results = [
        local_sgd(Cohort(("c",), task, (held,)), start, Optimiser(epochs=2, batch=4))
        for task, held in ((raw, data), (ready, floats))
    ]
    assert largest_gap(*results) < 1e-12


@PATHS
def test_losses_are_models_by_clients(use_kernel: bool, digits: OwnPopulation) -> None:
    task = task_of(digits, use_kernel=use_kernel)
    c = cohort(digits, task)
    models = stack([task.init(seed) for seed in range(3)])
    table = losses(c, models)
    assert table.shape == (3, 9)
    module = small_net().double()
    for k in range(3):
        module.load_state_dict(row(models, k))
        for client, data in enumerate(c.data):
            with torch.no_grad():
                expected = F.cross_entropy(module(task.inputs(data.train.x)), data.train.y)
            assert float(table[k, client]) == pytest.approx(float(expected), abs=1e-12)
    drawn = losses(c, models, batch=3)
    assert drawn.shape == (3, 9)
    assert not torch.equal(drawn, table)
    some = rng(c.seed, "score", 0, "c0").choice(len(c.data[0].train), 3, replace=False)
    part = c.data[0].train.take(torch.from_numpy(some))
    assert torch.allclose(drawn[:, 0], score(task, models, part).loss)
    assert torch.equal(losses(c, models, batch=100), table)


@PATHS
def test_evaluate_judges_each_client_with_its_own_model(use_kernel: bool, digits: OwnPopulation) -> None:
    task = task_of(digits, use_kernel=use_kernel)
    c = cohort(digits, task)
    models = stack([task.init(seed) for seed in range(9)])
    scores = evaluate(c, models)
    module = small_net().double()
    for client, data in enumerate(c.data):
        module.load_state_dict(row(models, client))
        with torch.no_grad():
            output = module(task.inputs(data.test.x))
        assert float(scores.loss[client]) == pytest.approx(float(F.cross_entropy(output, data.test.y)), abs=1e-12)
        assert int(scores.correct[client]) == int((output.argmax(1) == data.test.y).sum())
    assert scores.count.tolist() == [12.0] * 9
    assert evaluate(c, models, "valid").count.tolist() == [3.0] * 9


@PATHS
def test_a_client_without_test_samples_counts_none(use_kernel: bool, digits: OwnPopulation) -> None:
    task = task_of(digits, use_kernel=use_kernel)
    data = digits.client("c0")
    c = Cohort(("a",), task, (ClientData(data.train, data.test.take(torch.arange(0))),))
    scores = evaluate(c, spread(task.init(0), 1))
    assert (float(scores.count), float(scores.correct), float(scores.loss)) == (0.0, 0.0, 0.0)
    assert len(c.part("valid")[0]) == len(data.train), "without a validation part it is the training part"


@PATHS
def test_probabilities_add_up_to_one(use_kernel: bool, digits: OwnPopulation) -> None:
    task = task_of(digits, use_kernel=use_kernel)
    inputs = task.inputs(digits.client("c0").test.x)
    models = stack([task.init(seed) for seed in range(2)])
    found = probabilities(task, models, inputs)
    assert found.shape == (2, 12, 10)
    assert torch.allclose(found.sum(-1), torch.ones(2, 12, dtype=torch.float64))
    module = small_net().double()
    module.load_state_dict(row(models, 1))
    with torch.no_grad():
        assert torch.allclose(found[1], module(inputs).softmax(-1), atol=1e-12)


def test_clients_remember_what_they_keep(digits: OwnPopulation) -> None:
    task = task_of(digits)
    c = cohort(digits, task, ["c0", "c1"])
    default = {"w": torch.tensor([[1.0], [2.0]])}
    assert torch.equal(c.recall("model", default)["w"], default["w"])
    knowing = replace(c, memory=({"model": {"w": torch.tensor([7.0])}, "age": torch.tensor(3)}, {}))
    assert knowing.recall("model", default)["w"].tolist() == [[7.0], [2.0]]
    assert knowing.recall_tensor("age", torch.tensor([0, 5])).tolist() == [3, 5]
    kept: Tensor = torch.tensor([1, 2])
    c.keep("age", kept)
    assert c.kept == {"age": kept}


def test_a_reconstruction_is_compared_with_the_input() -> None:
    """A net that gives 0 has the mean square of the inputs as its loss: (1 + 4) / 2 = 2.5."""

    def zero() -> nn.Module:
        layer = nn.Linear(2, 2)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        return layer

    samples = Samples(torch.tensor([[1.0, 2.0]]), torch.tensor([0]))
    for use_kernel in (True, False):
        task = Task(zero, (2,), 1, loss="reconstruction", use_kernel=use_kernel)
        assert float(score(task, spread(task.init(0), 1), samples).loss) == pytest.approx(2.5)

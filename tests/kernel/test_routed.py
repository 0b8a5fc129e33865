"""A layer with a residual per domain: the kernel equals torch, whatever the domains of a batch."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from coterie.core.cohort import Cohort
from coterie.core.errors import CoterieError
from coterie.core.evaluation import evaluate
from coterie.core.optimiser import Optimiser
from coterie.core.rng import torch_rng
from coterie.core.samples import ClientData, Normalise, Samples
from coterie.core.states import spread
from coterie.core.task import Task
from coterie.core.training import local_sgd
from coterie.kernel import Refusal, Routing, plan
from coterie.kernel import bridge as fast
from coterie.methods.fedcg.graph import fixed_adjacency
from coterie.methods.fedcg.network import DomainNet, Graph, fedcg
from tests.kernel.reference import flat, needs_kernel, planned

pytestmark = needs_kernel


def _network(channels: int, kernel: int, pools: bool, bias: bool, front: bool, width: int = 3) -> nn.Sequential:
    size = 9 if front else 7
    layers: list[nn.Module] = [nn.Conv2d(2, width, 3), nn.Tanh()] if front else []
    inputs = width if front else 2
    layers += [nn.Conv2d(inputs, channels, kernel, padding=1, bias=bias), nn.ReLU()]
    size = (size - 2 if front else size) + 2 - kernel + 1
    if pools:
        layers.append(nn.MaxPool2d(2))
        size //= 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * size * size, 4))


def _perceptron(first: int, second: int, bias: bool) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(18, first, bias=bias), nn.ReLU()),
        *(nn.Linear(first, second, bias=bias), nn.Tanh(), nn.Linear(second, 4, bias=bias)),
    )


def _wrapped(module: nn.Module, domains: int, mixed: bool, layers: str = "last") -> DomainNet:
    graph = Graph(fixed_adjacency("random", domains, 0.6, torch_rng(1, "A")), "none", "none") if mixed else None
    net = fedcg(module, domains=domains, graph=graph, scale=0.7, layers=layers).double()
    g = torch_rng(2, "weights")
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.dim():
                parameter.copy_(torch.randn(parameter.shape, generator=g) * 0.2)
    return net


def _torch_train(
    net: DomainNet, x: Tensor, y: Tensor, domains: Tensor, order: Tensor, epochs: int, batch: int, **options: Any
) -> Tensor:
    twin = copy.deepcopy(net)
    optimiser = torch.optim.SGD(twin.parameters(), **options)
    for epoch in order.view(epochs, -1):
        for index in epoch.split(batch):
            optimiser.zero_grad()
            F.cross_entropy(twin(x[index], domains[index]), y[index]).backward()
            optimiser.step()
    return flat(twin)


def _check(net: DomainNet, shape: tuple[int, ...], samples: int, batch: int, sort: bool, plain: bool = False) -> None:
    """Two epochs of training, by a plain rule or one with a memory, and the scores before them."""
    routed = planned(net, shape)
    g = torch_rng(3, "data")
    x, y = torch.randn(samples, *shape, generator=g, dtype=torch.float64), torch.randint(4, (samples,), generator=g)
    own = torch.randint(net.domains, (samples,), generator=g)
    order = torch.cat([torch.randperm(samples, generator=g) for _ in range(2)])
    options: dict[str, Any] = {"lr": 0.02} if plain else {"lr": 0.02, "momentum": 0.5, "weight_decay": 0.01}
    expected = _torch_train(net, x, y, own, order, 2, batch, **options)
    found, route = flat(net), Routing(own, net.adjacency)
    told = fast.grouped(order, 2, batch, own) if sort else order
    routed.train(found, x, y, told, epochs=2, batch=batch, route=route, **options)
    assert torch.allclose(found, expected, rtol=0, atol=1e-12)
    loss, accuracy = routed.evaluate(flat(net)[None], x, y, route=route)
    outputs = net(x, own).detach()
    assert float(loss) == pytest.approx(float(F.cross_entropy(outputs, y)), rel=1e-12)
    assert float(accuracy) == pytest.approx(float((outputs.argmax(1) == y).double().mean()))


_SIZES = {"domains": st.integers(1, 5), "samples": st.integers(1, 41), "batch": st.integers(1, 41)}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    channels=st.integers(1, 17), kernel=st.integers(1, 3), pools=st.booleans(), bias=st.booleans(), front=st.booleans(),
    width=st.sampled_from([3, 7, 16]), mixed=st.booleans(), sort=st.booleans(), plain=st.booleans(), **_SIZES,
)  # fmt: skip
def test_a_last_convolution_trains_as_in_torch(
    channels: int, kernel: int, pools: bool, bias: bool, front: bool, width: int, mixed: bool, sort: bool, plain: bool,
    domains: int, samples: int, batch: int,
) -> None:  # fmt: skip
    net = _wrapped(_network(channels, kernel, pools, bias, front, width), domains, mixed)
    _check(net, (2, 9, 9) if front else (2, 7, 7), samples, batch, sort, plain)


def test_rows_of_a_kernel_that_never_meet_the_map_have_no_gradient() -> None:
    module = nn.Sequential(nn.Conv2d(2, 16, 3, padding=1), nn.Flatten(), nn.Linear(32, 4))
    _check(_wrapped(module, 3, False), (2, 1, 2), samples=11, batch=5, sort=True)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    first=st.integers(1, 70), second=st.integers(1, 70), bias=st.booleans(), mixed=st.booleans(), sort=st.booleans(),
    plain=st.booleans(), layer=st.sampled_from(["1", "3", "5", "last"]), **_SIZES,
)  # fmt: skip
def test_a_linear_layer_trains_as_in_torch(
    first: int, second: int, bias: bool, mixed: bool, sort: bool, plain: bool, layer: str, domains: int, samples: int,
    batch: int,
) -> None:  # fmt: skip
    _check(_wrapped(_perceptron(first, second, bias), domains, mixed, layer), (2, 3, 3), samples, batch, sort, plain)


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("module", [_network(16, 3, True, True, True), _perceptron(9, 17, True)])
def test_adam_moves_domains_on_that_a_batch_does_not_have(module: nn.Module, mixed: bool) -> None:
    net = _wrapped(module, 4, mixed)
    shape = (2, 9, 9) if isinstance(module[0], nn.Conv2d) else (2, 3, 3)  # type: ignore[index]
    g = torch_rng(3, "data")
    x, y = torch.randn(12, *shape, generator=g, dtype=torch.float64), torch.randint(4, (12,), generator=g)
    own = torch.tensor([0] * 4 + [1, 2, 1, 1, 3, 0, 1, 2])
    twin, found = copy.deepcopy(net), flat(net)
    optimiser = torch.optim.Adam(twin.parameters(), lr=0.01, eps=0.01)
    for index in torch.arange(12).split(4):
        optimiser.zero_grad()
        F.cross_entropy(twin(x[index], own[index]), y[index]).backward()
        optimiser.step()
    options: dict[str, Any] = {"optimiser": "adam", "lr": 0.01, "eps": 0.01}
    planned(net, shape).train(
        found, x, y, torch.arange(12), epochs=1, batch=4, route=Routing(own, net.adjacency), **options
    )
    assert torch.allclose(found, flat(twin), rtol=0, atol=1e-12)


@pytest.mark.parametrize("layer", ["3", "last"])
def test_a_domain_that_has_diverged_does_not_spoil_the_others(layer: str) -> None:
    net = _wrapped(_perceptron(9, 17, True), 2, False, layer)
    with torch.no_grad():
        net.layers()[0][1].residual[1] = torch.nan
    own = torch.tensor([0, 1, 0, 1, 0])
    logits = planned(net, (2, 3, 3)).logits(flat(net)[None], torch.ones(5, 2, 3, 3).double(), Routing(own))[0]
    assert torch.isfinite(logits).all(1).tolist() == (own == 0).tolist()


@pytest.mark.parametrize("layer", ["6", "8"])
def test_a_linear_layer_behind_convolutions_trains_as_in_torch(layer: str) -> None:
    module = nn.Sequential(
        *(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Conv2d(3, 5, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(45, 19), nn.ReLU(), nn.Linear(19, 4)),
    )
    _check(_wrapped(module, 3, True, layer), (2, 9, 9), samples=41, batch=17, sort=True)


def test_grouping_keeps_the_batches() -> None:
    order = torch.tensor([3, 1, 0, 2, 4, 0, 1, 2, 3, 4])
    grouped = fast.grouped(order, 2, 3, torch.tensor([1, 0, 1, 0, 0]))
    assert grouped.tolist() == [3, 1, 0, 4, 2, 1, 0, 2, 3, 4]


@pytest.mark.parametrize(
    ("graph", "layers", "reason"),
    [
        (Graph(torch.eye(2), "per_filter", "none"), "last", "(DomainConv2d) has a graph with W = per_filter, which is"),
        (
            Graph(torch.eye(2), "low_rank", "none"),
            "last",
            "(DomainConv2d) has a graph with W = low_rank, which is left",
        ),
        (Graph(torch.eye(2), "none", "relu"), "last", "(DomainConv2d) has a ReLU on its residual"),
        (Graph(torch.eye(2), "none", "on_activation"), "last", "(DomainConv2d) has a ReLU on its residual"),
        (None, "0", "another convolution than the last"),
        (None, "all", "more than one layer"),
        (Graph(torch.eye(2), "per_filter", "relu"), "6", "(DomainLinear) has a graph with W = per_filter"),
        (None, "convolutions", "more than one layer"),
    ],
)
def test_what_is_more_than_a_sum_is_left_to_torch(graph: Graph | None, layers: str, reason: str) -> None:
    refused = plan(fedcg(_network(4, 3, True, True, True), domains=2, graph=graph, layers=layers), (2, 9, 9))
    assert isinstance(refused, Refusal)
    assert reason in refused.reason


def test_a_network_that_wants_something_else_beside_its_samples_is_left_to_torch() -> None:
    module = nn.Sequential(nn.Linear(3, 2))
    module.wants_extra = True  # type: ignore[assignment]
    refused = plan(module, (3,))
    assert isinstance(refused, Refusal)
    assert "more than its input" in refused.reason


@pytest.mark.parametrize(
    ("route", "message"),
    [
        (None, "Domains"),
        (Routing(torch.zeros(5, dtype=torch.int64)), "domains has shape"),
        (Routing(torch.zeros(6)), "domains is torch.float32"),
        (Routing(torch.tensor([0, 1, 2, 3, 0, 0])), "domain is outside"),
        (Routing(torch.tensor([0, 1, 2, -1, 0, 0])), "domain is outside"),
        (Routing(torch.zeros(6, dtype=torch.int64), torch.eye(2, dtype=torch.float64)), "mix has shape"),
        (Routing(torch.zeros(6, dtype=torch.int64), torch.eye(3)), "mix is torch.float32"),
    ],
)
def test_wrong_domains_are_refused(route: Routing | None, message: str) -> None:
    net = _wrapped(_network(4, 3, True, True, False), 3, False)
    routed, x, y = planned(net, (2, 7, 7)), torch.zeros(6, 2, 7, 7, dtype=torch.float64), torch.zeros(6).long()
    with pytest.raises(CoterieError, match=message):
        routed.train(flat(net), x, y, torch.arange(6), epochs=1, batch=3, lr=0.1, route=route)


def test_domains_go_only_with_a_network_that_has_some_and_not_to_gradients_of_inputs() -> None:
    plain = planned(nn.Linear(3, 2), (3,))
    route = Routing(torch.zeros(1, dtype=torch.int64))
    with pytest.raises(CoterieError, match="Domains"):
        plain.logits(torch.zeros(1, 8), torch.zeros(1, 3), route)
    net = _wrapped(_network(4, 3, True, True, False), 3, False)
    with pytest.raises(CoterieError, match="gradient of the inputs"):
        planned(net, (2, 7, 7)).input_gradient(flat(net), torch.zeros(1, 2, 7, 7).double(), torch.zeros(1).long())


def test_a_cohort_trains_by_the_kernel_where_domains_are_certain_and_by_torch_where_not() -> None:
    net = _wrapped(_network(4, 3, True, True, True), 3, True)
    g = torch_rng(5, "cohort")
    x, y = torch.randint(0, 256, (23, 2, 9, 9), generator=g, dtype=torch.uint8), torch.randint(4, (23,), generator=g)
    hard = torch.randint(3, (23,), generator=g)
    task = Task(net, (2, 9, 9), 4, Normalise((0.5,), (0.5,), 1 / 255), dtype=torch.float64)
    assert isinstance(task.compiled, fast.KernelTask)
    slow = Task(net, (2, 9, 9), 4, Normalise((0.5,), (0.5,), 1 / 255), dtype=torch.float64, use_kernel=False)
    start = spread({name: tensor.detach() for name, tensor in net.state_dict().items()}, 1)
    for side in (hard, F.one_hot(hard, 3).double(), None):
        samples = Samples(x, y, side)
        found, expected = (
            local_sgd(Cohort(("a",), own, (ClientData(samples, samples),)), start, Optimiser(lr=0.1, epochs=2, batch=5))
            for own in (task, slow)
        )
        for name, tensor in expected.items():
            assert torch.allclose(found[name], tensor, rtol=0, atol=1e-12), name
        assert torch.equal(found["adjacency"], start["adjacency"])
        scores = [evaluate(Cohort(("a",), own, (ClientData(samples, samples),)), start) for own in (task, slow)]
        assert float(scores[0].loss) == pytest.approx(float(scores[1].loss), rel=1e-12)
        assert torch.equal(scores[0].correct, scores[1].correct)

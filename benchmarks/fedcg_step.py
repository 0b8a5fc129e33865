"""A training step of FedCG's network against the plain one: D = 4, residuals on one layer, one thread.

That layer is what "last" means: the last convolution, or in a network without any its last layer; of the MLP also the
hidden layer before it.

By torch, and by the kernel where it takes both networks; a kernel's step is compared with the kernel's plain step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.timing import take_turns
from coterie.kernel import Net, Routing, plan
from coterie.kernel.bridge import grouped
from coterie.methods.fedcg.graph import fixed_adjacency
from coterie.methods.fedcg.network import DomainNet, Graph, fedcg
from coterie.models import build_model

_DOMAINS, _STEPS = 4, 10
CASES = (
    ("MLP", "mlp", (1, 28, 28), 10, "last"),
    ("MLP, last hidden layer", "mlp", (1, 28, 28), 10, "3"),
    ("LeNet-5, 28 x 28", "lenet5", (1, 28, 28), 10, "last"),
    ("digits CNN, 8 x 8", "digits-cnn", (1, 8, 8), 10, "last"),
    ("FEMNIST CNN", "femnist-port", (1, 28, 28), 62, "last"),
    ("CelebA CNN", "celeba-port", (3, 84, 84), 2, "last"),
    ("CIFAR CNN", "cifar-cnn", (3, 32, 32), 10, "last"),
)


def step_cost(turns: int = 5) -> list[dict[str, object]]:
    """One row per network and batch size: seconds a step, and how many times as long each variant takes."""
    rows: list[dict[str, object]] = []
    for name, model, shape, classes, layers in CASES:
        for batch in (10, 32):
            plain = build_model(model, shape, classes).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            x = torch.randn(batch, *shape).to(memory_format=torch.channels_last)
            y = torch.randint(0, classes, (batch,))
            mixed = torch.arange(batch) % _DOMAINS
            variants: dict[str, tuple[nn.Module, tuple[Tensor, ...]]] = {"plain": (plain, (x,))}
            for label, graph in _graphs().items():
                net = fedcg(plain, domains=_DOMAINS, layers=layers, graph=graph)
                if label == "residuals":
                    variants["residuals, one domain a batch"] = (net, (x, torch.zeros_like(mixed)))
                variants[f"{label}, four domains a batch"] = (net, (x, mixed))
            works = {"torch": {key: _steps(net, inputs, y) for key, (net, inputs) in variants.items()}}
            works["kernel"] = {
                key: work for key, (net, inputs) in variants.items() if (work := _kernel_steps(net, inputs, y))
            }
            for path, candidates in works.items():
                if "plain" not in candidates:
                    continue
                timing = take_turns(candidates, turns)
                costs = {key: round(1 / ratio, 2) for key, ratio in timing.ratio.items() if key != "plain"}
                plain_ms = round(1000 * timing.seconds["plain"] / _STEPS, 2)
                rows.append({"network": name, "batch": batch, "path": path, "plain ms a step": plain_ms, **costs})
    return rows


def _graphs() -> Mapping[str, Graph | None]:
    adjacency = fixed_adjacency("uniform", _DOMAINS, 0.5)
    return {
        "residuals": None,
        "with A": Graph(adjacency, "none", "none"),
        "with A, W per filter, ReLU": Graph(adjacency, "per_filter", "relu"),
    }


def _steps(net: nn.Module, inputs: tuple[Tensor, ...], y: Tensor) -> Callable[[], object]:
    optimiser = torch.optim.SGD(net.parameters(), lr=1e-4, fused=True)

    def work() -> None:
        torch.set_num_threads(1)
        for _ in range(_STEPS):
            optimiser.zero_grad()
            F.cross_entropy(net(*inputs), y).backward()
            optimiser.step()

    return work


def _kernel_steps(net: nn.Module, inputs: tuple[Tensor, ...], y: Tensor) -> Callable[[], object] | None:
    """The same steps in one call of the kernel; None where it does not take the network."""
    x = inputs[0].contiguous()
    planned = plan(net, tuple(x.shape[1:]))
    if not isinstance(planned, Net):
        return None
    route, order = None, torch.arange(len(x)).repeat(_STEPS)
    if isinstance(net, DomainNet):
        route = Routing(inputs[1], net.adjacency)
        order = grouped(order, _STEPS, len(x), route.domains)
    weights = torch.cat([parameter.detach().flatten() for parameter in net.parameters()])
    return lambda: planned.train(weights, x, y, order, epochs=_STEPS, batch=len(x), lr=1e-4, route=route)


if __name__ == "__main__":
    for row in step_cost():
        print(row)

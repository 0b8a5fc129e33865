"""A training step of FedCG's network against the plain one: D = 4, residuals on the last convolution, one thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.timing import take_turns
from coterie.models import build_model
from coterie.models.domain_graph import fixed_adjacency
from coterie.models.domains import Graph, fedcg

_DOMAINS, _STEPS = 4, 10
CASES = (
    ("LeNet-5, 28 x 28", "lenet5", (1, 28, 28), 10),
    ("FEMNIST CNN", "femnist-port", (1, 28, 28), 62),
    ("CelebA CNN", "celeba-port", (3, 84, 84), 2),
    ("CIFAR CNN", "cifar-cnn", (3, 32, 32), 10),
)


def step_cost(turns: int = 5) -> list[dict[str, object]]:
    """One row per network and batch size: seconds a step, and how many times as long each variant takes."""
    rows: list[dict[str, object]] = []
    for name, model, shape, classes in CASES:
        for batch in (10, 32):
            plain = build_model(model, shape, classes).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            x = torch.randn(batch, *shape).to(memory_format=torch.channels_last)
            y = torch.randint(0, classes, (batch,))
            mixed = torch.arange(batch) % _DOMAINS
            variants: dict[str, tuple[nn.Module, tuple[Tensor, ...]]] = {"plain": (plain, (x,))}
            for label, graph in _graphs().items():
                net = fedcg(plain, domains=_DOMAINS, graph=graph)
                if label == "residuals":
                    variants["residuals, one domain a batch"] = (net, (x, torch.zeros_like(mixed)))
                variants[f"{label}, four domains a batch"] = (net, (x, mixed))
            timing = take_turns({key: _steps(net, inputs, y) for key, (net, inputs) in variants.items()}, turns)
            costs = {key: round(1 / ratio, 2) for key, ratio in timing.ratio.items() if key != "plain"}
            rows.append(
                {
                    "network": name,
                    "batch": batch,
                    "plain ms a step": round(1000 * timing.seconds["plain"] / _STEPS, 2),
                    **costs,
                }
            )
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


if __name__ == "__main__":
    for row in step_cost():
        print(row)

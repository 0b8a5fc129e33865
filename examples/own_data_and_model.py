"""Your own data and your own model: three hospitals that use one scanner, three that use another."""

import numpy as np
from torch import nn

import coterie

g = np.random.default_rng(0)
clients = {}
for number in range(6):
    x = g.normal(size=(200, 12)).astype(np.float32)
    y = (x[:, 0] * (1 if number < 3 else -1) + x[:, 1] > 0).astype(np.int64)  # the scanners disagree about feature 0
    clients[f"hospital-{number}"] = (x, y)


def network() -> nn.Module:
    """Any torch module will do."""
    return nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 2))


population = coterie.from_arrays(clients)
for name, settings in {"fedavg": {}, "ifca": {"k": 2}}.items():
    result = coterie.run(coterie.method(name, **settings), population, network, rounds=15)
    print(f"{name}: {result.accuracy:.1%} mean accuracy, clusters {result.clusters}")

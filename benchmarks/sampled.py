"""Memory of a round as the sampled clients grow: FedAvg of ResNet-18, 45 MB a model."""

from __future__ import annotations

import json
import subprocess
import sys

ROUND = """
import json, os, sys, threading, time
import numpy as np, torch
from benchmarks.timing import resident_megabytes
import coterie
rule, clients, workers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
g = np.random.default_rng(0)
data = {f"c{i}": (g.integers(0, 256, (3, 3, 32, 32), np.uint8), np.arange(3) % 10) for i in range(clients)}
population = coterie.from_arrays(data)
def network(): return coterie.build_model("resnet18", (3, 32, 32), 10)
module = network()
optimiser = torch.optim.SGD(module.parameters(), 0.01, 0.9)  # what training one model takes, client or not
torch.nn.functional.cross_entropy(module(torch.zeros(2, 3, 32, 32)), torch.zeros(2, dtype=torch.int64)).backward()
optimiser.step()
before, most, done = resident_megabytes(os.getpid()), 0.0, False
def watch():
    global most
    while not done:
        most = max(most, resident_megabytes(os.getpid()))
        time.sleep(0.2)  # it takes 10 ms to look
del module, optimiser
thread = threading.Thread(target=watch)
thread.start()
start = time.perf_counter()
coterie.run(coterie.method("fedavg", epochs=1, batch=2, aggregate=rule), population, network, rounds=1,
            engine=coterie.EngineOptions(workers=workers), evaluate_clients=2)
seconds, done = time.perf_counter() - start, True
thread.join()
print(json.dumps([before, most, seconds]))
"""


def sampled(
    cases: tuple[tuple[str, int, int], ...] = (("clipped", 10, 2), ("clipped", 200, 2), ("mean", 200, 1)),
) -> list[dict[str, object]]:
    """Peak memory of all processes of a run, shared pages counted once, above what training one model takes."""
    rows: list[dict[str, object]] = []
    for rule, clients, workers in cases:
        made = subprocess.run(
            [sys.executable, "-c", ROUND, rule, str(clients), str(workers)],
            capture_output=True,
            text=True,
            check=True,
            timeout=1800,
        )
        before, most, seconds = json.loads(made.stdout.splitlines()[-1])
        rows.append(
            {
                "aggregate": rule,
                "sampled ResNet-18": clients,
                "processes": workers,
                "MB before": round(before),
                "MB at most": round(most),
                "MB above": round(most - before),
                "s a round": round(seconds, 1),
            }
        )
    return rows

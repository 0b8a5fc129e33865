"""Memory does not grow with the clients of a round, and what lies in a file gives the same run."""

from __future__ import annotations

import subprocess
import sys

import pytest

from coterie import Faults, run
from coterie.core import spill
from coterie.data.own import OwnPopulation
from coterie.simulation.simulator import EngineOptions
from tests.tiny import batchnorm_net, fingerprint, made, small_net

PROGRAM = """
import sys, threading, time, numpy as np, coterie
from pathlib import Path
from torch import nn
from coterie.core import spill
peak, done = 0, threading.Event()
def watch():
    # memory of its own alone: pages of the file are the system's, which takes them back when it needs them, and it maps
    # them in pieces of up to 2 MB (kernel 6.18, ext4), however little is read
    global peak
    while not done.wait(0.002):
        lines = Path("/proc/self/status").read_text().splitlines()
        peak = max(peak, next(int(line.split()[1]) // 1024 for line in lines if line.startswith("RssAnon:")))
watcher = threading.Thread(target=watch)
watcher.start()
g = np.random.default_rng(0)
data = {f"c{i}": (g.normal(size=(4, 1000)).astype(np.float32), np.arange(4) % 2) for i in range(50)}
clients = coterie.from_arrays(data)
spill.IN_MEMORY = spill.BLOCK = 1 << 24
method = coterie.method("fedavg", epochs=1, batch=2, fraction=float(sys.argv[1]), aggregate=sys.argv[2])
result = coterie.run(method, clients, lambda: nn.Sequential(nn.Linear(1000, 2000), nn.ReLU(), nn.Linear(2000, 2)),
                     rounds=1, engine=coterie.EngineOptions(workers=1, lanes=1), evaluate_clients=2)
assert not result.failures
done.set()
watcher.join()
print(peak)
"""


def peak(sampled: int, rule: str) -> int:
    """Megabytes of a run in which so many clients send a model of 8 MB."""
    command = [sys.executable, "-c", PROGRAM, str(sampled), rule]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=250)
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="reads it from /proc")
def test_memory_does_not_grow_with_the_sampled_clients() -> None:
    """45 more replies of 8 MB are 360 MB, and a tenth of that is what may be left of it."""
    few, many = peak(5, "clipped"), peak(50, "clipped")
    assert many - few < 40, f"{few} MB with 5 clients, {many} MB with 50"


@pytest.mark.parametrize(
    ("name", "settings"),
    [("fedavg", {}), ("ifca", {"aggregate": "mean"}), ("scaffold", {}), ("cfl", {"aggregate": "median"}), ("pens", {})],
)
def test_a_run_whose_replies_lie_in_files_is_the_same_run(
    name: str, settings: dict[str, str], digits: OwnPopulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some replies are refused, so that stacks are made smaller, too."""
    faults, alone = Faults(nan=0.2, dropout=0.1), EngineOptions(workers=1)
    whole = run(made(name, **settings), digits, small_net, rounds=2, faults=faults, engine=alone)
    monkeypatch.setattr(spill, "IN_MEMORY", 0)
    assert fingerprint(run(made(name, **settings), digits, small_net, rounds=2, faults=faults)) == fingerprint(whole)


def test_replies_of_processes_lie_in_files_too(digits: OwnPopulation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs are done in any order; each goes to its own place."""
    whole = run(made("fedavg"), digits, batchnorm_net, rounds=2, engine=EngineOptions(workers=1))
    monkeypatch.setattr(spill, "IN_MEMORY", 0)
    spilled = run(made("fedavg"), digits, batchnorm_net, rounds=2, engine=EngineOptions(workers=2, lanes=1))
    assert fingerprint(spilled) == fingerprint(whole)

"""Memory does not grow with the clients of a round, and what lies in a file gives the same run."""

from __future__ import annotations

import sys

import pytest

from coterie import Faults, run
from coterie.core import spill
from coterie.data.own import OwnPopulation
from coterie.simulation.simulator import EngineOptions
from tests import forked
from tests.tiny import batchnorm_net, fingerprint, made, small_net

PROGRAM = """
import sys, numpy as np, coterie
from pathlib import Path
from torch import nn
from coterie.core import spill
def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM:"))
g = np.random.default_rng(0)
data = {f"c{i}": (g.normal(size=(4, 1, 25, 40)).astype(np.float32), np.arange(4) % 2) for i in range(34)}
clients = coterie.from_arrays(data)
spill.IN_MEMORY, spill.BLOCK = int(sys.argv[2]), 1 << 24
method = coterie.method("fedavg", epochs=1, batch=2, fraction=float(sys.argv[1]), aggregate="clipped",
                        finetune_epochs=0)
net = lambda: nn.Sequential(nn.Flatten(), nn.Linear(1000, 2000), nn.ReLU(), nn.Linear(2000, 2))
result = coterie.run(method, clients, net, rounds=1, engine=coterie.EngineOptions(workers=1, lanes=1),
                     evaluate_clients=2)
assert not result.failures
print(peak())
"""


def peak(sampled: int, in_memory: int = 1 << 24) -> int:
    """Megabytes of a run in which so many clients send a model of 8 MB."""
    done = forked.run([sys.executable, "-c", PROGRAM, str(sampled), str(in_memory)], timeout=250)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
def test_memory_does_not_grow_with_the_sampled_clients() -> None:
    """30 more replies of 8 MB are 240 MB, of which part may be there: pages of files count, too."""
    few, many = peak(4), peak(34)
    assert many - few < 150, f"{few} MB with 4 clients, {many} MB with 34"


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

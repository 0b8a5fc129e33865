"""Workers that die, workers that fail, workers whose parent is gone."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from coterie import Result, run
from coterie.core.cohort import Cohort
from coterie.core.errors import CoterieError
from coterie.core.federation import on_client
from coterie.data.own import OwnPopulation
from coterie.methods.base import Models, Trained
from coterie.methods.fedavg import FedAvg
from coterie.simulation.simulator import EngineOptions
from tests import forked
from tests.tiny import TRAINING, StopAt, fingerprint, small_net

PROCESSES = EngineOptions(workers=2, kernel=False)
PATIENCE = 150  # seconds; only a hang takes as long


@dataclass(frozen=True)
class Deadly(FedAvg):
    """FedAvg whose workers die while client c4 trains, once for every file in `deaths`."""

    deaths: str = ""

    @on_client("models")
    def train(self, c: Cohort, sent: Models) -> Trained:
        if "c4" in c.ids:
            for file in sorted(Path(self.deaths).iterdir()):
                file.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        return super().train(c, sent)


@dataclass(frozen=True)
class Failing(FedAvg):
    """FedAvg with a mistake in it."""

    @on_client("models")
    def train(self, c: Cohort, sent: Models) -> Trained:
        return Trained(sent.models, c.no_such_thing)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Refusing(FedAvg):
    """FedAvg whose clients have something to say to the user."""

    @on_client("models")
    def train(self, c: Cohort, sent: Models) -> Trained:
        raise CoterieError("The client's battery is empty; charge it.")


def deadly(population: OwnPopulation, folder: Path, deaths: int) -> tuple[Result, list[str]]:
    folder.mkdir()
    for death in range(deaths):
        (folder / str(death)).touch()
    view = StopAt(-1)
    result = run(Deadly(**TRAINING, deaths=str(folder)), population, small_net, rounds=2, engine=PROCESSES, view=view)
    return result, view.notes


def test_a_killed_worker_is_named_and_replaced_and_its_work_done_again(digits: OwnPopulation, tmp_path: Path) -> None:
    whole, calm = deadly(digits, tmp_path / "none", 0)
    result, notes = deadly(digits, tmp_path / "one", 1)
    assert fingerprint(result) == fingerprint(whole)
    lost = [note for note in notes if "worker" in note and "killed by signal 9" in note]
    assert len(lost) == 1
    assert "while it ran train for" in lost[0]
    assert "replaced" in lost[0]
    assert not any("killed" in note for note in calm)


def test_a_second_killed_worker_ends_the_run(digits: OwnPopulation, tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match=r"A second worker \d+ was killed by signal 9 .* try --workers 1 and resume"):
        deadly(digits, tmp_path / "two", 2)


@pytest.mark.parametrize("engine", [PROCESSES, EngineOptions(workers=2), EngineOptions(workers=1)])
def test_a_mistake_in_a_client_function_shows_where_it_is(digits: OwnPopulation, engine: EngineOptions) -> None:
    with pytest.raises((RuntimeError, AttributeError)) as caught:
        run(Failing(**TRAINING), digits, small_net, rounds=1, engine=engine)
    trace = "".join(str(part) for part in [caught.value, *caught.traceback])
    assert "no_such_thing" in str(caught.value)
    assert "test_workers.py" in trace


@pytest.mark.parametrize("engine", [PROCESSES, EngineOptions(workers=2)])
def test_what_a_client_has_to_say_reaches_the_user(digits: OwnPopulation, engine: EngineOptions) -> None:
    with pytest.raises(CoterieError, match="battery is empty"):
        run(Refusing(**TRAINING), digits, small_net, rounds=1, engine=engine)


ORPHANS = """
import time
from coterie.simulation.simulator import EngineOptions, Simulator
from coterie.methods.fedavg import FedAvg
from coterie.core.task import Task
from tests.tiny import batchnorm_net, tiny_digits

population, method = tiny_digits(), FedAvg()
task = Task.of(batchnorm_net, population)
fed = Simulator(method, task, population, seed=0, options=EngineOptions(workers=3))
method.step(method.init(fed), fed)
print(*fed._crew.workers.pids, flush=True)
time.sleep(600)
"""


def alive(pid: int) -> bool:
    """Whether a process is there and not only waiting to be buried."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes through /proc")
def test_workers_end_when_their_parent_is_killed() -> None:
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}"}
    reading, writing = os.pipe()
    parent = forked.Process([sys.executable, "-c", ORPHANS], stdout=writing, env=environment)
    os.close(writing)
    try:
        with open(reading) as said:
            pids = [int(pid) for pid in said.readline().split()]
        assert len(pids) == 3
        assert all(alive(pid) for pid in pids)
    finally:
        parent.kill()
        parent.wait(PATIENCE)
    end = time.monotonic() + PATIENCE
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < end, "workers outlive their parent"
        time.sleep(0.05)


def test_workers_end_with_the_run(digits: OwnPopulation, monkeypatch: pytest.MonkeyPatch) -> None:
    from coterie.simulation.workers import ProcessWorkers

    crews: list[list[int]] = []
    close = ProcessWorkers.close

    def closed(self: Any) -> None:
        crews.append(self.pids)
        close(self)

    monkeypatch.setattr(ProcessWorkers, "close", closed)
    run(FedAvg(**TRAINING), digits, small_net, rounds=1, engine=PROCESSES)
    assert [len(crew) for crew in crews] == [2]
    assert not any(alive(pid) for pid in crews[0])

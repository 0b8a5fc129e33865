"""Work of the server beside the clients' own: done once, in a thread where the kernel computes, else afterwards."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import pytest
import torch

from coterie.core.cohort import Cohort
from coterie.core.errors import CoterieError
from coterie.core.federation import Nothing, on_client
from coterie.core.task import Task
from coterie.data.own import OwnPopulation
from coterie.methods.base import Trained
from coterie.methods.fedavg import FedAvg
from coterie.simulation.simulator import EngineOptions, Simulator
from tests.kernel.reference import needs_kernel
from tests.tiny import small_net

PATIENCE = 30.0


@dataclass(frozen=True)
class Waiting(FedAvg):
    """A client whose work ends only once the server's has begun, if that comes within a moment."""

    begun: threading.Event = threading.Event()  # noqa: RUF009
    moment: float = 0.0

    @on_client
    def wait(self, c: Cohort, sent: Nothing) -> Trained:
        together = self.begun.wait(self.moment)
        return Trained({}, torch.full((len(c),), float(together)))


def asked(digits: OwnPopulation, *, kernel: bool, moment: float) -> tuple[list[int], list[float]]:
    """How many threads torch had each time the work was done, and whether clients saw it begin."""
    method, counts = Waiting(begun=threading.Event(), moment=moment), []

    def work() -> None:
        counts.append(torch.get_num_threads())
        method.begun.set()

    task = Task(small_net, digits.shape, digits.classes, digits.normalise, use_kernel=kernel)
    fed = Simulator(method, task, digits, seed=0, options=EngineOptions(workers=1))
    replies = fed.ask(method.wait, digits.ids[:1], same=Nothing(), meanwhile=work)
    fed.close()
    assert replies.value is not None
    return counts, replies.value.size.tolist()


@needs_kernel
def test_it_is_done_while_clients_work_where_the_kernel_computes(digits: OwnPopulation) -> None:
    """The client waits for the work to begin: one after the other it would wait in vain."""
    assert asked(digits, kernel=True, moment=PATIENCE) == ([1], [1.0])


def test_it_is_done_after_the_clients_where_torch_computes(digits: OwnPopulation) -> None:
    """No thread is busy while clients work (they may be forked processes); still it is done, once."""
    assert asked(digits, kernel=False, moment=0.2) == ([1], [0.0])


@pytest.mark.parametrize("kernel", [True, False])
def test_what_it_fails_with_is_told(kernel: bool, digits: OwnPopulation) -> None:
    def broken() -> None:
        raise CoterieError("No sample can be made.")

    task = Task(small_net, digits.shape, digits.classes, digits.normalise, use_kernel=kernel)
    fed = Simulator(Waiting(), task, digits, seed=0, options=EngineOptions(workers=1))
    with pytest.raises(CoterieError, match="No sample can be made"):
        fed.ask(Waiting().wait, digits.ids[:1], same=Nothing(), meanwhile=broken)
    fed.close()

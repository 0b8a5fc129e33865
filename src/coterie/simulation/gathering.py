"""What the jobs of a question bring, put together as they are done."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from coterie.core import spill
from coterie.core.cohort import Memory
from coterie.core.jobs import Job, Outcome
from coterie.core.message import Message
from coterie.core.samples import ClientId
from coterie.simulation.malloc import give_back_freed_blocks


class Gathered:
    """The replies of all jobs as one stack, in the order of the jobs, in whatever order they are done.

    Each reply goes to its place when it comes, and a stack that is too large for memory goes to a file (`core.spill`):
    memory does not grow with the number of clients that are asked.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        lengths = [len(job.ids) for job in jobs]
        self.asked, self.done, self.size = sum(lengths), 0, 0
        self.reply: Message | None = None
        self.kept: list[list[Memory]] = [[] for _ in jobs]
        self.losses: dict[ClientId, float] = {}
        self._lengths, self._first = lengths, [0, *accumulate(lengths)]

    def take(self, number: int, outcome: Outcome) -> None:
        """A job is done."""
        reply, clients = outcome.reply, self._lengths[number]
        if self.reply is None and clients == self.asked:
            self.reply = reply
        else:
            if self.reply is None:
                rows = {name: ((self.asked, *t.shape[1:]), t.dtype) for name, t in reply.tensors.items()}
                self.reply = reply.holding(spill.empty(rows))
            if number == 0:  # the plain values are those of the first job, whichever is done first
                self.reply = reply.holding(self.reply.tensors)
            spill.put(self.reply.tensors, self._first[number], reply.tensors)
            if spill.is_large(self.reply.tensors):
                give_back_freed_blocks()
        self.kept[number] = [outcome.kept_by(position) for position in range(clients)]
        self.losses |= outcome.losses
        self.size += clients * reply.row(0).size
        self.done += clients

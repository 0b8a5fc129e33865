"""Independent runs side by side, a process for each core."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, TypeVar

R = TypeVar("R")


def side_by_side(
    work: Callable[..., R], jobs: Sequence[tuple[Any, ...]], processes: int | None = None
) -> Iterator[tuple[tuple[Any, ...], R]]:
    """Every job with its result, as soon as it is there; in this process where there is one job or one core.

    `work` is a function of a module, and is called with what a job holds. What has not begun when the caller stops
    (Ctrl-C, an error) is never begun.
    """
    processes = min(processes or os.cpu_count() or 1, len(jobs))
    if processes < 2:
        yield from ((job, work(*job)) for job in jobs)
        return
    fresh = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    with ProcessPoolExecutor(processes, mp_context=fresh, initializer=_leave_interrupts_to_the_caller) as pool:
        begun = {pool.submit(work, *job): job for job in jobs}
        try:
            for done in as_completed(begun):
                yield begun[done], done.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _leave_interrupts_to_the_caller() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)

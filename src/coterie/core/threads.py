"""One thread for arithmetic, wherever it runs: sums over several threads differ in their last bits with their number.

The cores are shared out between clients, never within one client's arithmetic. What torch was told counts for the
thread that told it only, so every thread that computes is made here or says so itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache

import torch
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]


def use_one_thread() -> None:
    """Have torch compute with one thread in this thread from now on."""
    torch.set_num_threads(1)


@contextmanager
def one_thread() -> Iterator[None]:
    """Have torch compute with one thread in this thread; where it does already, nothing is set or restored.

    Restoring reaches other threads too (MKL has one number for all), so nested uses must leave it alone.
    """
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def one_thread_everywhere() -> Iterator[None]:
    """The same for numpy, scipy and scikit-learn too, as far as they are loaded."""
    with one_thread(), _libraries(len(sys.modules)).limit(limits=1):
        yield


@lru_cache(maxsize=1)
def _libraries(modules: int) -> ThreadpoolController:  # noqa: ARG001 - what is kept is of so many modules
    """The loaded libraries that have threads; looking for them takes milliseconds, and importing is what adds some."""
    return ThreadpoolController()


def worker_pool(workers: int) -> ThreadPoolExecutor:
    """Threads that share work out, each of which computes with one thread."""
    return ThreadPoolExecutor(workers, initializer=use_one_thread)


@contextmanager
def done_beside(work: Callable[[], object], *, thread: bool) -> Iterator[None]:
    """Do some work beside the body, in a thread of its own, or after it; either way it computes with one thread."""
    if not thread:
        yield
        with one_thread():
            work()
        return
    with worker_pool(1) as pool:
        done = pool.submit(work)
        yield
        done.result()

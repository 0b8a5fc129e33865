"""One thread for arithmetic, wherever it runs: sums over several threads differ in their last bits with their number.

The cores are shared out between clients, never within one client's arithmetic. What torch was told counts for the
thread that told it only, so every thread that computes is made here or says so itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from typing import TypeVar

import torch
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

P = TypeVar("P")
R = TypeVar("R")


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


def on_all_cores(work: Callable[[P], R], parts: Sequence[P]) -> list[R]:
    """The same work on every part; a part is computed by itself, so that how they are shared out changes nothing."""
    if len(parts) == 1:
        return [work(parts[0])]
    with worker_pool(os.cpu_count() or 1) as pool:
        return list(pool.map(work, parts))


def portion(number: int, most: int) -> int:
    """How many of so many rows make a part, so that all cores have one; at most so many."""
    return max(1, min(most, -(-number // (os.cpu_count() or 1))))


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

"""Fair timing on a shared machine: candidates take turns, and only ratios within a turn count."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True)
class Timing:
    """Median seconds of each candidate, and the median over turns of how many times faster than the first it was."""

    seconds: dict[str, float]
    ratio: dict[str, float]


def take_turns(candidates: Mapping[str, Callable[[], object]], turns: int = 5) -> Timing:
    """Run every candidate once per turn, after one turn that does not count (caches, forks, first touches)."""
    spent: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(turns + 1):
        for name, work in candidates.items():
            start = time.perf_counter()
            work()
            if turn:
                spent[name].append(time.perf_counter() - start)
    first = next(iter(candidates))
    turnwise = {name: [a / b for a, b in zip(spent[first], each, strict=True)] for name, each in spent.items()}
    ratio = {name: statistics.median(each) for name, each in turnwise.items()}
    return Timing({name: statistics.median(each) for name, each in spent.items()}, ratio)


def sgemm_gflops(size: int = 1024, seconds: float = 1.0) -> float:
    """The machine's limit on one thread: float32 products of square matrices."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    a, b = torch.randn(size, size), torch.randn(size, size)
    best = float("inf")
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        torch.mm(a, b)
        best = min(best, time.perf_counter() - start)
    torch.set_num_threads(threads)
    return 2 * size**3 / best / 1e9


def peak_megabytes() -> int:
    """The most memory this process has had. (ru_maxrss counts what its parent had when it was started.)"""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) // 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def resident_megabytes(process: int) -> float:
    """Memory of a process and those it started, pages that several share counted once (Linux)."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):  # it has just ended
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    total, waiting = 0, [process]
    while waiting:
        one = waiting.pop()
        waiting += [child for child, parent in parents.items() if parent == one]
        with suppress(OSError):
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024

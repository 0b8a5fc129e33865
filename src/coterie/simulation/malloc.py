"""Large blocks of memory that a simulation frees in one round are kept for the next.

The C library gives blocks of models back to the system when they are freed, and gets fresh ones that the system has to
clear page by page: a tenth of a round of large peers. One setting of glibc's allocator prevents that; elsewhere
nothing happens. Where models are so large that replies are in files, what is freed between others would add up (aligned
blocks of one size do not fit where such a block was), so there it is given back.
"""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # numbers of mallopt(3)
_KEPT_BYTES, _BLOCK_BYTES = 2**31 - 1, 2**30


def keep_freed_blocks() -> bool:
    """Ask the allocator of this process to keep what is freed; whether it does."""
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)) and bool(mallopt(_MMAP_THRESHOLD, _BLOCK_BYTES))


def give_back_freed_blocks() -> None:
    """Give all pages that are free now back to the system."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)

"""Stacks of models that are too large for memory: they lie in a file without a name that is mapped into memory.

A stack in a file is a stack like any other: every method and every rule reads it as tensors. What reads it a block at a
time and lets the pages go in between (`let_go`) needs memory for one block, however many models there are.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
import weakref
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from coterie.core.errors import Unfinished

IN_MEMORY = 1 << 28
"""A stack of more bytes than this goes to a file."""
BLOCK = 1 << 26
"""So many bytes, in double precision, are looked at in one piece. A stack within it is one piece: its sums are those of
a single product."""
_PAGE = 4096
_CACHED = 1 << 21  # bytes: the distances of ten MLPs took 19 ms in one piece, 3 ms in these
_LANES = 16
_maps: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
Layout = Mapping[str, tuple[tuple[int, ...], torch.dtype]]


def empty(layout: Layout) -> dict[str, Tensor]:
    """Room for tensors of these shapes: in memory if it is little, else in a file that is gone when they are."""
    starts, end = [], 0
    for shape, dtype in layout.values():
        starts.append(end)
        end += -(-math.prod(shape) * dtype.itemsize // _PAGE) * _PAGE
    if end <= IN_MEMORY:
        return {name: torch.empty(shape, dtype=dtype) for name, (shape, dtype) in layout.items()}
    whole = torch.frombuffer(_mapped(end), dtype=torch.uint8)
    return {
        name: whole[start : start + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)
        for start, (name, (shape, dtype)) in zip(starts, layout.items(), strict=True)
    }


def is_large(stack: Mapping[str, Tensor]) -> bool:
    """Whether a stack of this size lies in a file."""
    return sum(tensor.numel() * tensor.element_size() for tensor in stack.values()) > IN_MEMORY


def _mapped(size: int) -> mmap.mmap:
    folder = tempfile.gettempdir()
    try:
        with tempfile.TemporaryFile(prefix="coterie-", dir=folder) as file:
            if hasattr(os, "posix_fallocate"):  # else a full disk is found out by a write, which ends the process
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                os.ftruncate(file.fileno(), size)
            found = mmap.mmap(file.fileno(), size)
    except OSError as error:
        raise Unfinished(
            f"The replies of this round take {size / 1e9:.1f} GB and {folder} has no room for them "
            f"({error.strerror or error}); set TMPDIR to a folder that has, or let fewer clients take part, and resume."
        ) from error
    _maps.add(found)
    return found


def let_go() -> None:
    """Give back the memory of pages that were read or written; they are read again from the file when needed."""
    for each in list(_maps):
        if hasattr(each, "madvise"):
            each.madvise(mmap.MADV_DONTNEED)


def put(room: Mapping[str, Tensor], first: int, rows: Mapping[str, Tensor]) -> None:
    """Copy some rows into their places, from row `first` on."""
    if room.keys() != rows.keys():
        raise ValueError(f"replies differ in what they hold: {sorted(room.keys() ^ rows.keys())}")
    for name, tensor in rows.items():
        if room[name].shape[1:] != tensor.shape[1:]:
            raise ValueError(f"replies differ in the shape of {name}: {tuple(tensor.shape[1:])}")
        room[name][first : first + len(tensor)].copy_(tensor)
    let_go()


def taken(stack: Mapping[str, Tensor], index: Tensor) -> dict[str, Tensor]:
    """These rows of a stack, in memory or in a file as their size wants it."""
    found = empty({name: ((len(index), *tensor.shape[1:]), tensor.dtype) for name, tensor in stack.items()})
    for name, tensor in stack.items():
        for rows in row_blocks(len(index), tensor[:1].numel()):
            found[name][rows] = tensor[index[rows]]
    return found


def row_blocks(rows: int, columns: int) -> Iterator[slice]:
    """So many models of so many numbers in pieces that fit a cache, at least one model each.

    (Smaller ones than of columns: what is computed of a model does not depend on which others are in the piece.)
    """
    step, seen = max(1, _CACHED // max(1, 8 * columns)), 0
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))
        seen += 8 * columns * step
        if seen >= BLOCK // 4:
            seen = 0
            let_go()


def column_blocks(rows: int, columns: int) -> Iterator[slice]:
    """The numbers of each of so many models in pieces: all models together have at most `BLOCK` bytes of a piece."""
    step = max(_LANES, BLOCK // max(1, 8 * rows) // _LANES * _LANES)
    for start in range(0, columns, step):
        yield slice(start, min(start + step, columns))
        if step < columns:
            let_go()
